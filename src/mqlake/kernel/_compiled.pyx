# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False, freethreading_compatible=False
"""The hot loops of the store, compiled: functions over buffers, one file a subject.

Every function has a plain twin of the same name in `mqlake.kernel.reference`, which defines what it does; property
tests hold the two together, on random and on malformed input. Nothing here keeps a file open; the only state
is the write position of the log and how far it is durable, because that is what a put moves and waits for.
A length found in a record is checked against the bytes at hand before it moves a cursor. Loops over many records
release the interpreter lock.
"""

include "bytes.pxi"       # big-endian numbers, buffers, CRC, Java's string hash
include "record.pxi"      # one record: its parts, and whether it is valid
include "message.pxi"     # the values: a message, a receipt, a stored record
include "window.pxi"      # bytes of the log by their offset
include "encode.pxi"      # a message as a record
include "ends.pxi"        # how far the log is appended, durable, dispatched; waiting for it
include "append.pxi"      # the core of a put
include "commit.pxi"      # group commit: which thread syncs, which wait
include "find.pxi"        # the next whole record after damage
include "dispatch.pxi"    # a stretch of the log -> consume-queue entries and index keys
include "texts.pxi"       # UTF-8 made valid, hosts as text, texts by number
include "columns.pxi"     # a stretch of the log -> Arrow columns: check, number, measure,
include "columns_fill.pxi"  # and fill
include "pack.pxi"        # Arrow columns -> packed records, and their destinations
include "queue.pxi"       # consume-queue entries: how many are valid, the records they point at
include "gather.pxi"      # the records of queue entries as one run of bytes
include "index.pxi"       # the hash index: put and look up
include "lookup.pxi"      # a key -> its messages
include "timer.pxi"       # messages that wait for their time
include "verify.pxi"      # whether the log and an index file are valid
include "seals.pxi"       # checksums of blocks of the log
include "memory.pxi"      # warm-up and locking of mapped pages
include "remoting.pxi"    # frames of the remoting protocol
