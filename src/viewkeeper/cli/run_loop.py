"""`vk run` and `vk watch`: commands that run until they are stopped.

SIGTERM ends them like Ctrl-C: a running batch is finished or leaves no effect, then the lease is released.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from queue import Empty, SimpleQueue
from typing import Any

import typer

from viewkeeper.cli.output import json_line
from viewkeeper.cli.output import value_text as shown
from viewkeeper.model.display import count_text
from viewkeeper.read import suspension

_GIL_SWITCH_INTERVAL = 0.0005
"""Seconds for which a thread may hold the GIL while others want it: a batch must not hold up subscriptions."""


class StopFlag:
    """A flag for a signal handler, which runs in the waiting thread itself. An Event would deadlock there, if the
    signal arrives while that thread holds the event's lock."""

    def __init__(self) -> None:
        self._is_set, self._wakeups = False, SimpleQueue[None]()

    def set(self) -> None:
        self._is_set = True
        self._wakeups.put(None)

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, seconds: float) -> bool:
        """Wait up to `seconds`; return whether the flag is set."""
        if not self._is_set:
            with suppress(Empty):
                self._wakeups.get(timeout=seconds)
        return self._is_set


def run(database: Any, output_format: str, seconds: float | None, **options: Any) -> None:
    """Maintain until the time is over or a signal arrives."""
    sys.setswitchinterval(_GIL_SWITCH_INTERVAL)
    stop_flag = StopFlag()

    def print_batch(report: Any) -> None:
        if output_format == "json":
            _print_line(json.dumps(asdict(report)))
            return
        for reason in report.suspended.values():
            _print_line(f"suspended  {reason}")
        if report.changes:
            views = ", ".join(f"{view} {rows}" for view, rows in sorted(report.views.items()) if rows)
            _print_line(
                f"batch {report.epoch}  {count_text(report.changes, 'change')}  {1000 * report.seconds:.0f} ms"
                f"  {report.lane}  rows changed: {views or 'none'}"
            )

    def print_audit(report: Any) -> None:
        if output_format == "json":
            _print_line(json_line(report.to_json()))
        else:
            wrong = ", ".join(f"{v.view} {v.differences}" for v in report.views if v.differences)
            _print_line(f"audit of batch {report.epoch}  {report.seconds:.1f} s  keys that differ: {wrong or 'none'}")

    with (
        _stop_on_signals(stop_flag),
        database.maintain(on_batch=print_batch, on_audit=print_audit, **options) as maintenance,
    ):
        if output_format == "table":
            views = count_text(len(database._catalog().user_views), "view")
            _print_line(f"keeping {views} of {database._store.url} fresh; Ctrl-C stops")
        remaining = seconds
        while (
            maintenance.running
            and (remaining is None or remaining > 0)
            and not stop_flag.wait(min(0.2, remaining or 0.2))
        ):
            remaining = None if remaining is None else remaining - 0.2


def watch(deltas: Iterable[Any], max_rows: int | None, output_format: str) -> None:
    """Print deltas row by row."""
    printed = 0
    for delta in deltas:
        first = delta.kind == "rows"
        if delta.kind in ("suspended", "reset"):
            _print_line(_format_transition(delta, output_format))
        for change in delta.changes():
            kind = "row" if first else change.kind
            if output_format == "json":
                line = {"kind": kind, "before": change.before, "after": change.after, "token": str(delta.token)}
                _print_line(json_line(line))
            else:
                _print_line(_format_change(kind, change.before, change.after))
            printed += not first
        if max_rows is not None and printed >= max_rows:
            return


def _format_transition(delta: Any, output_format: str) -> str:
    """The line for a view that was suspended or rebuilt."""
    about = {} if delta.suspended is None else suspension.suspension_summary(delta.suspended)
    if output_format == "json":
        return json_line({"kind": delta.kind, **about, "token": str(delta.token)})
    if delta.suspended is None:
        return "! made anew: the rows that follow replace all before them"
    return f"! suspended since {about['since']}, at batch {about['epoch']}: {about['reason']}"


def _format_change(kind: str, before: dict[str, Any] | None, after: dict[str, Any] | None) -> str:
    sign = {"row": " ", "insert": "+", "update": "~", "delete": "-"}[kind]
    row = after if after is not None else before or {}
    parts = []
    for column, value in row.items():
        old = before.get(column) if kind == "update" and before else value
        parts.append(f"{column} {shown(old)} → {shown(value)}" if old != value else f"{column} {shown(value)}")
    return f"{sign} {'  '.join(parts)}"


def _print_line(line: str) -> None:
    typer.echo(line)
    sys.stdout.flush()


@contextmanager
def announce_when_ready(url: str, maintains: bool) -> Iterator[Callable[[str, Callable[[], None]], None]]:
    """For `vk serve`: yield the function to call when the server is ready. A signal stops the server in order, once."""
    stop_flag = StopFlag()

    def ready(address: str, stop: Callable[[], None]) -> None:
        if stop_flag.is_set():  # a signal arrived during startup
            stop()
            return
        _print_line(f"serving {url}{', and keeping its views fresh' if maintains else ''}, at {address}; Ctrl-C stops")

    with _stop_on_signals(stop_flag):
        yield ready


@contextmanager
def _stop_on_signals(stop_flag: StopFlag) -> Iterator[None]:
    """Set the flag on Ctrl-C and SIGTERM; the main thread then shuts down in order, and the program ends. Further
    signals are ignored, so that they do not interrupt the shutdown."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {s: signal.signal(s, lambda *_: stop_flag.set()) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_IGN if stop_flag.is_set() else handler)
