"""Consumers: the queues they own, their progress and their filters."""
