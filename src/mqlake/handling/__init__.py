"""The worker loop: a handler is called for each message of a group, and its failures are retried later."""
