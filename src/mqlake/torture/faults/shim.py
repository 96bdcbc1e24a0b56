"""The preload shims: shared objects between a program and libc. They are built with the package."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path


class NoShim(RuntimeError):
    """The package was built without its compiled parts, so calls cannot be made to fail."""


def shim(name: str) -> Path:
    """Return the shared object built from `<name>.c`."""
    built = Path(__file__).with_name(f"_{name}{sysconfig.get_config_var('EXT_SUFFIX')}")
    if not built.exists():
        raise NoShim(f"{built.name} was not built; install mqlake with a C compiler and without MQLAKE_PURE")
    return built


def preloaded(shim_path: Path, variables: dict[str, str], base: dict[str, str] | None = None) -> dict[str, str]:
    """Return an environment that loads the shim. Shims that are already in `base` come first and so act first."""
    env = dict(os.environ if base is None else base)
    env["LD_PRELOAD"] = ":".join(filter(None, [env.get("LD_PRELOAD"), str(shim_path)]))
    return env | variables
