"""Files on disk: mapped files of fixed size, their queues, pre-allocation, the buffer pool, small files, the lock."""
