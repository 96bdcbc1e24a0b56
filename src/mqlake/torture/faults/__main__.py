"""`python -m mqlake.torture.faults TOOL …`: run one tool."""

import importlib
import sys

TOOLS = ("failsync", "powercut", "smalldisk", "damage", "wrongclock")

if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in TOOLS:
        raise SystemExit(f"usage: python -m mqlake.torture.faults {{{'|'.join(TOOLS)}}} …   (each has --help)")
    tool = importlib.import_module(f"mqlake.torture.faults.{sys.argv.pop(1)}")
    raise SystemExit(tool.main(sys.argv[1:]))
