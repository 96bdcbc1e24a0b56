"""`python -m mqlake` is the `mqlake` command."""

from mqlake.cli.main import main

main()
