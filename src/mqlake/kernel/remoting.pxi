# Frames of RocketMQ's remoting protocol: bytes -> commands -> bytes. The usual shape of a header is read here; whatever
# is odd about a JSON header (floats, nesting, surrogates) is left to kernel/headers.py, which both kernels share.

from mqlake.errors import BadFrame, BadRequest
from mqlake.kernel.headers import LANGUAGES, OTHER_LANGUAGE, decode_json_header

cdef enum:
    FRAME_HEAD = 8              # total length, serialize type and header length
    MAX_HEADER = 1 << 20        # properties have at most 32 KiB, six times that with every byte escaped
    BINARY_FIXED = 21
    MAX_DIGITS = 18
    RESPONSE_FLAG = 1
    ONEWAY_FLAG = 2
    BATCH_HEAD = 20             # size, magic, CRC, flag, size of the body

cdef dict LANGUAGE_NUMBERS = {name: number for number, name in enumerate(LANGUAGES)}


@cython.freelist(64)
cdef class Command:
    """One request or response: RocketMQ's RemotingCommand."""

    cdef public int32_t code
    cdef public str language
    cdef public int32_t version
    cdef public int32_t opaque
    cdef public int32_t flag
    cdef public str remark
    cdef public dict fields
    cdef public object body
    cdef public bint binary

    def __init__(self, int32_t code, *, str language="PYTHON", int32_t version=513, int32_t opaque=0, int32_t flag=0,
                 str remark=None, dict fields=None, body=b"", bint binary=False):
        self.code = code
        self.language = language
        self.version = version
        self.opaque = opaque
        self.flag = flag
        self.remark = remark
        self.fields = {} if fields is None else fields
        self.body = body
        self.binary = binary

    @property
    def is_response(self):
        return self.flag & RESPONSE_FLAG != 0

    @property
    def is_oneway(self):
        return self.flag & ONEWAY_FLAG != 0

    def parts(self):
        """Everything that is compared."""
        return (self.code, self.language, self.version, self.opaque, self.flag, self.remark, self.fields,
                bytes(self.body), self.binary)

    def __eq__(self, other):
        return isinstance(other, Command) and self.parts() == other.parts()

    __hash__ = None

    def __repr__(self):
        return (f"Command({self.code}, opaque={self.opaque}, flag={self.flag}, remark={self.remark!r}, "
                f"fields={self.fields!r}, {len(self.body)} bytes)")


def decode_commands(data, Py_ssize_t position, Py_ssize_t max_frame):
    """Decode the whole frames from `position` on; return the commands and where the first incomplete frame begins.

    Raises BadFrame if the first frame is none. If a later one is none, decoding stops before it.
    """
    cdef Py_buffer view
    cdef list found = []
    cdef Command command
    cdef Py_ssize_t total
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        if not 0 <= position <= view.len:
            raise ValueError(f"{position} is not inside {view.len} bytes")
        while view.len - position >= 4:
            total = <Py_ssize_t> get32(<const uint8_t*> view.buf + position)
            try:
                if not 4 <= total <= max_frame:
                    raise BadFrame("total length", str(total), f"4 to {max_frame}")
                if total > view.len - position - 4:
                    break
                command = decode_frame(<const uint8_t*> view.buf + position + 4, total)
            except BadFrame:
                if found:
                    break
                raise
            found.append(command)
            position += 4 + total
    finally:
        PyBuffer_Release(&view)
    return found, position


cdef Command decode_frame(const uint8_t* p, Py_ssize_t total):
    """Decode the frame at `p`, which has `total` bytes after its length field: at least 4."""
    cdef uint32_t mark = <uint32_t> get32(p)
    cdef Py_ssize_t size = mark & 0xFFFFFF
    cdef int kind = mark >> 24
    cdef Command command
    if size > total - 4 or size > MAX_HEADER:
        raise BadFrame("header length", str(size), f"at most {min(total - 4, MAX_HEADER)}")
    if kind == 0:
        command = read_json(p + 4, size)
        if command is None:
            command = read_json_slowly(p + 4, size)
    elif kind == 1:
        command = read_binary(p + 4, size)
    else:
        raise BadFrame("serialize type", str(kind), "0 (JSON) or 1 (ROCKETMQ)")
    command.binary = kind == 1
    command.body = PyBytes_FromStringAndSize(<const char*> p + 4 + size, total - 4 - size)
    return command


