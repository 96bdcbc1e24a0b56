"""What makes a log a message queue: topics, groups and their progress, filters, delay, retry, transactions.

State lies in RocketMQ's own places: `config/*.json` and system topics of the log.
"""
