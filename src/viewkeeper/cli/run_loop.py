"""`vk run` and `vk watch`: commands that go on until they are stopped.

SIGTERM ends them like Ctrl-C: a batch that runs is finished or leaves nothing, then the lease is released.
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
"""How long a thread may keep Python's lock while others want it: a batch must not hold up what is pushed meanwhile."""


class StopFlag:
    """Whether it is: for a signal's handler, which runs in the thread that waits. There an Event would wait for itself,
    where the signal comes while that thread has the event's lock."""

    def __init__(self) -> None:
        self._is_set, self._wakeups = False, SimpleQueue[None]()

    def set(self) -> None:
        self._is_set = True
        self._wakeups.put(None)

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, seconds: float) -> bool:
        """Whether it is after so many seconds, or sooner."""
        if not self._is_set:
            with suppress(Empty):
                self._wakeups.get(timeout=seconds)
        return self._is_set


def run(database: Any, output_format: str, seconds: float | None, **options: Any) -> None:
    """Maintain until the time is over or somebody stops it."""
    sys.setswitchinterval(_GIL_SWITCH_INTERVAL)
    over = StopFlag()

    def told(report: Any) -> None:
        if output_format == "json":
            _print_line(json.dumps(asdict(report)))
            return
        for why in report.suspended.values():
            _print_line(f"suspended  {why}")
        if report.changes:
            views = ", ".join(f"{view} {rows}" for view, rows in sorted(report.views.items()) if rows)
            _print_line(
                f"batch {report.epoch}  {count_text(report.changes, 'change')}  {1000 * report.seconds:.0f} ms"
                f"  {report.lane}  rows changed: {views or 'none'}"
            )

    def audited(report: Any) -> None:
        if output_format == "json":
            _print_line(json_line(report.to_json()))
        else:
            wrong = ", ".join(f"{v.view} {v.differences}" for v in report.views if v.differences)
            _print_line(f"audit of batch {report.epoch}  {report.seconds:.1f} s  keys that differ: {wrong or 'none'}")

    with _stop_on_signals(over), database.maintain(on_batch=told, on_audit=audited, **options) as maintenance:
        if output_format == "table":
            views = count_text(len(database._catalog().user_views), "view")
            _print_line(f"keeping {views} of {database._store.url} fresh; Ctrl-C stops")
        left = seconds
        while maintenance.running and (left is None or left > 0) and not over.wait(min(0.2, left or 0.2)):
            left = None if left is None else left - 0.2


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
    """A line for a view that was suspended, or made anew."""
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
    """For `vk serve`: what to call when the server is ready. Signals that end it do so in order, and once."""
    over = StopFlag()

    def ready(address: str, stop: Callable[[], None]) -> None:
        if over.is_set():  # while it began
            stop()
            return
        _print_line(f"serving {url}{', and keeping its views fresh' if maintains else ''}, at {address}; Ctrl-C stops")

    with _stop_on_signals(over):
        yield ready


@contextmanager
def _stop_on_signals(stop_flag: StopFlag) -> Iterator[None]:
    """By Ctrl-C and SIGTERM it is over; the main thread then leaves in order, and the program ends. Who repeats them
    does not end it in the middle of that: they are not heard any more."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {s: signal.signal(s, lambda *_: stop_flag.set()) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_IGN if stop_flag.is_set() else handler)
