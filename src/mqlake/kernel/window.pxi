# Bytes of the log by their physical offset, whichever file they are in.

cdef struct LogWindow:          # the log file that was used last, kept while records are read
    PyObject* file_at           # borrowed: the caller's argument outlives the call
    Py_buffer view
    bint held
    int64_t start


cdef inline void open_window(LogWindow* window, object file_at) noexcept:
    window.file_at = <PyObject*> file_at
    window.held = False


cdef inline void close_window(LogWindow* window) noexcept:
    """Release the file. While it is held, its pages stay mapped, even if retention deletes the file."""
    if window.held:
        window.held = False
        PyBuffer_Release(&window.view)


cdef const uint8_t* window_at(LogWindow* window, int64_t offset, int64_t* size) except? NULL:
    """Return the bytes from an offset to the end of their file; NULL if the file was deleted.

    They are valid until the window is closed or moves: a later call for an offset in another file releases this one.
    """
    if not window.held or not window.start <= offset < window.start + window.view.len:
        close_window(window)
        file = (<object> window.file_at)(offset)
        if file is None:
            return NULL
        PyObject_GetBuffer(file.pages, &window.view, PyBUF_SIMPLE)
        window.held = True
        window.start = file.start
    # The file from `file_at` need not cover the offset: only this comparison keeps the pointer inside the pages.
    if not window.start <= offset < window.start + window.view.len:
        return NULL
    size[0] = window.start + window.view.len - offset
    return <const uint8_t*> window.view.buf + (offset - window.start)


cdef inline bint window_covers(LogWindow* window, int64_t offset) noexcept:
    return window.held and window.start <= offset < window.start + window.view.len
