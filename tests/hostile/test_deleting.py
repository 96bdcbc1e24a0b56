"""A topic can be deleted at any moment: beside transactions, delayed messages and large puts, and over a crash."""

from __future__ import annotations

import json
from pathlib import Path

from mqlake import MessageStore
from tests.hostile.programs import kill, line_of, run, start

BESIDE_TRANSACTIONS = """
store = open_small(path)
stop = threading.Event()

def commit():
    while not stop.is_set():
        with store.transaction() as transaction:
            transaction.put(Message("orders", b"later", delay_level=1))
            transaction.put(Message("orders", b"now"))

threads = [threading.Thread(target=commit, daemon=True) for _ in range(4)]
for thread in threads:
    thread.start()
deadline, deleted = time.monotonic() + 2.0, 0
while time.monotonic() < deadline:
    try:
        store.delete_topic("orders")
        deleted += 1
    except UnknownTopic:
        pass
stop.set()
for thread in threads:
    thread.join(10)
    assert not thread.is_alive(), "a commit hangs"
assert deleted, "no deletion came to an end"
assert store.wait_dispatched(10), "dispatch hangs"
store.put(message(1, "others"))
assert store.read("others", wait_s=5)
store.close()
"""


def test_deleting_a_topic_beside_commits_of_delayed_messages_never_hangs(tmp_path: Path) -> None:
    run(BESIDE_TRANSACTIONS, tmp_path, limit_s=15)


BESIDE_LARGE_PUTS = """
import json
store = MessageStore.open(
    path,
    commit_log=CommitLogConfig(file_size_bytes=64 << 20),
    consume_queue=ConsumeQueueConfig(file_size_bytes=2000, queues_per_topic=1),
    retention=RetentionConfig(enabled=False),
)
body = bytes(4 << 20)
receipts, permits = [], threading.Semaphore(0)

def put():
    while True:
        permits.acquire()
        receipt = store.put(Message("large", body, queue_id=0))
        receipts.append((receipt.physical_offset, receipt.queue_offset))

for _ in range(3):
    threading.Thread(target=put, daemon=True).start()
permits.release(196)
while len(receipts) < 190:
    seen = len(receipts)
    assert eventually(lambda: len(receipts) > seen + 3)
    try:
        store.delete_topic("large")  # puts go on meanwhile
    except UnknownTopic:  # those that were seen are not dispatched yet
        pass
permits.release(4)
assert eventually(lambda: len(receipts) == 200), len(receipts)
store.flush()
assert store.wait_dispatched()
found = store.read("large", limit=200, max_bytes=1 << 40)
print(json.dumps([sorted(receipts), [(m.physical_offset, m.queue_offset) for m in found]]), flush=True)
time.sleep(60)
"""


def lives(receipts: list[list[int]]) -> list[list[list[int]]]:
    """Split receipts, in the order of the log, where queue offsets begin again."""
    found: list[list[list[int]]] = [[]]
    for receipt in receipts:
        if receipt[1] == 0 and found[-1]:
            found.append([])
        found[-1].append(receipt)
    return found


def test_a_topic_deleted_during_large_puts_begins_again_at_queue_offset_0_and_loses_nothing(tmp_path: Path) -> None:
    process = start(BESIDE_LARGE_PUTS, tmp_path)
    receipts, read = json.loads(line_of(process))
    kill(process)
    for life in lives(receipts):
        assert [queue_offset for _, queue_offset in life] == list(range(len(life))), life
    newest = lives(receipts)[-1]
    assert read == newest, "every message of its newest life is in the queue, and none of the old ones"
    with MessageStore.open(tmp_path) as store:
        found = store.read("large", limit=200, max_bytes=1 << 40)
        assert [[m.physical_offset, m.queue_offset] for m in found] == newest
