"""Run a program whose wall clock is wrong, and set it while the program runs.

    python -m mqlake.torture.faults wrongclock --file clock --ahead 864000 -- CMD …

In a test: `clock = WrongClock(tmp_path / "clock")`, `subprocess.Popen(cmd, env=clock.env())`, `clock.set(864_000)`.
"""

from __future__ import annotations

import argparse
import os
import struct
from pathlib import Path

from mqlake.torture.faults.shim import preloaded, shim

OFFSET = struct.Struct("=q")


class WrongClock:
    """The file that says by how much the wall clock of the programs that have it is wrong. Right at first."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.write_bytes(OFFSET.pack(0))

    def set(self, ahead_s: float) -> None:
        """Put the clock ahead by so many seconds, back if it is negative; 0 sets it right."""
        with self.path.open("r+b") as file:
            file.write(OFFSET.pack(int(ahead_s * 1000)))

    def env(self, base: dict[str, str] | None = None) -> dict[str, str]:
        """Return the environment of a program that has this clock."""
        return preloaded(shim("wrongclock"), {"WRONGCLOCK_FILE": str(self.path)}, base)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="wrongclock", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--file", type=Path, required=True, help="8 bytes, milliseconds: write to it to set the clock")
    parser.add_argument("--ahead", type=float, default=0.0, help="seconds; negative for a clock that is behind")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="-- CMD …")
    args = parser.parse_args(argv)
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not command:
        parser.error("no command given after --")
    clock = WrongClock(args.file)
    clock.set(args.ahead)
    os.execvpe(command[0], command, clock.env())
