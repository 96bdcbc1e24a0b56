"""Delayed delivery: delay levels, timed messages and retries."""
