"""The layout of a store on disk. Files of our own are under `mqlake/`, which RocketMQ ignores."""

from __future__ import annotations

from pathlib import Path


class Layout:
    """The paths of one store."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.commit_log = root / "commitlog"
        self.consume_queues = root / "consumequeue"
        self.batch_queues = root / "batchconsumequeue"
        self.index = root / "index"
        self.config = root / "config"
        self.checkpoint = root / "checkpoint"
        self.abort = root / "abort"
        self.lock = root / "lock"
        self.own = root / "mqlake"
        self.spare = self.own / "spare"
        self.scratch = self.own / "scratch"
        self.positions = self.own / "positions"
        self.own_checkpoint = self.own / "checkpoint"
        self.gates = self.own / "gates"
        self.scars = self.own / "scars"
        self.deleted_topics = self.own / "deleted-topics"
        self.last_recovery = self.own / "recovery.json"
        self.set_aside = self.own / "set-aside"
        self.timer = self.own / "timer"
        self.timer_check = self.config / "timercheck"
        self.timer_log = root / "timerlog"
        self.timer_wheel = root / "timerwheel"
        self.settings = self.own / "settings.json"
        self.staging = self.own / "staging"
        self.sinks = self.own / "sinks"
        self.identity = self.own / "identity"
        self.times = self.own / "times"
        self.seals = self.own / "seals"
        self.scrub = self.own / "scrub.json"
        self.health = self.own / "health.json"
        self.clock = self.own / "clock.json"
        self.epoch = self.own / "epoch"

    def looks_like_a_store(self) -> bool:
        return any(path.exists() for path in (self.commit_log, self.consume_queues, self.checkpoint, self.own))

    def is_barely_begun(self) -> bool:
        """Return whether there are only empty folders of a store, as a power cut during its creation leaves them."""
        folders = (self.commit_log, self.consume_queues, self.index, self.config, self.own)
        return all(
            (entry in folders and entry.is_dir() and not any(entry.iterdir())) or entry in (self.lock, self.abort)
            for entry in self.root.iterdir()
        )
