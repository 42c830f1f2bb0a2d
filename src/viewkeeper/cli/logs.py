"""`vk --log`: what the program does, as lines on standard error for people or for a machine that collects them.

    text    2026-01-31 12:00:00 viewkeeper.batch batch 7: 120 changes, 14 ms, driver
    json    {"time": "2026-01-31T12:00:00.123Z", "level": "info", "logger": "viewkeeper.batch", "message": "batch 7: …",
             "epoch": 7, "changes": 120, "seconds": 0.014, "lane": "driver", …}

A record's own fields (`extra=`) are members beside those four.
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime

FORMS = ("text", "json")
_USUAL = frozenset(logging.LogRecord("", 0, "", 0, "", (), None).__dict__) | {"message", "asctime"}


class JsonLines(logging.Formatter):
    """An object a line."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC)
            .isoformat(timespec="milliseconds")
            .replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **{name: value for name, value in record.__dict__.items() if name not in _USUAL},
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


def write_log(form: str) -> None:
    """Send what viewkeeper logs to standard error from now on."""
    handler = logging.StreamHandler()
    handler.setFormatter(
        JsonLines() if form == "json" else logging.Formatter("%(asctime)s %(name)s %(message)s", "%Y-%m-%d %H:%M:%S")
    )
    log = logging.getLogger("viewkeeper")
    log.handlers, log.propagate = [handler], False
    log.setLevel(logging.INFO)