cdef Command read_json_slowly(const uint8_t* p, Py_ssize_t size):
    cdef Command command = Command.__new__(Command)
    (command.code, command.language, command.version, command.opaque, command.flag, command.remark,
     command.fields) = decode_json_header(PyBytes_FromStringAndSize(<const char*> p, size))
    return command


cdef struct Cursor:
    const uint8_t* p
    const uint8_t* end


cdef inline void skip_blanks(Cursor* c) noexcept nogil:
    while c.p < c.end and (c.p[0] == 32 or c.p[0] == 10 or c.p[0] == 13 or c.p[0] == 9):
        c.p += 1


cdef inline bint take(Cursor* c, uint8_t wanted) noexcept nogil:
    """Skip blanks and one byte if it is the wanted one."""
    skip_blanks(c)
    if c.p < c.end and c.p[0] == wanted:
        c.p += 1
        return True
    return False


cdef Command read_json(const uint8_t* p, Py_ssize_t size):
    """Read a header of the usual shape; None if it must be read the slow way."""
    cdef Command command = Command.__new__(Command)
    cdef Cursor c
    cdef str name
    cdef bint has_code = False
    cdef int64_t number = 0
    c.p, c.end = p, p + size
    command.language = OTHER_LANGUAGE
    command.fields = {}
    if not take(&c, 123):  # {
        return None
    if take(&c, 125):  # }
        return None
    while True:
        name = read_text(&c)
        if name is None or not take(&c, 58):  # :
            return None
        skip_blanks(&c)
        if name == "extFields":
            command.fields = read_fields(&c)
            if command.fields is None:
                return None
        elif name == "language":
            command.language = read_text(&c)
            if command.language is None:
                return None
        elif name == "remark":
            if take_word(&c, b"null", 4):
                command.remark = None
            else:
                command.remark = read_text(&c)
                if command.remark is None:
                    return None
        elif name == "code" or name == "version" or name == "opaque" or name == "flag":
            if not read_number(&c, &number) or not -INT32_MAX - 1 <= number <= INT32_MAX:
                return None
            if name == "code":
                command.code = <int32_t> number
                has_code = True
            elif name == "version":
                command.version = <int32_t> number
            elif name == "opaque":
                command.opaque = <int32_t> number
            else:
                command.flag = <int32_t> number
        elif read_scalar(&c) is None:
            return None
        if take(&c, 44):  # ,
            continue
        if not take(&c, 125):
            return None
        skip_blanks(&c)
        return command if has_code and c.p == c.end else None


cdef dict read_fields(Cursor* c):
    """Read an object of scalars as texts; None if it holds anything else."""
    cdef dict fields = {}
    cdef str name
    cdef str value
    if take_word(c, b"null", 4):
        return fields
    if not take(c, 123):
        return None
    if take(c, 125):
        return fields
    while True:
        name = read_text(c)
        if name is None or not take(c, 58):
            return None
        skip_blanks(c)
        if take_word(c, b"null", 4):
            fields.pop(name, None)
        else:
            value = read_scalar(c)
            if value is None:
                return None
            fields[name] = value
        if take(c, 44):
            continue
        return fields if take(c, 125) else None


cdef str read_scalar(Cursor* c):
    """Read a text, a whole number or a boolean as a text; None if it is something else."""
    cdef const uint8_t* start = c.p
    cdef int64_t number
    if c.p < c.end and c.p[0] == 34:
        return read_text(c)
    if take_word(c, b"true", 4):
        return "true"
    if take_word(c, b"false", 5):
        return "false"
    if read_number(c, &number):
        return PyUnicode_DecodeUTF8(<const char*> start, c.p - start, NULL)
    return None


cdef inline bint take_word(Cursor* c, const char* word, Py_ssize_t size) noexcept nogil:
    """Skip a literal that ends here."""
    if c.end - c.p < size + 1 or memcmp(c.p, word, size) != 0:
        return False
    if is_word_byte(c.p[size]):
        return False
    c.p += size
    return True


cdef inline bint is_word_byte(uint8_t byte) noexcept nogil:
    return byte not in (44, 125, 32, 9, 10, 13)  # , } and blanks end a literal


