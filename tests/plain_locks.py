"""The environment of programs that a test interrupts.

Locks that record their order are Python code, in which the exception of a signal handler (Ctrl-C's KeyboardInterrupt
too) can leave them taken. The compiled locks of production cannot be left so.
"""

import os


def plain_locks() -> dict[str, str]:
    """Return the environment as it is now, without the recording of locks."""
    return {name: value for name, value in os.environ.items() if name != "MQLAKE_RECORD_LOCKS"}
