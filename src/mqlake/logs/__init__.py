"""The three logs: the commit log, the consume queues, the key index."""
