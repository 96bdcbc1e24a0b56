"""`mqlake torture`: break stores in known ways, open what is left, and count what was lost.

Each row of the table is one module with its faults and its rules. `writer.py` is the program that gets broken,
`ledger.py` records what it was promised, `judge.py` opens what is left of the store and compares, `run.py` divides the
time and adds up. `faults/` holds the tools: failing calls, power cuts, small disks. They know nothing of the store.
"""
