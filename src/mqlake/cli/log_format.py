"""The log of `mqlake serve`: lines for people, or JSON for programs."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime


class JsonLines(logging.Formatter):
    """One JSON object a line: time, level, logger, message and, if there is one, the error."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {
            "time": at,
            "level": record.levelname,
            "logger": record.name,
            "thread": record.threadName,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def set_log_format(wanted: str) -> None:
    """Have every log line in this form; warnings and what is worse, unless -v asked for more."""
    root = logging.getLogger()
    root.setLevel(min(root.level, logging.WARNING))
    if wanted == "json":
        for handler in root.handlers:
            handler.setFormatter(JsonLines())
