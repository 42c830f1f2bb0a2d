"""The processes of the consistency check. Each keeps a journal: one JSON line for everything that it did or saw.

    writer      {position, table, puts, deletes}                 every write call, with its position
    reader      {kind, asked, high | epoch, cut, spans, prints, total, copy}     every state that it saw
    follower    {position, prints}                               the state after every delta of a subscription

Run as `python -m viewkeeper.verify.consistency_roles ROLE JOURNAL URL OPTIONS`, until the standard input ends.
"""

from __future__ import annotations

import json
import random
import select
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

import pyarrow as pa

import viewkeeper as vk
from viewkeeper.errors import Timeout
from viewkeeper.verify import bank

WriteJournal = Callable[[dict[str, Any]], None]


def run_writer(db: Any, write_journal: WriteJournal, options: dict[str, Any]) -> None:
    """Run write calls at the rate in the options."""
    pause = 1 / options["rate"]
    due = time.monotonic()
    for write in bank.writes(options["number"], options["seed"]):
        if _is_input_closed():
            return
        token = db.put(write.table, write.puts) if write.puts else db.delete(write.table, write.deletes)
        write_journal({"position": token.position, "table": write.table, "puts": write.puts, "deletes": write.deletes})
        due += pause
        time.sleep(max(0.0, due - time.monotonic()))


def run_maintainer(db: Any, write_journal: WriteJournal, options: dict[str, Any]) -> None:
    """Maintain continuously in standby mode, so that several of these processes relieve each other."""
    with db.maintain(standby=True, **options["pace"]) as running:
        write_journal({"kind": "started"})
        while not _is_input_closed() and running.running:
            time.sleep(0.02)


def run_reader(db: Any, write_journal: WriteJournal, options: dict[str, Any]) -> None:
    """Read at all levels, with the pause in the options."""
    generator = random.Random(options["number"])
    newest = str(db.token())
    for kind in cycle(("snapshot", "after", "any", "snapshot", "latest")):
        if _is_input_closed():
            return
        if kind == "snapshot":
            with db.snapshot(mixed=True) as s:
                seen = {name: _row_tuples(s.read(name)) for name in bank.VIEWS}
                spans = {name: s.span(name) for name in bank.VIEWS}
                write_journal(
                    {"kind": kind, "epoch": s.epoch, "cut": s.token.position, "spans": spans, **_state_json(seen)}
                )
        else:
            name = generator.choice(sorted(bank.VIEWS))
            required = {"latest": db.token("accounts").position, "after": vk.Token.parse(newest).position}.get(kind, 0)
            level = vk.LATEST if kind == "latest" else vk.ANY
            try:
                seen = {name: _row_tuples(db.read(name, level, after=newest if kind == "after" else None, timeout=120))}
            except Timeout:
                if not options["patient"]:
                    raise
                continue  # the maintainer was killed and the next one has not taken over yet
            write_journal({"kind": kind, "asked": required, "high": db.token("accounts").position, **_state_json(seen)})
        newest = str(db.token())
        time.sleep(options["pause"])


def run_follower(db: Any, write_journal: WriteJournal, options: dict[str, Any]) -> None:
    """Subscribe to one view, from its first rows on."""
    view = options["view"]
    rows: dict[Any, int] = {}
    for delta in db.subscribe(view, timeout=None, progress=0.1):
        for *row, weight in zip(*(c.to_pylist() for c in delta.rows.columns), strict=True):
            rows[tuple(row)] = rows.get(tuple(row), 0) + weight
        rows = {row: count for row, count in rows.items() if count}
        if delta.kind != "progress":
            state = bank.fingerprint(row for row, count in rows.items() for _ in range(count))
            write_journal({"kind": "follow", "position": delta.token.position, "prints": {view: state}})
        if _is_input_closed():
            return


def _row_tuples(table: pa.Table) -> list[tuple[Any, ...]]:
    return list(zip(*(c.to_pylist() for c in table.columns), strict=True))


def _state_json(views: dict[str, list[tuple[Any, ...]]]) -> dict[str, Any]:
    total = views.get("total")
    prints = {name: bank.fingerprint(rows) for name, rows in views.items()}
    return {"prints": prints, "total": total[0][1] if total else None, "copy": views.get("copy")}


def _is_input_closed() -> bool:
    """Whether the parent has closed the standard input."""
    ready, _, _ = select.select([sys.stdin], [], [], 0)
    return bool(ready)


@contextmanager
def _open_journal(path: str) -> Iterator[WriteJournal]:
    with Path(path).open("a", encoding="utf-8") as file:
        yield lambda line: print(json.dumps(line), file=file, flush=True)


ROLES = {"writer": run_writer, "maintainer": run_maintainer, "reader": run_reader, "follower": run_follower}


def main(role: str, journal: str, url: str, options: str) -> None:
    mode = "r" if role in ("reader", "follower") else "w"
    parsed = json.loads(options)
    with vk.open(url, mode=mode, **parsed.get("open", {})) as db, _open_journal(journal) as write_journal:
        ROLES[role](db, write_journal, parsed)


if __name__ == "__main__":
    main(*sys.argv[1:])
