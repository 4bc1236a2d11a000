"""Logs: events with fields, one line each on stderr, as JSON or for people.

Only the set-up; whoever has something to say gets a structlog logger. The standard library's
loggers (aiohttp's, the journal's) go the same way.
"""

from __future__ import annotations

import logging
import sys
from typing import Any, Literal

import orjson
import structlog


def configure(form: Literal["auto", "json", "human"], level: int = logging.INFO) -> None:
    """Send all logs to stderr: coloured for a terminal, else as JSON, unless told."""
    human = form == "human" or (form == "auto" and sys.stderr.isatty())
    renderer: Any = (
        structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
        if human
        else structlog.processors.JSONRenderer(serializer=_dumps)
    )
    before: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if not human:
        before.append(structlog.processors.format_exc_info)
    structlog.configure(
        processors=[*before, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=before,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)


def _dumps(event: dict[str, Any], default: Any = None, **_: Any) -> str:
    return orjson.dumps(event, default=default or str).decode()
