# The inside of a put: number a message, place it, answer with its receipt.


cdef class TopicState:
    """One topic: its queues' next numbers, whose turn it is, and what was put since the store was opened."""

    cdef readonly object name
    cdef public int32_t queue_count
    cdef public int32_t turn
    cdef readonly dict next_offsets
    cdef readonly int64_t put_count
    cdef readonly int64_t put_bytes

    def __init__(self, name, queue_count):
        self.name = name
        self.queue_count = queue_count
        self.next_offsets = {}


cdef struct Layout:             # the sizes of a record to be, found before it is placed
    Py_ssize_t size
    Py_ssize_t properties_size
    int32_t queue_id
    int64_t queue_offset
    bint unnumbered             # prepared and rolled back: in no queue, without a number
    bint in_turn                # the message names no queue


cdef struct Lane:               # where packed records of one topic, and of one queue of it or of its queues in turn, go
    int32_t cells               # its first place in `cell_of`
    int32_t queue_count         # 1 where the records name their queue
    int32_t queue_id            # -1 where the queues take turns
    int32_t turn
    int64_t record_count
    int64_t record_bytes


cdef class Appender:
    """The write position of the log.

    A call holds the interpreter lock from the look at the position to its advance: that lock is what makes appends
    serial. So nothing in between may run Python code, which may hand the lock on; not even making an object that the
    garbage collector tracks, because that may set the collector off, and it runs finalizers.

    Where an append needs more than a copy (the file is full or closed, a queue is written for the first time, light
    queues are named, a delay is asked for) the answer is None, nothing has happened, and the caller goes the slow way.
    """

    cdef readonly int64_t end
    """Where the log ends."""
    cdef readonly int64_t file_start
    cdef readonly Py_ssize_t position
    cdef public object on_slow
    cdef readonly dict states
    cdef bytes store_host
    cdef int64_t max_body
    cdef bint append_crc
    cdef int64_t slow_ns
    cdef public int64_t last_timestamp
    """Store times do not run back along the log: of a clock that does, this is taken."""
    cdef public bint sets_delayed_aside
    """A message with a delay goes the slow way, unless it is to be stored as it is."""
    cdef bint is_open
    cdef Py_buffer target
    cdef bint has_target
    cdef Py_buffer words
    cdef int64_t* end_word

    def __init__(self, int64_t end, bytes store_host not None, int64_t max_body, bint append_crc, int64_t slow_ns, words):
        """`words`: the 8-byte word that tells other processes the end, or None."""
        self.end = end
        self.store_host = store_host
        self.max_body = max_body
        self.append_crc = append_crc
        self.slow_ns = slow_ns
        self.states = {}
        if words is not None:
            PyObject_GetBuffer(words, &self.words, PyBUF_WRITABLE)
            self.end_word = <int64_t*> self.words.buf
            if self.words.len < 8:
                raise ValueError("the end's word has 8 bytes")

    def __dealloc__(self):
        if self.has_target:
            PyBuffer_Release(&self.target)
        if self.end_word != NULL:
            PyBuffer_Release(&self.words)

    def open(self, target, int64_t file_start, Py_ssize_t position):
        """Write into this buffer from `position` on; it holds the file that starts at `file_start`."""
        cdef Py_buffer view
        cdef Py_ssize_t size
        PyObject_GetBuffer(target, &view, PyBUF_WRITABLE)
        if not 0 <= position <= view.len:
            size = view.len
            PyBuffer_Release(&view)
            raise ValueError(f"{position} is not inside of {size} bytes")
        self.close()
        if self.has_target:
            self.has_target = False
            PyBuffer_Release(&self.target)
        self.target = view
        self.has_target = True
        self.file_start = file_start
        self.position = position
        self.publish(file_start + position)
        self.is_open = True

    def close(self):
        """Every append answers None from here on."""
        self.is_open = False

    def release(self):
        """Close, and let go of the buffer and of the end's word."""
        self.is_open = False
        if self.has_target:
            self.has_target = False
            PyBuffer_Release(&self.target)
        if self.end_word != NULL:
            self.end_word = NULL
            PyBuffer_Release(&self.words)

    def reopen(self):
        """Go on where `close` stopped."""
        self.is_open = self.has_target

    def size_of(self, Message message not None):
        """The bytes that a message takes as a record."""
        cdef Py_ssize_t topic_size
        cdef int special
        cdef bytes born_host = born_host_of(message, self.store_host)
        PyUnicode_AsUTF8AndSize(message.topic, &topic_size)
        return record_size(len(born_host), len(self.store_host), topic_size, body_size(message),
                           measure_properties(message.properties, self.append_crc, &special))

    cdef inline void publish(self, int64_t end) noexcept:
        self.end = end
        if self.end_word != NULL:
            self.end_word[0] = end

    def append(self, Message message not None, durability, bint as_it_is=False, bint numbered_lights=False,
               bint while_closed=False):
        """Place one message; its receipt, or None where the slow way is needed.

        `as_it_is`: with a delay too. `numbered_lights`: its numbers in light queues are given. `while_closed`: the
        caller closed the appender to keep others out.
        """
        cdef TopicState state = self.states.get(message.topic)
        cdef Layout layout
        cdef Py_buffer body
        cdef int64_t timestamp
        cdef uint32_t crc
        cdef bytes born_host
        cdef PutReceipt receipt
        if state is None:
            return None
        receipt = PutReceipt.__new__(PutReceipt)
        take_body(message, &body)
        try:
            self.require_size(body.len)
            crc = crc_of_body(&body)
            born_host = born_host_of(message, self.store_host)
            if not self.plan(message, state, len(born_host), body.len, &layout, as_it_is, numbered_lights):
                return None
            if not self.has_target or not (self.is_open or while_closed):
                return None
            if self.position + layout.size + 8 > self.target.len:
                return None
            timestamp = self.now()
            self.place(message, born_host, &body, crc, &layout, timestamp)
            self.enter(receipt, state, &layout, timestamp, durability)
        finally:
            PyBuffer_Release(&body)
        self.publish(self.file_start + self.position)
        self.after(layout.size, timestamp)
        return receipt

    def append_many(self, messages not None, durability, bint as_it_is=False):
        """Place messages one behind the other; their receipts, or None and none of them placed."""
        cdef list batch = list(messages)
        cdef Py_ssize_t count = len(batch)
        cdef Py_ssize_t number
        cdef Py_ssize_t total = 0
        cdef list bodies, hosts
        cdef list receipts = [PutReceipt.__new__(PutReceipt) for number in range(count)]
        cdef int64_t timestamp
        cdef Layout* layouts
        for number in range(count):
            if not self.may_be_in_batch(batch[number]):
                return None
        bodies = [bytes_of(message.body) for message in batch]
        hosts = [born_host_of(message, self.store_host) for message in batch]
        layouts = <Layout*> malloc(max(count, 1) * sizeof(Layout))
        if layouts == NULL:
            raise MemoryError
        try:
            for number in range(count):
                if not self.plan_in_batch(batch[number], len(<bytes> hosts[number]), len(<bytes> bodies[number]),
                                          &layouts[number], as_it_is):
                    return None
                total += layouts[number].size
            if total > self.max_body + 65536:
                raise InvalidMessage("batch", f"{total} bytes in {count} records",
                                     f"at most {self.max_body + 65536} bytes (maxMessageSize and 64 KiB); put it in parts")
            if not self.is_open or self.position + total + 8 > self.target.len:
                return None
            timestamp = self.now()
            for number in range(count):
                self.place_in_batch(batch[number], hosts[number], bodies[number], &layouts[number], timestamp, durability,
                                    receipts[number])
        finally:
            free(layouts)
        self.publish(self.file_start + self.position)
        self.after(total, timestamp)
        return receipts

    def append_packed(self, packed, Py_ssize_t position, bytes lane_of not None, list lanes not None, int64_t timestamp,
                      int keep):
        """Place packed records (pack.pxi) from `position` on, without the interpreter lock; where it came to.

        That is before the one that does not fit into the file any more, or the one whose kept number is not behind
        those of its queue. The caller closed the appender to keep others out, and knows the `lanes` of the records,
        each a topic's state and a queue id, by `lane_of`: see `survey_packed`. All get one store time: `timestamp`, if
        it is not before the last, else now. `keep`: bit 1 for their own numbers, bit 2 for their own times.
        """
        cdef Py_buffer view
        cdef Lane* table = NULL
        cdef int32_t* cell_of = NULL
        cdef int64_t* next_offsets = NULL
        cdef Py_ssize_t count = len(lane_of) // 4
        cdef Py_ssize_t number
        cdef const int32_t* numbers = <const int32_t*> PyBytes_AS_STRING(lane_of)
        cdef list cells = []
        cdef list places = []
        if self.is_open:
            raise ValueError("the appender is open: others could append meanwhile")
        if not self.has_target:
            return position
        lay_lanes(lanes, cells, places, lane_of)
        PyObject_GetBuffer(packed, &view, PyBUF_SIMPLE)
        table = <Lane*> calloc(len(lanes) + 1, sizeof(Lane))
        cell_of = <int32_t*> malloc((len(places) + 1) * sizeof(int32_t))
        next_offsets = <int64_t*> malloc((len(cells) + 1) * sizeof(int64_t))
        try:
            if table == NULL or cell_of == NULL or next_offsets == NULL:
                raise MemoryError
            if not 0 <= position <= view.len:
                raise ValueError(f"{position} is not inside of {view.len} bytes")
            for number in range(len(places)):
                cell_of[number] = places[number]
            for number in range(len(cells)):
                next_offsets[number] = (<TopicState> cells[number][0]).next_offsets[cells[number][1]]
            fill_lanes(table, lanes)
            self.last_timestamp = max(self.last_timestamp, timestamp if timestamp else now_ms())
            with nogil:
                position = self.place_packed(<const uint8_t*> view.buf, position, view.len, numbers, count, table,
                                             cell_of, next_offsets, keep)
            for number in range(len(cells)):
                (<TopicState> cells[number][0]).next_offsets[cells[number][1]] = next_offsets[number]
            for number in range(len(lanes)):
                count_lane(<TopicState> lanes[number][0], &table[number])
        finally:
            free(table)
            free(cell_of)
            free(next_offsets)
            PyBuffer_Release(&view)
        self.publish(self.file_start + self.position)
        return position

    cdef Py_ssize_t place_packed(self, const uint8_t* packed, Py_ssize_t position, Py_ssize_t end, const int32_t* lane_of,
                                 Py_ssize_t count, Lane* table, int32_t* cell_of, int64_t* next_offsets,
                                 int keep) noexcept nogil:
        cdef Py_ssize_t number
        cdef Record record
        cdef Lane* lane
        cdef uint8_t* p
        cdef int64_t* next_offset
        cdef int64_t queue_offset
        for number in range(count):
            if parse(packed + position, end - position, -1, False, &record) <= 0 \
                    or self.position + record.size + 8 > self.target.len:
                break
            lane = &table[lane_of[number]]
            next_offset = &next_offsets[cell_of[lane.cells + lane.turn]]
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
            if lane.queue_id < 0:
                set32(p + 12, lane.turn)
                lane.turn = (lane.turn + 1) % lane.queue_count
            finish_record(p, record.size, queue_offset, self.file_start + self.position,
                          record.store_timestamp if keep & 2 else self.last_timestamp, ends_with_crc(p, &record))
            lane.record_count += 1
            lane.record_bytes += record.size
            self.position += record.size
            position += record.size
        return position

    cdef bint may_be_in_batch(self, Message message) except -1:
        """False where its topic is not known yet."""
        if message.sys_flag & TRANSACTION_MASK:
            raise InvalidMessage("batch", repr(message), "no transactions in a batch: put it alone")
        self.require_size(body_size(message))
        return message.topic in self.states

    cdef bint plan_in_batch(self, Message message, Py_ssize_t host_size, Py_ssize_t body_size, Layout* layout,
                            bint as_it_is) except -1:
        cdef TopicState state = self.states.get(message.topic)
        return state is not None and self.plan(message, state, host_size, body_size, layout, as_it_is, False)

    cdef int place_in_batch(self, Message message, bytes born_host, bytes content, Layout* layout, int64_t timestamp,
                            object durability, PutReceipt receipt) except -1:
        cdef TopicState state = self.states[message.topic]
        cdef Py_buffer body
        # Its queue and number again: messages of the batch before it may have taken a turn or a number.
        if layout.in_turn:
            layout.queue_id = state.turn
        layout.queue_offset = state.next_offsets[layout.queue_id]
        PyObject_GetBuffer(content, &body, PyBUF_SIMPLE)
        try:
            self.place(message, born_host, &body, crc32_of(0, <const uint8_t*> body.buf, body.len), layout, timestamp)
        finally:
            PyBuffer_Release(&body)
        return self.enter(receipt, state, layout, timestamp, durability)

    cdef int require_size(self, Py_ssize_t body_size) except -1:
        if body_size > self.max_body:
            raise InvalidMessage("body", f"{body_size} bytes", f"at most {self.max_body} bytes (maxMessageSize)")
        return 0

    cdef bint plan(self, Message message, TopicState state, Py_ssize_t host_size, Py_ssize_t body_size, Layout* layout,
                   bint as_it_is, bint numbered_lights) except -1:
        """Find the sizes and the number of a record; False where the slow way is needed. No Python code from here on."""
        cdef int special
        cdef Py_ssize_t topic_size
        cdef int32_t kind = message.sys_flag & TRANSACTION_MASK
        PyUnicode_AsUTF8AndSize(message.topic, &topic_size)
        layout.properties_size = measure_properties(message.properties, self.append_crc, &special)
        layout.size = record_size(host_size, len(self.store_host), topic_size, body_size, layout.properties_size)
        layout.unnumbered = kind == 4 or kind == 0xC
        if special and ((special & HAS_LIGHTS and not numbered_lights)
                        or (special & HAS_DELAY and self.sets_delayed_aside and not as_it_is)):
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
        """Store times never run backwards along the log."""
        self.last_timestamp = max(self.last_timestamp, now_ms())
        return self.last_timestamp

    cdef int place(self, Message message, bytes born_host, Py_buffer* body, uint32_t crc, Layout* layout,
                   int64_t timestamp) except -1:
        cdef uint8_t* p = <uint8_t*> self.target.buf + self.position
        fill_record(p, layout.size, message, layout.queue_id, born_host, self.store_host, body, crc,
                    layout.properties_size, self.append_crc)
        finish_record(p, layout.size, layout.queue_offset, self.file_start + self.position, timestamp, self.append_crc)
        return 0

    cdef int enter(self, PutReceipt receipt, TopicState state, Layout* layout, int64_t timestamp,
                   object durability) except -1:
        """Count a message that was placed, and step behind it."""
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
        if (now_ms() - began_ms) * 1000000 > self.slow_ns and self.on_slow is not None:
            self.on_slow(size, now_ms() - began_ms)
        return 0


