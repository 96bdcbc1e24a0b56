# The values that puts and reads make by the million: a message that goes in, a receipt, a record that comes out.

cimport cython

from mqlake.errors import InvalidMessage
from mqlake.kernel.delays import delay_properties
from mqlake.kernel.hosts import pack_host

from cpython.ref cimport PyObject

cdef extern from "Python.h":
    ctypedef object (*newfunc)(type kind, object arguments, PyObject* keywords)
    ctypedef struct PyTypeObject:
        newfunc tp_new

cdef extern from "time.h" nogil:
    ctypedef long time_t
    cdef struct timespec:
        time_t tv_sec
        long tv_nsec
    int clock_gettime(int clock, timespec* result)
    const int CLOCK_REALTIME

cdef str KEYS = "KEYS"
cdef str TAGS = "TAGS"


cdef inline int64_t now_ms() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_REALTIME, &now)
    return <int64_t> now.tv_sec * 1000 + now.tv_nsec // 1000000


@cython.no_gc                   # texts, numbers and a body: no cycle leads through it
@cython.freelist(64)
cdef class Message:
    """A message to be stored. `tags` and `keys` are written as the properties that RocketMQ knows them by."""

    cdef public object topic
    cdef public object body
    cdef public object queue_id
    cdef public dict properties
    cdef public int32_t flag
    cdef public int32_t sys_flag
    cdef public int64_t born_timestamp
    cdef public object born_host
    cdef public int32_t reconsume_times
    cdef public int64_t prepared_offset

    def __init__(self, topic, body, *, tags=None, keys=(), queue_id=None, properties=None, flag=0, sys_flag=0,
                 born_timestamp=None, born_host=None, reconsume_times=0, prepared_offset=0, deliver_at=None,
                 delay_s=None, delay_level=None):
        """`keys` is one key or several; `queue_id` None takes the topic's queues in turn; `sys_flag` is RocketMQ's.

        One of `deliver_at` (a datetime, or milliseconds since 1970), `delay_s` and `delay_level` says when it is to be
        delivered: see `kernel/delays.py`.
        """
        self.topic = topic
        self.body = body
        self.queue_id = queue_id
        self.properties = {} if properties is None else dict(properties)
        if keys:
            self.properties[KEYS] = keys if type(keys) is str else join_keys(keys)
        if tags:
            self.properties[TAGS] = tags
        if deliver_at is not None or delay_s is not None or delay_level is not None:
            self.properties.update(delay_properties(deliver_at, delay_s, delay_level))
        self.flag = <int32_t> whole_number("flag", flag, INT32_MAX)
        self.sys_flag = <int32_t> whole_number("sys_flag", sys_flag, INT32_MAX)
        self.born_timestamp = now_ms() if born_timestamp is None else whole_number("born_timestamp", born_timestamp, INT64_MAX)
        self.born_host = born_host
        self.reconsume_times = <int32_t> whole_number("reconsume_times", reconsume_times, INT32_MAX)
        self.prepared_offset = whole_number("prepared_offset", prepared_offset, INT64_MAX)

    @property
    def tags(self):
        return self.properties.get(TAGS)

    @property
    def keys(self):
        return split_keys(self.properties)

    def __repr__(self):
        return f"Message({self.topic!r}, {len(self.body)} bytes, queue_id={self.queue_id}, {self.properties!r})"


cdef int64_t whole_number(str field, value, int64_t most) except? -1:
    """A number that fits into its field of a record: a signed int32 or int64."""
    if not isinstance(value, int) or not -most - 1 <= value <= most:
        raise InvalidMessage(field, repr(value), f"a whole number in [{-most - 1}, {most}]")
    return value


cdef str join_keys(keys):
    """Keys as the KEYS property holds them: separated by one space."""
    cdef list parts = list(keys)
    for key in parts:
        if not isinstance(key, str) or not key or " " in key:
            raise InvalidMessage("keys", repr(key), "keys that are not empty and hold no space: spaces separate them")
    return " ".join(parts)


cdef list split_keys(dict properties):
    return [key for key in properties.get(KEYS, "").split(" ") if key]


