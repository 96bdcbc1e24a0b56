"""Message queue features on top of the store: topics, groups and progress, filters, delays, retries, transactions.

All state is kept where RocketMQ keeps it: in `config/*.json` and in system topics of the log.
"""
