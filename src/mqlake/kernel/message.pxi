# The values that puts and reads create by the million: a message to put, a receipt, a record that was read.

cimport cython

from collections.abc import Iterable

from mqlake.errors import InvalidMessage
from mqlake.kernel.delays import delay_properties
from mqlake.kernel.hosts import pack_host

from cpython.ref cimport PyObject
from cpython.unicode cimport PyUnicode_DecodeUTF8

cdef extern from "Python.h":
    ctypedef object (*newfunc)(type kind, object arguments, PyObject* keywords)
    ctypedef struct PyTypeObject:
        newfunc tp_new
    int PyType_IsSubtype(PyTypeObject* kind, PyTypeObject* base)

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


@cython.no_gc                   # safe: it holds texts, numbers and a body, which cannot form a cycle
@cython.freelist(64)
cdef class Message:
    """Message(topic, body, *, tags=None, keys=(), queue_id=None, properties=None, flag=0, sys_flag=0, \
born_timestamp=None, born_host=None, reconsume_times=0, prepared_offset=0, deliver_at=None, delay_s=None, \
delay_level=None)
--

A message to be stored. `tags` and `keys` are written as the properties that RocketMQ knows them by.

    topic            where it goes; a topic is made with its first message
    body             bytes
    tags             one tag, for filters
    keys             one key or several, for look-ups
    queue_id         the topic's queue; None takes the queues in turn
    properties       names and values, all of type str
    deliver_at       deliver it at this time: a datetime, or milliseconds since 1970
    delay_s          deliver it after so many seconds
    delay_level      deliver it after RocketMQ's delay of this level; of these three at most one is given
    flag, sys_flag, born_timestamp, born_host, reconsume_times, prepared_offset
                     fields of a record, for copies of messages
"""
    # The first lines are what `inspect.signature` reads of a compiled class.

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

        One of `deliver_at` (a datetime, or milliseconds since 1970), `delay_s` and `delay_level` sets when it is
        delivered: see `kernel/delays.py`.
        """
        self.topic = topic
        self.body = body
        self.queue_id = queue_id
        self.properties = {} if properties is None else dict(properties)
        if keys or isinstance(keys, int):  # 0 is no key, but it was meant as one
            self.properties[KEYS] = keys if type(keys) is str else join_keys(keys)
        if tags is not None:
            if not isinstance(tags, str):
                raise InvalidMessage("tags", repr(tags), "one tag of type str")
            if tags:
                self.properties[TAGS] = tags
        if deliver_at is not None or delay_s is not None or delay_level is not None:
            self.properties.update(delay_properties(deliver_at, delay_s, delay_level))
        self.flag = <int32_t> whole_number("flag", flag, INT32_MAX)
        self.sys_flag = <int32_t> whole_number("sys_flag", sys_flag, INT32_MAX)
        self.born_timestamp = now_ms() if born_timestamp is None \
            else whole_number("born_timestamp", born_timestamp, INT64_MAX)
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
        # a body of another type is refused by put, and must be shown until then
        size = f"{len(self.body)} bytes" if hasattr(self.body, "__len__") else repr(self.body)
        return f"Message({self.topic!r}, {size}, queue_id={self.queue_id}, {self.properties!r})"


cdef int64_t whole_number(str field, value, int64_t most) except? -1:
    """Return a number if it fits into its field of a record, a signed int32 or int64; else raise InvalidMessage."""
    if not isinstance(value, int) or not -most - 1 <= value <= most:
        raise InvalidMessage(field, repr(value), f"a whole number in [{-most - 1}, {most}]")
    return value


cdef str join_keys(keys):
    """Join keys as the KEYS property holds them: separated by one space."""
    cdef list parts
    if isinstance(keys, str):
        return keys
    if isinstance(keys, bytes) or not isinstance(keys, Iterable):
        raise InvalidMessage("keys", repr(keys), "one key or several, each of type str")
    parts = list(keys)
    for key in parts:
        if not isinstance(key, str):
            raise InvalidMessage("keys", repr(key), "keys of type str")
        if not key or " " in key:
            raise InvalidMessage("keys", repr(key), "keys that are not empty and hold no space: spaces separate them")
    return " ".join(parts)


cdef list split_keys(dict properties):
    return [key for key in properties.get(KEYS, "").split(" ") if key]


@cython.no_gc
@cython.freelist(64)
cdef class PutReceipt:
    """PutReceipt(topic, queue_id, queue_offset, physical_offset, size, store_timestamp, durability, store_host)
--

