"""`mqlake torture`: breaks stores in known ways, opens what is left, and counts what was lost.

One module a row of the table, with its faults and its rules. `writer.py` is the program that is broken, `ledger.py`
its word on what it was promised, `judge.py` opens what is left of the store and compares, `run.py` spends the time and
adds up. `faults/` are the tools: failing calls, power cuts, small disks; they know nothing of the store.
"""
