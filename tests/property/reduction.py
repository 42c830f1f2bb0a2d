"""A failing scenario made small, and told: the least that still fails, and the program that replays it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from .changes import Batch, Delete, Put, Update, key_argument, states
from .query import smaller
from .scenario import Problem, Scenario
from .schemas import Table


def reduce(scenario: Scenario, fails: Callable[[Scenario], bool], seconds: float = 60.0) -> Scenario:
    """The smallest scenario found in this time for which `fails` still holds."""
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)  # many candidates do not analyse
    deadline = time.monotonic() + seconds
    progress = True
    while progress:
        progress = False
        for candidate in _smaller(scenario):
            if time.monotonic() > deadline:
                return scenario
            if _holds(fails, candidate):
                scenario, progress = candidate, True
                break
    return scenario


def only(scenario: Scenario, name: str) -> Scenario:
    """The scenario with this view and those that it reads."""
    needed = {name}
    for view in reversed(scenario.views):
        if view.name in needed:
            needed |= {v.name for v in scenario.views if f"{v.name} " in view.sql}
    return _with_views(scenario, [i for i, v in enumerate(scenario.views) if v.name in needed])


def _holds(fails: Callable[[Scenario], bool], candidate: Scenario) -> bool:
    try:
        states(candidate.tables, candidate.batches)
        return fails(candidate)
    except Exception:  # a candidate that is not valid is no candidate
        return False


def _with_views(s: Scenario, kept: Sequence[int]) -> Scenario:
    return replace(
        s,
        views=tuple(s.views[i] for i in kept),
        made_at=tuple(s.made_at[i] for i in kept),
        pending=tuple(s.pending[i] for i in kept),
    )


def _smaller(s: Scenario) -> Iterator[Scenario]:
    if s.reopened:
        yield replace(s, reopened=())
    if any(s.pending):
        yield replace(s, pending=(False,) * len(s.pending))
    if any(s.made_at):
        yield replace(s, made_at=(0,) * len(s.made_at))
    for i in range(len(s.batches)):
        if len(s.batches) > 1:
            rest = s.batches[:i] + s.batches[i + 1 :]
            at = tuple(min(a - (a > i), len(rest) - 1) for a in s.made_at)
            yield replace(s, batches=rest, made_at=at, reopened=())
    for i, view in enumerate(s.views):
        for less in smaller(view):
            yield replace(s, views=(*s.views[:i], less, *s.views[i + 1 :]))
    for i, batch in enumerate(s.batches):
        for less_batch in _smaller_batches(batch):
            yield replace(s, batches=(*s.batches[:i], less_batch, *s.batches[i + 1 :]))


def _smaller_batches(batch: Batch) -> Iterator[Batch]:
    for i, call in enumerate(batch):
        yield batch[:i] + batch[i + 1 :]
        if isinstance(call, Put) and len(call.rows) > 1:
            half = len(call.rows) // 2
            for rows in (call.rows[:half], call.rows[half:]):
                yield (*batch[:i], replace(call, rows=rows), *batch[i + 1 :])
            if len(call.rows) < 6:
                for k in range(len(call.rows)):
                    yield (*batch[:i], replace(call, rows=call.rows[:k] + call.rows[k + 1 :]), *batch[i + 1 :])


def script(scenario: Scenario) -> str:
    """A program that replays the scenario and prints its views."""
    lines = [
        "import datetime",
        "import tempfile",
        "from decimal import Decimal",
        "from math import inf, nan",
        "",
        "import pyarrow as pa",
        "import viewkeeper as vk",
        "from tests.naming import Called, Naming",
        "",
        'opened = vk.open("lmdb:" + tempfile.mkdtemp() + "/db", durability="none")',
        f"db = Called(opened, Naming({scenario.seed!r}))",
    ]
    lines += [f"db.sql({t.ddl!r})" for t in scenario.tables]
    tables = {t.name: t for t in scenario.tables}
    for number, batch in enumerate(scenario.batches):
        if number in scenario.reopened:
            lines.append("# here the database was closed and opened again")
        for late in (False, True):
            if late:
                lines += [_call_text(tables[call.table], call) for call in batch]
            for view, at, pending in zip(scenario.views, scenario.made_at, scenario.pending, strict=True):
                if (at, pending) == (number, late):
                    lines.append(f"db.sql({view.ddl!r})")
        lines.append('db.refresh(lane="driver")')
    lines += [f"print(db.read({v.name!r}).to_pylist())" for v in scenario.views]
    return "\n".join(lines)


def _call_text(table: Table, call: Put | Update | Delete) -> str:
    if isinstance(call, Update):
        return f"db.update({call.table!r}, {key_argument(call.key)!r}, {call.columns!r})"
    if isinstance(call, Delete):
        return f"db.delete({call.table!r}, {[key_argument(k) for k in call.keys]!r})"
    return f"db.put({call.table!r}, {list(call.rows)!r})"


def report(scenario: Scenario, problems: Sequence[Problem]) -> str:
    """What a failing test says."""
    by_name = {v.name: v for v in scenario.views}
    lines = [f"seed {scenario.seed}: {len(problems)} problem(s)"]
    for p in problems[:5]:
        text = by_name[p.view].ddl if p.view in by_name else ""
        lines += ["", f"{p.view or 'the batch'} after batch {p.batch}: {p.text}", f"  {text}"]
    return "\n".join([*lines, "", "replay:", script(scenario)])
