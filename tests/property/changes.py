"""Random changes, and the plain model of what they mean.

A batch is a list of calls; a call is one `put`, `update` or `delete` on one table. The model is a dict for each
table, key to row, kept without the store: `apply` states what a call means in four lines.

    put     each row replaces the row of its key whole; the last of a key wins; a missing column is NULL
    update  changes some columns of one row
    delete  removes keys; an absent key is no change
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import pyarrow as pa

from .schemas import Key, Row, Table, random_row

State = dict[str, dict[Key, Row]]
"""Rows of each table by key."""


@dataclass(frozen=True)
class Put:
    table: str
    rows: tuple[Row, ...]
    form: str = "dicts"  # or arrow, batch, pandas, one


@dataclass(frozen=True)
class Update:
    table: str
    key: Key
    columns: Row


@dataclass(frozen=True)
class Delete:
    table: str
    keys: tuple[Key, ...]
    form: str = "keys"  # or arrow, one


Call = Put | Update | Delete
Batch = tuple[Call, ...]


def apply(state: State, tables: Sequence[Table], call: Call) -> None:
    """What a call means."""
    table = next(t for t in tables if t.name == call.table)
    rows = state[table.name]
    if isinstance(call, Put):
        rows.update({table.key_of(row): {c.name: row.get(c.name) for c in table.columns} for row in call.rows})
    elif isinstance(call, Update):
        rows[call.key] = rows[call.key] | call.columns
    else:
        for key in call.keys:
            rows.pop(key, None)


def states(tables: Sequence[Table], batches: Iterable[Batch]) -> list[State]:
    """The base tables after each batch."""
    state: State = {t.name: {} for t in tables}
    history = []
    for batch in batches:
        for call in batch:
            apply(state, tables, call)
        history.append({name: dict(rows) for name, rows in state.items()})
    return history


def random_batches(rng: Random, tables: Sequence[Table], count: int) -> tuple[Batch, ...]:
    """The first load (sometimes nothing), then `count - 1` batches of changes."""
    state: State = {t.name: {} for t in tables}
    batches = []
    for number in range(count):
        if number:
            batches.append(_changes(rng, tables, state))
            continue
        batches.append(_load(rng, tables))
        for call in batches[0]:
            apply(state, tables, call)
    return tuple(batches)


def _load(rng: Random, tables: Sequence[Table]) -> Batch:
    return tuple(_put(rng, t, [random_row(rng, t) for _ in range(t.rows)]) for t in tables if t.rows)


def _changes(rng: Random, tables: Sequence[Table], state: State) -> Batch:
    """Calls that go on from `state`, which they change."""
    if rng.random() < 0.06:
        return ()
    calls: list[Call] = []
    for _ in range(rng.choice((1, 1, 2, 3, 5))):
        call = _call(rng, rng.choice(list(tables)), state)
        apply(state, tables, call)
        calls.append(call)
        if isinstance(call, Delete) and call.keys and rng.random() < 0.3:  # gone and back again
            table = next(t for t in tables if t.name == call.table)
            back = Put(call.table, tuple(_with_key(random_row(rng, table), table, k) for k in call.keys[:3]))
            apply(state, tables, back)
            calls.append(back)
    return tuple(calls)


def _call(rng: Random, table: Table, state: State) -> Call:
    rows = state[table.name]
    there = list(rows)
    roll = rng.random()
    if roll < 0.03:
        return Delete(table.name, tuple(there))  # everything
    if roll < 0.2:  # keys that are there, keys that are not, keys named twice
        keys = [rng.choice(there) for _ in range(rng.randint(1, 4)) if there]
        keys += [table.key_of(random_row(rng, table)) for _ in range(rng.randint(0, 2))]
        keys = keys or [table.key_of(random_row(rng, table))]
        form = rng.choice(("keys", "arrow", "one"))
        return Delete(table.name, tuple(keys[:1] if form == "one" else keys), form)
    values = [c for c in table.columns if c.name not in table.key]
    if roll < 0.4 and there and values:
        changed = rng.sample(values, rng.randint(1, len(values)))
        fresh = random_row(rng, table)
        return Update(table.name, rng.choice(there), {c.name: fresh[c.name] for c in changed})
    fresh_rows = [random_row(rng, table) for _ in range(rng.choice((0, 1, 1, 3, 8)))]
    for _ in range(rng.choice((0, 1, 3))):
        if there:  # over an existing row, often with few columns changed
            key = rng.choice(there)
            row = dict(rows[key]) | _with_key(random_row(rng, table), table, key)
            for column in values:
                if rng.random() < 0.6:
                    row[column.name] = rows[key][column.name]
            fresh_rows.append(row)
    rng.shuffle(fresh_rows)
    return _put(rng, table, fresh_rows)


def _put(rng: Random, table: Table, rows: Sequence[Row]) -> Put:
    form = rng.choice(("dicts", "dicts", "arrow", "batch"))
    if len(rows) == 1 and rng.random() < 0.5:
        form = "one"
    if form in ("dicts", "one") and rng.random() < 0.2:  # a missing column is NULL
        rows = [{name: v for name, v in row.items() if v is not None} for row in rows]
    return Put(table.name, tuple(rows), form)


def _with_key(row: Row, table: Table, key: Key) -> Row:
    return row | dict(zip(table.key, key, strict=True))


def put_argument(table: Table, call: Put) -> Any:
    """The rows as the caller hands them to `db.put`."""
    if call.form == "one":
        return call.rows[0]
    if call.form == "dicts":
        return list(call.rows)
    data = to_arrow(table, call.rows)
    return data if call.form == "arrow" else data.to_reader()


def delete_argument(table: Table, call: Delete) -> Any:
    """The keys as the caller hands them to `db.delete`: scalars for a key of one column."""
    if call.form == "arrow":
        schema = pa.schema([table.arrow.field(k) for k in table.key])
        return pa.table([pa.array([k[i] for k in call.keys], f.type) for i, f in enumerate(schema)], schema=schema)
    keys = [key_argument(k) for k in call.keys]
    return keys[0] if call.form == "one" else keys


def key_argument(key: Key) -> Any:
    return key[0] if len(key) == 1 else key


def to_arrow(table: Table, rows: Iterable[Row]) -> pa.Table:
    rows = list(rows)
    columns = [pa.array([r.get(f.name) for r in rows], f.type) for f in table.arrow]
    return pa.table(columns, schema=table.arrow)
