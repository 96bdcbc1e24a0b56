"""Tools that break a disk in known ways: failing calls, power cuts, small disks, damaged files. See README.md."""
