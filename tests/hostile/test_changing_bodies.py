"""A body that another thread changes while it is put: what was acknowledged can be read, and a crash loses nothing."""

from __future__ import annotations

import json
from pathlib import Path

from mqlake import MessageStore, RetentionConfig
from tests.hostile.programs import kill, line_of, start

PUTS = """
import json
store = MessageStore.open(
    path, commit_log=CommitLogConfig(file_size_bytes=64 << 20), retention=RetentionConfig(enabled=False)
)
body, stop = bytearray(1 << 20), threading.Event()
part = memoryview(body)[1000:1_000_000]

def change():
    for number in range(10**9):
        if stop.is_set():
            return
        part[:] = bytes([number % 251]) * len(part)

threads = [threading.Thread(target=change) for _ in range(2)]
for thread in threads:
    thread.start()
acknowledged = []
for number in range(30):
    acknowledged.append(store.put(Message("changing", body, queue_id=0)).physical_offset)
    acknowledged.append(store.put(Message("steady", b"%d" % number, queue_id=0)).physical_offset)
    acknowledged += [each.physical_offset for each in store.put_many([Message("changing", body, queue_id=0)])]
with store.transaction() as transaction:
    transaction.put(Message("changing", body, queue_id=0))
stop.set()
for thread in threads:
    thread.join()
for offset in acknowledged:
    store.get(offset).body
print(json.dumps(acknowledged), flush=True)
signal.pause()
"""


def test_every_acknowledged_record_can_be_read_although_its_body_was_changed_meanwhile(tmp_path: Path) -> None:
    process = start(PUTS, tmp_path)
    acknowledged = json.loads(line_of(process))
    kill(process)
    with MessageStore.open(tmp_path, retention=RetentionConfig(enabled=False)) as store:
        for offset in acknowledged:
            assert store.get(offset).physical_offset == offset
        assert [m.body for m in store.read("steady", limit=100)] == [b"%d" % number for number in range(30)]
        assert len(store.read("changing", limit=100, max_bytes=1 << 40)) == 61
        assert store.stats().damage == ()