cdef bint read_number(Cursor* c, int64_t* number) noexcept nogil:
    """Read a whole number without an exponent, in its shortest form; False if it is something else."""
    cdef const uint8_t* p = c.p
    cdef bint negative = p < c.end and p[0] == 45
    cdef const uint8_t* digits
    cdef int64_t value = 0
    if negative:
        p += 1
    digits = p
    while p < c.end and 48 <= p[0] <= 57 and p - digits <= MAX_DIGITS:
        value = value * 10 + (p[0] - 48)
        p += 1
    if p == digits or p - digits > MAX_DIGITS or p >= c.end or is_word_byte(p[0]):
        return False
    if digits[0] == 48 and (p - digits > 1 or negative):
        return False
    number[0] = -value if negative else value
    c.p = p
    return True


cdef str read_text(Cursor* c):
    """Read a JSON text; None if it is malformed or holds a surrogate."""
    cdef const uint8_t* p
    cdef const uint8_t* start
    skip_blanks(c)
    if c.p >= c.end or c.p[0] != 34:
        return None
    p = start = c.p + 1
    while p < c.end and p[0] != 34 and p[0] != 92 and p[0] >= 32:
        p += 1
    if p >= c.end or p[0] < 32:
        return None
    if p[0] == 34:
        c.p = p + 1
        return utf8_text(start, p - start)
    return read_escaped(c, start, p)


cdef str utf8_text(const uint8_t* p, Py_ssize_t size):
    try:
        return PyUnicode_DecodeUTF8(<const char*> p, size, NULL)
    except UnicodeDecodeError:
        return None


cdef str read_escaped(Cursor* c, const uint8_t* start, const uint8_t* p):
    """Read the text at `start` whose first escape is at `p`."""
    cdef uint8_t* out
    cdef Py_ssize_t written = p - start
    cdef int32_t code
    # An escape is never shorter than what it stands for, so what is left of the header is room enough.
    out = <uint8_t*> malloc(c.end - start)
    if out == NULL:
        raise MemoryError
    try:
        memcpy(out, start, written)
        while p < c.end and p[0] != 34:
            if p[0] < 32:
                return None
            if p[0] != 92:
                out[written] = p[0]
                written += 1
                p += 1
                continue
            if c.end - p < 2:
                return None
            if p[1] == 117:  # \uXXXX
                code = hex4(p + 2, c.end)
                if code < 0 or 0xD800 <= code <= 0xDFFF:
                    return None
                written += put_utf8(out + written, code)
                p += 6
                continue
            code = simple_escape(p[1])
            if code < 0:
                return None
            out[written] = <uint8_t> code
            written += 1
            p += 2
        if p >= c.end:
            return None
        c.p = p + 1
        return utf8_text(out, written)
    finally:
        free(out)


cdef inline int32_t simple_escape(uint8_t letter) noexcept nogil:
    if letter == 34 or letter == 92 or letter == 47:
        return letter
    if letter == 110:
        return 10
    if letter == 116:
        return 9
    if letter == 114:
        return 13
    if letter == 98:
        return 8
    return 12 if letter == 102 else -1


cdef int32_t hex4(const uint8_t* p, const uint8_t* end) noexcept nogil:
    cdef int32_t value = 0
    cdef int i
    cdef uint8_t digit
    if end - p < 4:
        return -1
    for i in range(4):
        digit = p[i]
        if 48 <= digit <= 57:
            value = value * 16 + digit - 48
        elif 97 <= digit <= 102:
            value = value * 16 + digit - 87
        elif 65 <= digit <= 70:
            value = value * 16 + digit - 55
        else:
            return -1
    return value


cdef inline Py_ssize_t put_utf8(uint8_t* out, int32_t code) noexcept nogil:
    """Write a code point of the basic plane and return its size."""
    if code < 0x80:
        out[0] = <uint8_t> code
        return 1
    if code < 0x800:
        out[0] = <uint8_t> (0xC0 | (code >> 6))
        out[1] = <uint8_t> (0x80 | (code & 0x3F))
        return 2
    out[0] = <uint8_t> (0xE0 | (code >> 12))
    out[1] = <uint8_t> (0x80 | ((code >> 6) & 0x3F))
    out[2] = <uint8_t> (0x80 | (code & 0x3F))
    return 3


