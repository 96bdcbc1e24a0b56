# The core of a put: assign a queue offset, write the record, return the receipt.


cdef class TopicState:
    """One topic: the next queue offset of each queue, the queue whose turn it is, and what was put since opening."""

    cdef readonly object name
    cdef public int32_t queue_count
    cdef public int32_t turn
    cdef readonly dict next_offsets
    cdef readonly int64_t put_count
    cdef readonly int64_t put_bytes
    cdef public bint retired
    """The topic was deleted or reconfigured: a put that holds this state must look its topic up again."""

    def __init__(self, name, queue_count):
        self.name = name
        self.queue_count = queue_count
        self.next_offsets = {}


cdef enum:
    MAX_PIN_MS = 10000          # if the clock is set back by less, the store time stays where it is


cdef struct Layout:             # a record's sizes and place, computed before it is written
    Py_ssize_t size
    Py_ssize_t properties_size
    int32_t queue_id
    int64_t queue_offset
    bint unnumbered             # prepared or rolled back: in no queue, without a queue offset
    bint in_turn                # the message names no queue


cdef struct Destination:        # one queue of a topic, or its queues in turn, for packed records
    int32_t slots               # its first place in `slot_of`
    int32_t queue_count         # 1 if the records name their queue
    int32_t queue_id            # -1 if the queues take turns
    int32_t turn
    int64_t record_count
    int64_t record_bytes


