"""Topics, groups and progress: RocketMQ's `config/*.json`."""