cdef Command read_binary(const uint8_t* p, Py_ssize_t size):
    cdef Command command = Command.__new__(Command)
    cdef const uint8_t* end = p + size
    cdef const uint8_t* stop
    cdef Py_ssize_t length
    cdef str name
    if size < BINARY_FIXED:
        raise BadFrame("header length", str(size), f"at least {BINARY_FIXED} for a binary header")
    command.code = get16(p)
    command.language = LANGUAGES[p[2]] if p[2] < len(LANGUAGES) else OTHER_LANGUAGE
    command.version = get16(p + 3)
    command.opaque = get32(p + 5)
    command.flag = get32(p + 9)
    length = get32(p + 13)
    p += 17
    if not 0 <= length <= end - p - 4:
        raise BadFrame("remark length", str(length), f"0 to {end - p - 4}")
    command.remark = binary_text(p, length) if length else None
    p += length
    length = get32(p)
    p += 4
    if not 0 <= length <= end - p:
        raise BadFrame("extFields length", str(length), f"0 to {end - p}")
    stop = p + length
    command.fields = {}
    while p < stop:
        if stop - p < 2:
            raise BadFrame("extFields", f"{stop - p} bytes at the end", "whole entries")
        length = get16(p)
        p += 2
        if not 0 <= length <= stop - p - 4:
            raise BadFrame("key length", str(length), f"0 to {stop - p - 4}")
        name = binary_text(p, length)
        p += length
        length = get32(p)
        p += 4
        if not 0 <= length <= stop - p:
            raise BadFrame("value length", str(length), f"0 to {stop - p}")
        command.fields[name] = binary_text(p, length)
        p += length
    return command


cdef str binary_text(const uint8_t* p, Py_ssize_t size):
    return PyUnicode_DecodeUTF8(<const char*> p, size, "replace")


# ---- encoding

cdef class _Text:
    """Bytes that grow. For one call."""

    cdef uint8_t* at
    cdef Py_ssize_t size
    cdef Py_ssize_t room

    def __dealloc__(self):
        free(self.at)

    cdef int reserve(self, Py_ssize_t more) except -1:
        if not make_room(<void**> &self.at, &self.room, self.size + more, 1):
            raise MemoryError
        return 0

    cdef int add(self, const char* text, Py_ssize_t size) except -1:
        self.reserve(size)
        memcpy(self.at + self.size, text, size)
        self.size += size
        return 0

    cdef int add_number(self, int64_t number) except -1:
        self.reserve(24)
        self.size += snprintf(<char*> self.at + self.size, 24, b"%lld", <long long> number)
        return 0

    cdef int add_json(self, str text) except -1:
        """Add a JSON text with its quotes."""
        cdef Py_ssize_t size, i
        cdef const uint8_t* p = <const uint8_t*> PyUnicode_AsUTF8AndSize(text, &size)
        cdef uint8_t* out
        self.reserve(6 * size + 2)
        out = self.at + self.size
        out[0] = 34
        out += 1
        for i in range(size):
            if p[i] >= 32 and p[i] != 34 and p[i] != 92:
                out[0] = p[i]
                out += 1
            else:
                out += put_escape(out, p[i])
        out[0] = 34
        self.size = out + 1 - self.at
        return 0


cdef inline int put_escape(uint8_t* out, uint8_t byte) noexcept nogil:
    cdef uint8_t letter = 0
    if byte == 34 or byte == 92:
        letter = byte
    elif byte == 10:
        letter = 110
    elif byte == 13:
        letter = 114
    elif byte == 9:
        letter = 116
    elif byte == 8:
        letter = 98
    elif byte == 12:
        letter = 102
    out[0] = 92
    if letter:
        out[1] = letter
        return 2
    memcpy(out + 1, b"u00", 3)
    out[4] = 48 + (byte >> 4)
    out[5] = b"0123456789abcdef"[byte & 15]
    return 6


def encode_head(Command command not None, Py_ssize_t body_size):
    """Return a frame up to its body, of which only the size counts here."""
    cdef _Text text = _Text.__new__(_Text)
    cdef Py_ssize_t size
    text.reserve(FRAME_HEAD)
    text.size = FRAME_HEAD
    if command.binary:
        write_binary(text, command)
    else:
        write_json(text, command)
    size = text.size - FRAME_HEAD
    if size > 0xFFFFFF or 4 + size + body_size > INT32_MAX:
        raise BadFrame("header length", str(size), "at most 16777215, and a frame of at most 2147483647")
    set32(text.at, <int32_t> (4 + size + body_size))
    set32(text.at + 4, <int32_t> (((1 << 24) if command.binary else 0) | size))
    return PyBytes_FromStringAndSize(<const char*> text.at, text.size)