cdef int lay_lanes(list lanes, list cells, list places, bytes lane_of) except -1:
    """One cell for each queue that lanes lead to: its state and queue id. `places`: the lanes' cells, lane by lane."""
    cdef dict known = {}
    cdef Py_ssize_t i
    cdef const int32_t* numbers = <const int32_t*> PyBytes_AS_STRING(lane_of)
    for state, queue_id in lanes:
        for one in range((<TopicState?> state).queue_count) if queue_id < 0 else (queue_id,):
            place = known.setdefault((id(state), one), len(cells))
            if place == len(cells):
                cells.append((state, one))
            places.append(place)
    for i in range(len(lane_of) // 4):
        if not 0 <= numbers[i] < len(lanes):
            raise ValueError(f"record {i} names lane {numbers[i]} of {len(lanes)}")
    return 0


cdef int fill_lanes(Lane* table, list lanes) except -1:
    cdef Py_ssize_t number
    cdef int32_t cells = 0
    cdef TopicState state
    for number in range(len(lanes)):
        state = lanes[number][0]
        table[number].cells = cells
        table[number].queue_id = lanes[number][1]
        table[number].queue_count = state.queue_count if table[number].queue_id < 0 else 1
        table[number].turn = state.turn if table[number].queue_id < 0 else 0
        cells += table[number].queue_count
    return 0


cdef int count_lane(TopicState state, Lane* lane) except -1:
    state.put_count += lane.record_count
    state.put_bytes += lane.record_bytes
    if lane.queue_id < 0:
        state.turn = lane.turn
    return 0


cdef Py_ssize_t body_size(Message message) except -1:
    cdef Py_buffer body
    take_body(message, &body)
    PyBuffer_Release(&body)
    return body.len


cdef bytes bytes_of(body):
    """A body that nobody can change any more."""
    return body if type(body) is bytes else bytes(memoryview(body))


cdef int32_t queue_id_of(queue_id) except? -2:
    if not isinstance(queue_id, int) or not 0 <= queue_id <= INT32_MAX:
        raise InvalidMessage("queue_id", repr(queue_id), "a number in [0, 2147483647]")
    return queue_id
