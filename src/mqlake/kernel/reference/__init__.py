"""The definition of the kernel: plain Python, checked by eye against docs/format.md, never tuned.

Each module has the name of its compiled twin. The store runs on this kernel if the compiled one is not built, or if
MQLAKE_KERNEL=pure asks for it, and the tests compare the compiled kernel with it.
"""

from mqlake.kernel.reference.append import Appender, TopicState
from mqlake.kernel.reference.columns import pick_columns, scan_columns
from mqlake.kernel.reference.commit import GroupCommit
from mqlake.kernel.reference.dispatch import dispatch_records
from mqlake.kernel.reference.encode import encode_record
from mqlake.kernel.reference.ends import Ends
from mqlake.kernel.reference.find import find_record
from mqlake.kernel.reference.gather import gather_records
from mqlake.kernel.reference.hashing import crc32, java_hash
from mqlake.kernel.reference.index import find_index_key, index_entries_hold, link_index_entries, put_index_keys
from mqlake.kernel.reference.lookup import find_messages
from mqlake.kernel.reference.memory import lock_memory, populate, sync_file_system, unlock_memory, write_to_files
from mqlake.kernel.reference.message import Message, PutReceipt, StoredRecord
from mqlake.kernel.reference.pack import match_packed, pack_records, survey_packed
from mqlake.kernel.reference.queue import count_valid_entries, read_records, seek_timestamp, select_entries
from mqlake.kernel.reference.record import check_record, decode_properties, walk_records
from mqlake.kernel.reference.remoting import Command, decode_commands, encode_command, encode_head, messages_of_batch
from mqlake.kernel.reference.seals import checksum_blocks
from mqlake.kernel.reference.timer import find_deliveries, lowest_place, pack_timer_units, read_timers, take_due
from mqlake.kernel.reference.verify import check_index, first_index_entry, match_index_keys, survey_records

__all__ = [
    "Appender",
    "Command",
    "Ends",
    "GroupCommit",
    "Message",
    "PutReceipt",
    "StoredRecord",
    "TopicState",
    "check_index",
    "check_record",
    "checksum_blocks",
    "count_valid_entries",
    "crc32",
    "decode_commands",
    "decode_properties",
    "dispatch_records",
    "encode_command",
    "encode_head",
    "encode_record",
    "find_deliveries",
    "find_index_key",
    "find_messages",
    "find_record",
    "first_index_entry",
    "gather_records",
    "index_entries_hold",
    "java_hash",
    "link_index_entries",
    "lock_memory",
    "lowest_place",
    "match_index_keys",
    "match_packed",
    "messages_of_batch",
    "pack_records",
    "pack_timer_units",
    "pick_columns",
    "populate",
    "put_index_keys",
    "read_records",
    "read_timers",
    "scan_columns",
    "seek_timestamp",
    "select_entries",
    "survey_packed",
    "survey_records",
    "sync_file_system",
    "take_due",
    "unlock_memory",
    "walk_records",
    "write_to_files",
]
