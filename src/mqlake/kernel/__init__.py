"""The hot byte loops: compiled or, on request, in plain Python.

`KERNEL` says which of the two runs. A normal build is compiled. A build with MQLAKE_PURE=1 has no compiled kernel, and
MQLAKE_KERNEL=pure selects the plain one at run time. The plain kernel warns when it is loaded: it is correct, and slow.
"""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mqlake.kernel import _compiled as chosen

    KERNEL = "compiled"
else:
    try:
        if os.environ.get("MQLAKE_KERNEL") == "pure":
            raise ImportError("MQLAKE_KERNEL=pure")
        from mqlake.kernel import _compiled as chosen

        KERNEL = "compiled"
    except ImportError as reason:
        from mqlake.kernel import reference as chosen

        KERNEL = "pure"
        warnings.warn(
            f"mqlake runs on its plain Python kernel, which is many times slower ({reason})",
            RuntimeWarning,
            stacklevel=2,
        )

Appender = chosen.Appender
Command = chosen.Command
Ends = chosen.Ends
GroupCommit = chosen.GroupCommit
Message = chosen.Message
PutReceipt = chosen.PutReceipt
StoredRecord = chosen.StoredRecord
TopicState = chosen.TopicState
check_index = chosen.check_index
check_record = chosen.check_record
checksum_blocks = chosen.checksum_blocks
count_valid_entries = chosen.count_valid_entries
crc32 = chosen.crc32
decode_commands = chosen.decode_commands
decode_properties = chosen.decode_properties
dispatch_records = chosen.dispatch_records
encode_command = chosen.encode_command
encode_head = chosen.encode_head
encode_record = chosen.encode_record
find_deliveries = chosen.find_deliveries
find_index_key = chosen.find_index_key
find_messages = chosen.find_messages
find_record = chosen.find_record
first_index_entry = chosen.first_index_entry
gather_records = chosen.gather_records
index_entries_hold = chosen.index_entries_hold
java_hash = chosen.java_hash
link_index_entries = chosen.link_index_entries
lock_memory = chosen.lock_memory
lowest_place = chosen.lowest_place
match_index_keys = chosen.match_index_keys
match_packed = chosen.match_packed
messages_of_batch = chosen.messages_of_batch
pack_records = chosen.pack_records
pack_timer_units = chosen.pack_timer_units
pick_columns = chosen.pick_columns
populate = chosen.populate
put_index_keys = chosen.put_index_keys
read_records = chosen.read_records
read_timers = chosen.read_timers
scan_columns = chosen.scan_columns
seek_timestamp = chosen.seek_timestamp
select_entries = chosen.select_entries
take_due = chosen.take_due
survey_packed = chosen.survey_packed
survey_records = chosen.survey_records
sync_file_system = chosen.sync_file_system
unlock_memory = chosen.unlock_memory
walk_records = chosen.walk_records
write_to_files = chosen.write_to_files