cdef class Appender:
    """The write position of the log.

    Appends are serial: a mutex is held from reading the position until it is advanced. A thread that finds the mutex
    taken releases the interpreter lock before it waits. So the holder may release and retake the interpreter lock, and
    copies a large body without it.

    The mutex keeps other threads out, but not this one: an allocation can start the garbage collector, and a finalizer
    can put. So between planning a record and advancing past it, nothing is allocated that the collector tracks;
    receipts, hosts and copies of bodies are made before.

    If an append needs more than a copy (the file or its reserved blocks are full, the appender is closed, a queue is
    written for the first time, the message names light queues or a delay), it changes nothing and returns None, and
    the caller takes the slow path.
    """

    cdef readonly Ends ends
    cdef readonly int64_t file_start
    cdef readonly Py_ssize_t position
    cdef readonly Py_ssize_t limit
    """Records must end before this position of the file: a store past its reserved blocks could raise SIGBUS."""
    cdef public object on_slow
    cdef readonly dict states
    cdef bytes store_host
    cdef int64_t max_body
    cdef bint append_crc
    cdef int64_t slow_ns
    cdef public int64_t last_timestamp
    """The newest store time: see `now`."""
    cdef public int64_t ahead_ms
    """How far the store's clock is ahead of the machine's: 0, unless a test moved it."""
    cdef public bint sets_delayed_aside
    """A message with a delay takes the slow path, unless the caller appends it `as_is`."""
    cdef bint is_open
    cdef Py_buffer target
    cdef bint has_target
    cdef pthread_mutex_t mutex

    def __cinit__(self):
        recursive_mutex_init(&self.mutex)

    def __init__(self, Ends ends not None, bytes store_host not None, int64_t max_body, bint append_crc,
                 int64_t slow_ns):
        self.ends = ends
        self.store_host = store_host
        self.max_body = max_body
        self.append_crc = append_crc
        self.slow_ns = slow_ns
        self.states = {}

    def __dealloc__(self):
        if self.has_target:
            PyBuffer_Release(&self.target)
        pthread_mutex_destroy(&self.mutex)

    cdef inline void lock(self) noexcept:
        """Take the mutex. Waiting with the interpreter lock held could deadlock: the holder may need it to finish."""
        if pthread_mutex_trylock(&self.mutex) != 0:
            with nogil:
                pthread_mutex_lock(&self.mutex)

    cdef inline void unlock(self) noexcept nogil:
        pthread_mutex_unlock(&self.mutex)

    def open(self, target, int64_t file_start, Py_ssize_t position, Py_ssize_t limit=-1):
        """Write to this buffer from `position` on. It holds the file that starts at `file_start`. `limit` is where its
        reserved blocks end; by default, all of it is reserved.
        """
        cdef Py_buffer view
        cdef Py_ssize_t size
        PyObject_GetBuffer(target, &view, PyBUF_WRITABLE)
        if not 0 <= position <= view.len or limit > view.len:
            size = view.len
            PyBuffer_Release(&view)
            raise ValueError(f"{position} is not inside {size} bytes")
        self.lock()
        if self.has_target:
            PyBuffer_Release(&self.target)
        self.target = view
        self.has_target = True
        self.file_start = file_start
        self.position = position
        self.limit = view.len if limit < 0 else limit
        self.is_open = True
        self.unlock()
        self.ends.move(APPENDED, file_start + position)

    def extend(self, int64_t file_start, Py_ssize_t limit):
        """Raise the limit of a file: more of its blocks are reserved. Do nothing if another file is written by now."""
        self.lock()
        if self.has_target and self.file_start == file_start and self.limit < limit <= self.target.len:
            self.limit = limit
        self.unlock()

    def close(self):
        """Make every append return None. When this returns, none is in progress: each holds the mutex throughout."""
        self.lock()
        self.is_open = False
        self.unlock()

    def release(self):
        """Close, and release the buffer."""
        self.lock()
        self.is_open = False
        if self.has_target:
            self.has_target = False
            PyBuffer_Release(&self.target)
        self.unlock()

    def reopen(self):
        """Continue where `close` stopped."""
        self.lock()
        self.is_open = self.has_target
        self.unlock()

    def retire(self, topic):
        """Remove a topic. When this returns, no append with its old state is in progress, and none follows."""
        self.lock()
        cdef TopicState state = self.states.pop(topic, None)
        if state is not None:
            state.retired = True
        self.unlock()
        return state

    def hold_visible(self):
        """Keep what is appended from now on invisible until `ends.release`. One holder at a time.

        Under the mutex, so that no append runs between reading the appended end and setting the hold there.
        """
        self.lock()
        try:
            self.ends.hold()
        finally:
            self.unlock()

    def size_of(self, Message message not None):
        """Return the size of a message as a record, in bytes."""
        cdef Py_ssize_t topic_size
        cdef int special
        cdef bytes born_host = born_host_of(message, self.store_host)
        PyUnicode_AsUTF8AndSize(message.topic, &topic_size)
        return record_size(len(born_host), len(self.store_host), topic_size, body_size(message),
                           measure_properties(message.properties, self.append_crc, &special))

    def append(self, Message message not None, durability, bint as_is=False, bint numbered_lights=False,
               bint while_closed=False):
        """Append one message. Return its receipt, or None if the slow path is needed.

        `as_is`: accept a delay. `numbered_lights`: its queue offsets in light queues are already set. `while_closed`:
        the caller closed the appender to keep others out.
        """
        cdef TopicState state = self.states.get(message.topic)
        cdef Layout layout
        cdef Py_buffer body
        cdef bytes born_host
        cdef PutReceipt receipt
        cdef bint placed
        if state is None:
            return None
        receipt = PutReceipt.__new__(PutReceipt)
        take_body(message, &body)
        try:
            self.require_size(body.len)
            born_host = born_host_of(message, self.store_host)
            self.lock()
            try:
                placed = self.place(message, state, born_host, &body, &layout, as_is, numbered_lights, while_closed,
                                    durability, receipt)
            finally:
                self.unlock()
        finally:
            PyBuffer_Release(&body)
        if not placed:
            return None
        self.after(layout.size, receipt.store_timestamp)
        return receipt

    cdef bint place(self, Message message, TopicState state, bytes born_host, Py_buffer* body, Layout* layout,
                    bint as_is, bint numbered_lights, bint while_closed, object durability,
                    PutReceipt receipt) except -1:
        """Plan, write and count one record. Return False if the slow path is needed. Called under the mutex."""
        cdef int64_t timestamp
        if state.retired or not self.plan(message, state, len(born_host), body.len, layout, as_is, numbered_lights):
            return False
        # 8 bytes must stay free after the record for the marker that closes the file.
        if not self.has_target or not (self.is_open or while_closed) or self.position + layout.size + 8 > self.limit:
            return False
        timestamp = self.now()
        self.write(message, born_host, body, layout, timestamp)
        self.enter(receipt, state, layout, timestamp, durability)
        # The record must be whole before its end is published: `move` stores with a full barrier.
        self.ends.move(APPENDED, self.file_start + self.position)
        return True

    def append_many(self, messages not None, durability, bint as_is=False):
        """Append messages one after the other. Return their receipts, or None, and then none was appended."""
        cdef list batch = list(messages)
        cdef Py_ssize_t count = len(batch)
        cdef Py_ssize_t index
        cdef Py_ssize_t total = 0
        cdef list bodies, hosts
        cdef list receipts = [PutReceipt.__new__(PutReceipt) for index in range(count)]
        cdef Layout* layouts
        for index in range(count):
            if not self.may_be_in_batch(batch[index]):
                return None
        bodies = [bytes_of(message.body) for message in batch]
        hosts = [born_host_of(message, self.store_host) for message in batch]
        layouts = <Layout*> malloc(max(count, 1) * sizeof(Layout))
        if layouts == NULL:
            raise MemoryError
        self.lock()
        try:
            total = self.place_batch(batch, bodies, hosts, layouts, as_is, durability, receipts)
        finally:
            self.unlock()
            free(layouts)
        if total < 0:
            return None
        self.after(total, (<PutReceipt> receipts[0]).store_timestamp if count else now_ms() + self.ahead_ms)
        return receipts

    cdef Py_ssize_t place_batch(self, list batch, list bodies, list hosts, Layout* layouts, bint as_is,
                                object durability, list receipts) except? -2:
        """Plan all of a batch, then write it. Return its size, or -1 if the slow path is needed. Under the mutex."""
        cdef Py_ssize_t count = len(batch)
        cdef Py_ssize_t index
        cdef Py_ssize_t total = 0
        cdef int64_t timestamp
        for index in range(count):
            if not self.plan_in_batch(batch[index], len(<bytes> hosts[index]), len(<bytes> bodies[index]),
                                      &layouts[index], as_is):
                return -1
            total += layouts[index].size
        if total > self.max_body + 65536:
            raise InvalidMessage("batch", f"{total} bytes in {count} records",
                                 f"at most {self.max_body + 65536} bytes (maxMessageSize and 64 KiB); put it in parts")
        if not self.is_open or self.position + total + 8 > self.limit:
            return -1
        timestamp = self.now()
        for index in range(count):
            self.write_in_batch(batch[index], hosts[index], bodies[index], &layouts[index], timestamp, durability,
                                receipts[index])
        # Once for the whole batch: the appended end never lies inside it, so no reader sees a part.
        self.ends.move(APPENDED, self.file_start + self.position)
        return total

    def append_packed(self, packed, Py_ssize_t position, bytes destination_of not None, list destinations not None,
                      int64_t timestamp, int keep):
        """Append packed records (pack.pxi) from `position` on, without the interpreter lock. Return where it stopped.

        It stops before a record that does not fit into the file, or whose kept queue offset is less than the queue's
        next one. The caller has closed the appender to keep others out, and passes the `destinations` of the records
        (each a topic's state and a queue id) and which of them each record has (`destination_of`): see
        `survey_packed`. All get one store time: `timestamp` if it is not before the last one, else now. `keep`: bit 1
        keeps their own queue offsets, bit 2 their own times.
        """
        cdef Py_buffer view
        cdef Destination* table = NULL
        cdef int32_t* slot_of = NULL
        cdef int64_t* next_offsets = NULL
        cdef Py_ssize_t count = len(destination_of) // 4
        cdef Py_ssize_t number
        cdef const int32_t* numbers = <const int32_t*> PyBytes_AS_STRING(destination_of)
        cdef list slots = []
        cdef list places = []
        if self.is_open:
            raise ValueError("the appender is open: others could append meanwhile")
        if not self.has_target:
            return position
        lay_destinations(destinations, slots, places, destination_of)
        PyObject_GetBuffer(packed, &view, PyBUF_SIMPLE)
        table = <Destination*> calloc(len(destinations) + 1, sizeof(Destination))
        slot_of = <int32_t*> malloc((len(places) + 1) * sizeof(int32_t))
        next_offsets = <int64_t*> malloc((len(slots) + 1) * sizeof(int64_t))
        try:
            if table == NULL or slot_of == NULL or next_offsets == NULL:
                raise MemoryError
            if not 0 <= position <= view.len:
                raise ValueError(f"{position} is not inside {view.len} bytes")
            for number in range(len(places)):
                slot_of[number] = places[number]
            for number in range(len(slots)):
                next_offsets[number] = (<TopicState> slots[number][0]).next_offsets[slots[number][1]]
            fill_destinations(table, destinations)
            self.lock()
            try:
                if timestamp == 0:
                    self.now()
                else:
                    self.last_timestamp = max(self.last_timestamp, timestamp)
                with nogil:
                    position = self.place_packed(<const uint8_t*> view.buf, position, view.len, numbers, count, table,
                                                 slot_of, next_offsets, keep)
                self.ends.move(APPENDED, self.file_start + self.position)
            finally:
                self.unlock()
            for number in range(len(slots)):
                (<TopicState> slots[number][0]).next_offsets[slots[number][1]] = next_offsets[number]
            for number in range(len(destinations)):
                count_destination(<TopicState> destinations[number][0], &table[number])
        finally:
            free(table)
            free(slot_of)
            free(next_offsets)
            PyBuffer_Release(&view)
        return position

    cdef Py_ssize_t place_packed(self, const uint8_t* packed, Py_ssize_t position, Py_ssize_t end,
                                 const int32_t* destination_of, Py_ssize_t count, Destination* table, int32_t* slot_of,
                                 int64_t* next_offsets, int keep) noexcept nogil:
        # `lay_destinations` checked every number in `destination_of` and built `slot_of` for every turn, so the two
        # look-ups below stay inside their tables. `parse` bounds the record by the packed bytes, the limit by the file.
        cdef Py_ssize_t number
        cdef Record record
        cdef Destination* destination
        cdef uint8_t* p
        cdef int64_t* next_offset
        cdef int64_t queue_offset
        for number in range(count):
            if parse(packed + position, end - position, -1, False, &record) <= 0 \
                    or self.position + record.size + 8 > self.limit:
                break
            destination = &table[destination_of[number]]
            next_offset = &next_offsets[slot_of[destination.slots + destination.turn]]
            queue_offset = next_offset[0]
            if record.sys_flag & TRANSACTION_MASK in (4, 0xC):
                queue_offset = 0
            else:
                if keep & 1:
                    if record.queue_offset < queue_offset:
                        break
                    queue_offset = record.queue_offset
                next_offset[0] = queue_offset + 1
            if keep & 2:
                self.last_timestamp = max(self.last_timestamp, record.store_timestamp)
            p = <uint8_t*> self.target.buf + self.position
            memcpy(p, packed + position, record.size)
            if destination.queue_id < 0:
                set32(p + 12, destination.turn)
                destination.turn = (destination.turn + 1) % destination.queue_count
            finish_record(p, record.size, queue_offset, self.file_start + self.position,
                          record.store_timestamp if keep & 2 else self.last_timestamp, ends_with_crc(p, &record))
            destination.record_count += 1
            destination.record_bytes += record.size
            self.position += record.size
            position += record.size
        return position

    cdef bint may_be_in_batch(self, Message message) except -1:
        """Return whether its topic is known. Raises InvalidMessage if it cannot be in a batch at all."""
        if message.sys_flag & TRANSACTION_MASK:
            raise InvalidMessage("batch", repr(message), "no transactions in a batch: put it alone")
        self.require_size(body_size(message))
        return message.topic in self.states

    cdef bint plan_in_batch(self, Message message, Py_ssize_t host_size, Py_ssize_t body_size, Layout* layout,
                            bint as_is) except -1:
        cdef TopicState state = self.states.get(message.topic)
        return state is not None and self.plan(message, state, host_size, body_size, layout, as_is, False)

    cdef int write_in_batch(self, Message message, bytes born_host, bytes content, Layout* layout, int64_t timestamp,
                            object durability, PutReceipt receipt) except -1:
        cdef TopicState state = self.states[message.topic]
        cdef Py_buffer body
        # Find queue and queue offset again: earlier messages of the batch may have taken the planned ones.
        if layout.in_turn:
            layout.queue_id = state.turn
        layout.queue_offset = state.next_offsets[layout.queue_id]
        PyObject_GetBuffer(content, &body, PyBUF_SIMPLE)
        try:
            self.write(message, born_host, &body, layout, timestamp)
        finally:
            PyBuffer_Release(&body)
        return self.enter(receipt, state, layout, timestamp, durability)

    cdef int require_size(self, Py_ssize_t body_size) except -1:
        if body_size > self.max_body:
            raise InvalidMessage("body", f"{body_size} bytes", f"at most {self.max_body} bytes (maxMessageSize)")
        return 0

    cdef bint plan(self, Message message, TopicState state, Py_ssize_t host_size, Py_ssize_t body_size, Layout* layout,
                   bint as_is, bint numbered_lights) except -1:
        """Compute sizes and queue offset of a record; False if the slow path is needed. No Python code runs after."""
        cdef int special
        cdef Py_ssize_t topic_size
        cdef int32_t kind = message.sys_flag & TRANSACTION_MASK
        PyUnicode_AsUTF8AndSize(message.topic, &topic_size)
        layout.properties_size = measure_properties(message.properties, self.append_crc, &special)
        layout.size = record_size(host_size, len(self.store_host), topic_size, body_size, layout.properties_size)
        layout.unnumbered = kind == 4 or kind == 0xC
        if special and ((special & HAS_LIGHTS and not numbered_lights)
                        or (special & HAS_DELAY and self.sets_delayed_aside and not as_is)):
            return False
        layout.in_turn = message.queue_id is None
        layout.queue_id = state.turn if layout.in_turn else queue_id_of(message.queue_id)
        if layout.unnumbered:
            layout.queue_offset = 0
            return True
        number = state.next_offsets.get(layout.queue_id)
        if number is None:
            return False
        layout.queue_offset = number
        return True

    cdef inline int64_t now(self) noexcept:
        """Take the store time. If the clock is set back a little, the store time stays, so that times rise along the
        log. If it is set back by more than MAX_PIN_MS, the clock is trusted: the time before was wrong, and keeping it
        would give every message a wrong time until the clock has caught up.
        """
        cdef int64_t time = now_ms() + self.ahead_ms
        if time > self.last_timestamp or time < self.last_timestamp - MAX_PIN_MS:
            self.last_timestamp = time
        return self.last_timestamp

    cdef int write(self, Message message, bytes born_host, Py_buffer* body, Layout* layout,
                   int64_t timestamp) except -1:
        cdef uint8_t* p = <uint8_t*> self.target.buf + self.position
        fill_record(p, layout.size, message, layout.queue_id, born_host, self.store_host, body,
                    layout.properties_size, self.append_crc)
        finish_record(p, layout.size, layout.queue_offset, self.file_start + self.position, timestamp, self.append_crc)
        return 0

    cdef int enter(self, PutReceipt receipt, TopicState state, Layout* layout, int64_t timestamp,
                   object durability) except -1:
        """Count a message that was written, fill in its receipt and advance past it."""
        if not layout.unnumbered:
            state.next_offsets[layout.queue_id] = layout.queue_offset + 1
        if layout.in_turn:
            state.turn = (state.turn + 1) % state.queue_count
        state.put_count += 1
        state.put_bytes += layout.size
        receipt.topic = state.name
        receipt.queue_id = layout.queue_id
        receipt.queue_offset = layout.queue_offset
        receipt.physical_offset = self.file_start + self.position
        receipt.size = layout.size
        receipt.store_timestamp = timestamp
        receipt.durability = durability
        receipt.store_host = self.store_host
        self.position += layout.size
        return 0

    cdef int after(self, Py_ssize_t size, int64_t began_ms) except -1:
        cdef int64_t took_ms = now_ms() + self.ahead_ms - began_ms
        if took_ms * 1000000 > self.slow_ns and self.on_slow is not None:
            self.on_slow(size, took_ms)
        return 0


