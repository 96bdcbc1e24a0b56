"""Address and credentials of object stores that come from elsewhere than the environment, such as Spark's settings.

They are kept under the names of the environment variables, for this process, and count where the environment has none:
keys only if it has no key at all, so that the key of one account never meets the secret of another. Never log them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

KEYS = frozenset({"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"})
_given: dict[str, str] = {}


def give(settings: Mapping[str, str]) -> None:
    """Use these settings from now on, instead of those given before."""
    _given.clear()
    _given.update(settings)


def missing_in(environment: Mapping[str, str], settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that count beside an environment."""
    has_keys = bool(KEYS & environment.keys())
    return {
        name: value for name, value in settings.items() if name not in environment and not (has_keys and name in KEYS)
    }


def added_settings() -> dict[str, str]:
    """Return the given settings that count in this process."""
    return missing_in(os.environ, _given)