The result of a put: where the message is, and how durable."""

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
        """The physical offset after the record."""
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


cdef uint8_t NO_RECORD[FIXED_SIZE]  # zeros: what an object without a record reads


@cython.no_gc                   # safe: it holds bytes, texts and a dict of texts, which cannot form a cycle
cdef class StoredRecord:
    """One record's bytes, copied from the log. The header is parsed at creation, and the record must be whole.

    Records that are read together share one bytes object, so that a batch costs one allocation; `p` points into it.
    Only positions that depend on lengths are kept; a field is decoded from the bytes when it is read.
    """

    cdef bytes shared
    cdef const uint8_t* p
    cdef int32_t record_size
    cdef int32_t store_host_at
    cdef int32_t body_at
    cdef int32_t body_size
    cdef int32_t topic_at
    cdef int32_t topic_size
    cdef int32_t properties_at
    cdef object known_topic
    cdef object known_properties

    def __cinit__(self):
        # `__new__` alone leaves an object without a record. All its positions lie inside NO_RECORD and all sizes are 0,
        # so every property reads valid memory.
        self.p = NO_RECORD
        self.store_host_at = BORN_HOST_AT + 16
        self.body_at = FIXED_SIZE - 3

    def __init__(self, bytes record not None):
        cdef Record r
        cdef int64_t size = parse(<const uint8_t*> PyBytes_AS_STRING(record), len(record), -1, False, &r)
        if size != len(record):
            raise ValueError(f"not one whole record: {size}")
        self.take(record, <const uint8_t*> PyBytes_AS_STRING(record), &r)

    cdef void take(self, bytes shared, const uint8_t* p, Record* r) noexcept:
        """Become the record at `p` in `shared`. A record's size is an int32, so every position inside it fits too."""
        self.shared = shared
        self.p = p
        self.record_size = <int32_t> r.size
        self.store_host_at = r.store_host_at
        self.body_at, self.body_size = <int32_t> r.body_at, <int32_t> r.body_size
        self.topic_at, self.topic_size = <int32_t> r.topic_at, r.topic_size
        self.properties_at = <int32_t> r.properties_at

    @property
    def record(self):
        """The record's bytes. The first access copies them out of the bytes object that the batch shares."""
        if self.shared is None:
            return b""
        if len(self.shared) != self.record_size:
            # Copy before `shared` is replaced: it may be all that keeps `p` valid.
            own = PyBytes_FromStringAndSize(<const char*> self.p, self.record_size)
            self.p = <const uint8_t*> PyBytes_AS_STRING(own)
            self.shared = own
        return self.shared

    @property
    def topic(self):
        if self.known_topic is None:
            self.known_topic = PyUnicode_DecodeUTF8(<const char*> self.p + self.topic_at, self.topic_size, "replace")
        return self.known_topic

    @property
    def properties(self):
        """The properties as a dict."""
        if self.known_properties is None:
            size = self.record_size - self.properties_at
            self.known_properties = properties_of(self.p + self.properties_at, size)
        return self.known_properties

    @property
    def tags(self):
        return self.properties.get(TAGS)

    @property
    def keys(self):
        return split_keys(self.properties)

    @property
    def raw_body(self):
        """The body as stored, compressed if `sys_flag` says so."""
        return PyBytes_FromStringAndSize(<const char*> self.p + self.body_at, self.body_size)

    @property
    def size(self):
        """Bytes of the whole record."""
        return self.record_size

    @property
    def queue_id(self):
        return get32(self.p + QUEUE_ID_AT)

    @property
    def queue_offset(self):
        return get64(self.p + QUEUE_OFFSET_AT)

    @property
    def physical_offset(self):
        return get64(self.p + PHYSICAL_OFFSET_AT)

    @property
    def flag(self):
        return get32(self.p + FLAG_AT)

    @property
    def sys_flag(self):
        return get32(self.p + SYS_FLAG_AT)

    @property
    def born_timestamp(self):
        return get64(self.p + BORN_TIMESTAMP_AT)

    @property
    def store_timestamp(self):
        return get64(self.p + self.store_host_at - 8)

    @property
    def born_address(self):
        """The producer's host as the record holds it: 8 or 20 bytes."""
        return PyBytes_FromStringAndSize(<const char*> self.p + BORN_HOST_AT, self.store_host_at - 8 - BORN_HOST_AT)

    @property
    def store_address(self):
        """The store's host as the record holds it: 8 or 20 bytes."""
        return PyBytes_FromStringAndSize(<const char*> self.p + self.store_host_at,
                                         self.body_at - 16 - self.store_host_at)

    @property
    def reconsume_times(self):
        return get32(self.p + self.body_at - 16)

    @property
    def prepared_offset(self):
        return get64(self.p + self.body_at - 12)

    @property
    def body_crc(self):
        return get32(self.p + BODY_CRC_AT)

    def __reduce__(self):
        return type(self), (self.record,)

    def __eq__(self, other):
        return isinstance(other, StoredRecord) and self.record == other.record

    def __hash__(self):
        return hash(self.record)


cdef int require_kind(kind) except -1:
    """Raise TypeError unless `kind` is a StoredRecord: only its objects have the fields that `take` fills in."""
    if not isinstance(kind, type) or not PyType_IsSubtype(<PyTypeObject*> kind, <PyTypeObject*> StoredRecord):
        raise TypeError(f"{kind!r} is not a StoredRecord")
    return 0


cdef StoredRecord stored_record(object kind, bytes shared, const uint8_t* p, Record* r):
    """Create an object of `kind`, which `require_kind` checked, for the parsed record at `p` in `shared`."""
    cdef StoredRecord made = <StoredRecord> (<PyTypeObject*> kind).tp_new(<type> kind, (), NULL)
    made.take(shared, p, r)
    return made