def encode_command(Command command not None):
    """Return the whole frame of a command."""
    body = command.body
    if not body:
        return encode_head(command, 0)
    return encode_head(command, len(body)) + body


cdef int write_json(_Text text, Command command) except -1:
    cdef bint first = True
    text.add(b'{"code":', 8)
    text.add_number(command.code)
    text.add(b',"extFields":{', 14)
    for name, value in command.fields.items():
        if not first:
            text.add(b",", 1)
        first = False
        text.add_json(name)
        text.add(b":", 1)
        text.add_json(value)
    text.add(b'},"flag":', 9)
    text.add_number(command.flag)
    text.add(b',"language":', 12)
    text.add_json(command.language)
    text.add(b',"opaque":', 10)
    text.add_number(command.opaque)
    if command.remark is not None:
        text.add(b',"remark":', 10)
        text.add_json(command.remark)
    text.add(b',"serializeTypeCurrentRPC":"JSON","version":', 44)
    text.add_number(command.version)
    text.add(b"}", 1)
    return 0


cdef int write_binary(_Text text, Command command) except -1:
    cdef Py_ssize_t at, size
    cdef const char* utf8
    text.reserve(17)
    set16(text.at + text.size, <int16_t> command.code)
    text.at[text.size + 2] = <uint8_t> LANGUAGE_NUMBERS.get(command.language, 7)
    set16(text.at + text.size + 3, <int16_t> command.version)
    set32(text.at + text.size + 5, command.opaque)
    set32(text.at + text.size + 9, command.flag)
    text.size += 13
    add_binary(text, "" if command.remark is None else command.remark, 4)
    at = text.size
    text.reserve(4)
    text.size += 4
    for name, value in command.fields.items():
        add_binary(text, name, 2)
        add_binary(text, value, 4)
    set32(text.at + at, <int32_t> (text.size - at - 4))
    return 0


cdef int add_binary(_Text text, str value, int width) except -1:
    """Add a text after its size in 2 or 4 bytes."""
    cdef Py_ssize_t size
    cdef const char* utf8 = PyUnicode_AsUTF8AndSize(value, &size)
    if width == 2 and size > 32767:
        raise BadFrame("key length", str(size), "at most 32767")
    text.reserve(width + size)
    if width == 2:
        set16(text.at + text.size, <int16_t> size)
    else:
        set32(text.at + text.size, <int32_t> size)
    text.size += width
    memcpy(text.at + text.size, utf8, size)
    text.size += size
    return 0


def messages_of_batch(body, Message pattern not None):
    """Return the messages in the body of a batch. All but flag, body and properties is the pattern's.

    Raises BadRequest if the body is not whole messages. Every length is checked before it is used.
    """
    cdef Py_buffer view
    cdef const uint8_t* p
    cdef const uint8_t* end
    cdef int64_t size, body_size, rest
    cdef Message message
    cdef list found = []
    PyObject_GetBuffer(body, &view, PyBUF_SIMPLE)
    try:
        p = <const uint8_t*> view.buf
        end = p + view.len
        while p < end:
            size = get32(p) if end - p >= BATCH_HEAD else 0
            body_size = get32(p + 16) if size > BATCH_HEAD else -1
            rest = size - BATCH_HEAD - body_size - 2
            if size > end - p or body_size < 0 or rest < 0 or rest != <uint16_t> get16(p + BATCH_HEAD + body_size):
                raise BadRequest("batch", f"{end - p} bytes at {view.len - (end - p)}", "whole messages")
            message = Message.__new__(Message)
            message.topic, message.queue_id, message.born_host = pattern.topic, pattern.queue_id, pattern.born_host
            message.sys_flag, message.born_timestamp = pattern.sys_flag, pattern.born_timestamp
            message.reconsume_times, message.prepared_offset = pattern.reconsume_times, pattern.prepared_offset
            message.flag = get32(p + 12)
            message.body = PyBytes_FromStringAndSize(<const char*> p + BATCH_HEAD, body_size)
            message.properties = properties_of(p + BATCH_HEAD + body_size + 2, rest)
            found.append(message)
            p += size
    finally:
        PyBuffer_Release(&view)
    return found