cdef int lay_destinations(list destinations, list slots, list places, bytes destination_of) except -1:
    """Give each queue of the destinations one slot (its state and queue id); `places` lists each destination's slots.

    Two destinations can share a queue. With one slot per queue they also share its next queue offset.
    """
    cdef dict known = {}
    cdef Py_ssize_t i
    cdef const int32_t* numbers = <const int32_t*> PyBytes_AS_STRING(destination_of)
    for state, queue_id in destinations:
        for one in range((<TopicState?> state).queue_count) if queue_id < 0 else (queue_id,):
            place = known.setdefault((id(state), one), len(slots))
            if place == len(slots):
                slots.append((state, one))
            places.append(place)
    for i in range(len(destination_of) // 4):
        if not 0 <= numbers[i] < len(destinations):
            raise ValueError(f"record {i} names destination {numbers[i]} of {len(destinations)}")
    return 0


cdef int fill_destinations(Destination* table, list destinations) except -1:
    cdef Py_ssize_t number
    cdef int32_t slots = 0
    cdef TopicState state
    for number in range(len(destinations)):
        state = destinations[number][0]
        table[number].slots = slots
        table[number].queue_id = destinations[number][1]
        table[number].queue_count = state.queue_count if table[number].queue_id < 0 else 1
        table[number].turn = state.turn if table[number].queue_id < 0 else 0
        slots += table[number].queue_count
    return 0


cdef int count_destination(TopicState state, Destination* destination) except -1:
    state.put_count += destination.record_count
    state.put_bytes += destination.record_bytes
    if destination.queue_id < 0:
        state.turn = destination.turn
    return 0


cdef Py_ssize_t body_size(Message message) except -1:
    cdef Py_buffer body
    take_body(message, &body)
    PyBuffer_Release(&body)
    return body.len


cdef bytes bytes_of(body):
    """Return a body that nobody can change any more."""
    return body if type(body) is bytes else bytes(memoryview(body))


cdef int32_t queue_id_of(queue_id) except? -2:
    if not isinstance(queue_id, int) or not 0 <= queue_id <= INT32_MAX:
        raise InvalidMessage("queue_id", repr(queue_id), "a number in [0, 2147483647]")
    return queue_id