@cython.no_gc
@cython.freelist(64)
cdef class PutReceipt:
    """What a put answers: where the message is, and how safe."""

    cdef readonly object topic
    cdef readonly int32_t queue_id
    cdef readonly int64_t queue_offset
    cdef readonly int64_t physical_offset
    cdef readonly int64_t size
    cdef readonly int64_t store_timestamp
    cdef readonly object durability
    cdef readonly bytes store_host

    def __init__(self, topic, queue_id, queue_offset, physical_offset, size, store_timestamp, durability, store_host):
        self.topic = topic
        self.queue_id = queue_id
        self.queue_offset = queue_offset
        self.physical_offset = physical_offset
        self.size = size
        self.store_timestamp = store_timestamp
        self.durability = durability
        self.store_host = store_host

    @property
    def end(self):
        """The offset just behind the record."""
        return self.physical_offset + self.size

    @property
    def message_id(self):
        """RocketMQ's offset message id, as a broker returns it to a producer."""
        return (self.store_host + self.physical_offset.to_bytes(8, "big")).hex().upper()

    def __reduce__(self):
        return PutReceipt, (self.topic, self.queue_id, self.queue_offset, self.physical_offset, self.size,
                            self.store_timestamp, self.durability, self.store_host)

    def __eq__(self, other):
        return isinstance(other, PutReceipt) and self.__reduce__() == other.__reduce__()

    def __hash__(self):
        return hash(self.__reduce__()[1])

    def __repr__(self):
        return (f"PutReceipt({self.topic!r}, queue_id={self.queue_id}, queue_offset={self.queue_offset}, "
                f"physical_offset={self.physical_offset}, size={self.size}, {self.durability!r})")


@cython.no_gc
cdef class StoredRecord:
    """One record's bytes, copied out of the log. Its header is parsed when it is made, and it must be whole."""

    cdef readonly bytes record
    cdef Record r
    cdef object known_topic
    cdef object known_properties

    def __init__(self, bytes record not None):
        self.record = record
        cdef int64_t size = parse(<const uint8_t*> PyBytes_AS_STRING(record), len(record), -1, False, &self.r)
        if size != len(record):
            raise ValueError(f"not one whole record: {size}")

    @property
    def topic(self):
        if self.known_topic is None:
            self.known_topic = self.record[self.r.topic_at:self.r.topic_at + self.r.topic_size].decode("utf-8", "replace")
        return self.known_topic

    @property
    def properties(self):
        """The properties as a dict."""
        if self.known_properties is None:
            at = self.r.properties_at
            self.known_properties = decode_properties(self.record[at:at + self.r.properties_size])
        return self.known_properties

    @property
    def tags(self):
        return self.properties.get(TAGS)

    @property
    def keys(self):
        return split_keys(self.properties)

    @property
    def raw_body(self):
        """The body as stored: compressed where `sys_flag` says so."""
        return self.record[self.r.body_at:self.r.body_at + self.r.body_size]

    @property
    def size(self):
        """Bytes of the whole record."""
        return self.r.size

    @property
    def queue_id(self):
        return self.r.queue_id

    @property
    def queue_offset(self):
        return self.r.queue_offset

    @property
    def physical_offset(self):
        return self.r.physical_offset

    @property
    def flag(self):
        return self.r.flag

    @property
    def sys_flag(self):
        return self.r.sys_flag

    @property
    def born_timestamp(self):
        return self.r.born_timestamp

    @property
    def store_timestamp(self):
        return self.r.store_timestamp

    @property
    def born_address(self):
        """The producer's host as the record holds it: 8 or 20 bytes."""
        return self.record[self.r.born_host_at:self.r.store_host_at - 8]

    @property
    def store_address(self):
        """The store's host as the record holds it: 8 or 20 bytes."""
        return self.record[self.r.store_host_at:self.r.body_at - 16]

    @property
    def reconsume_times(self):
        return self.r.reconsume_times

    @property
    def prepared_offset(self):
        return self.r.prepared_offset

    @property
    def body_crc(self):
        return self.r.body_crc

    def __reduce__(self):
        return type(self), (self.record,)

    def __eq__(self, other):
        return isinstance(other, StoredRecord) and self.record == (<StoredRecord> other).record

    def __hash__(self):
        return hash(self.record)


cdef StoredRecord stored_record(object kind, const uint8_t* p, Record* r):
    """An object of `kind`, a subclass of StoredRecord, for a record that was just parsed."""
    cdef StoredRecord made = <StoredRecord> (<PyTypeObject*> kind).tp_new(<type> kind, (), NULL)
    made.record = PyBytes_FromStringAndSize(<const char*> p, r.size)
    made.r = r[0]
    return made
