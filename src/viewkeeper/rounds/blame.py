"""Whose fault an error is: that of one row and of the views which read it, or of nobody's rows.

Segments are linear and operators work by key, so over a part of their rows they do a part of their work. An error that
comes again over one row, or one key, alone is that row's, whatever its class; halving finds it. An error that does not
come again, or that the machine makes (disk, memory, a lost connection), is not the views' and stays what it is.

Where the row has the parameters of a family's member, the error is that member's, and the search goes on without its
rows: others may fail too, and what is left of the family goes on (`maintain.expelling`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper import expressions
from viewkeeper.errors import (
    BadValue,
    CorruptState,
    EvaluationError,
    MaintainerBusy,
    StoreError,
    TooLarge,
    ViewkeeperError,
)
from viewkeeper.expressions.tree import Expr
from viewkeeper.model.keys import encode_keys
from viewkeeper.model.names import HASH
from viewkeeper.model.naming import row_text
from viewkeeper.model.schema import WEIGHT, Table
from viewkeeper.operators.duck import Duck
from viewkeeper.operators.operator import Operator
from viewkeeper.operators.segments import Segment
from viewkeeper.plan.flow import Flow

Ports = Sequence[pa.Table | None]
Work = Callable[[Ports], object]

NOBODYS = (
    OSError,
    MemoryError,
    StoreError,
    CorruptState,
    MaintainerBusy,
    duckdb.OutOfMemoryException,
    duckdb.IOException,
    duckdb.InterruptException,
    duckdb.ConnectionException,
)
"""Of the machine, of the store, or of state that contradicts itself."""

_NAMED = 8
"""Columns of a row that are shown, if it is not known which are its key."""
_MOST = 256
"""Members of a family that are found at a time."""


class Blamed(NamedTuple):
    """A member of a family whose rows fail: the table of its parameters, the key in it, and the error."""

    parameters: int
    key: bytes
    message: str


class Failed(EvaluationError):
    """An operator failed on its rows; the message names one of them. `members`: of a family, whose they are."""

    def __init__(self, operator: str, message: str, members: Sequence[Blamed] = ()) -> None:
        self.operator = operator
        self.members = tuple(members)
        super().__init__(message)


def in_segment(duck: Duck, flow: Flow, segment: Segment, to: str, rows: pa.Table, work: Work, error: Exception) -> None:
    """Raise Failed if a segment's error is that of a row of its source; else return."""
    source = flow.operators[segment.source]
    blame = _blame(duck, error, [rows], work, jointly=False)
    if blame is not None:
        found, left = blame

        def told(ports: Ports) -> str:
            return _said(found, _row(flow, source, ports[0]))

        family = _family(rows, lambda name: place(flow, source, name))
        members = () if family is None else _members(family, [rows], left, work, type(error), told, jointly=False)
        raise Failed(to, told(left), members) from error


def in_operator(duck: Duck, flow: Flow, operator: Operator, ports: Ports, work: Work, error: Exception) -> None:
    """Raise Failed if an operator's error is that of rows at its ports; else return."""
    jointly = operator.jointly
    blame = _blame(duck, error, ports, work, jointly=jointly)
    if blame is not None:
        found, left = blame
        segment = next(operator.segments(), None)
        rows = next((p for p in left if p is not None and p.num_rows), None)

        def told(ports: Ports) -> str:
            return _said(found, _key(flow, operator, ports))

        family = None if segment is None else _family(rows, lambda name: _through(flow, segment, name))
        members = () if family is None else _members(family, ports, left, work, type(error), told, jointly=jointly)
        raise Failed(operator.id, told(left), members) from error


def _blame(
    duck: Duck, error: Exception, ports: Ports, work: Work, *, jointly: bool
) -> tuple[EvaluationError, Ports] | None:
    """The error as a view's own and the least rows over which it comes again; None if it is not the rows'."""
    known = not isinstance(error, ViewkeeperError) or isinstance(error, (EvaluationError, TooLarge, BadValue))
    if not known or isinstance(error, NOBODYS) or not _works(duck):
        return None
    try:
        left = _narrowed(ports, work, type(error), jointly)
    except Exception:  # what the search itself meets says nothing of the rows
        return None
    if left is None:
        return None
    found = expressions.error_code(error)
    return found or EvaluationError(f"{type(error).__name__}: {str(error).splitlines()[0]}"), left


def _works(duck: Duck) -> bool:
    """Whether the DuckDB is sound: one that gave itself up fails on everything."""
    with suppress(duckdb.Error):
        duck.run("SELECT 1 AS one")
        return True
    return False


def _narrowed(ports: Ports, work: Work, kind: type[Exception], jointly: bool) -> Ports | None:
    """Halve what is at the ports, all at once by hash or one port after the other, while the error comes again."""

    def fails(part: Ports) -> bool:
        try:
            work(part)
        except kind:
            return True
        return False

    came, left = False, list(ports)
    todo = [None] if jointly else [i for i, port in enumerate(ports) if port is not None and port.num_rows]
    for place in todo:
        going = True
        while going:
            going = False
            for part in _halves(left, place):
                if fails(part):
                    came, left, going = True, list(part), True
                    break
    return left if came or fails(left) else None


def _halves(ports: Ports, place: int | None) -> Iterator[Ports]:
    """Two parts of one port's rows, or of the keys at all ports; none if there is nothing to divide."""
    if place is None:
        hashes = np.unique(np.concatenate([p[HASH].to_numpy() for p in ports if p is not None]))
        if len(hashes) > 1:
            for half in np.array_split(hashes, 2):
                yield [None if p is None else p.filter(pa.array(np.isin(p[HASH].to_numpy(), half))) for p in ports]
        return
    port = ports[place]
    if port is None or port.num_rows < 2:
        return
    if HASH in port.column_names:  # a key's rows stay together: what comes of them may be wrong without the others
        codes = port[HASH].to_numpy()
        order = np.sort(codes)
        pivot = order[len(order) // 2]
        low = codes < pivot if pivot > order[0] else codes <= pivot
        masks = [low, ~low] if low.any() and not low.all() else []
        parts = [port.filter(pa.array(mask)) for mask in masks]
    else:
        middle = port.num_rows // 2
        parts = [port.slice(0, middle), port.slice(middle)]
    for part in parts:
        yield [part if i == place else p for i, p in enumerate(ports)]


# -- members of families ------------------------------------------------------------------------------------------


class _Family(NamedTuple):
    """The table of a family's parameters, and the columns in which rows have them."""

    table: Table
    columns: tuple[str, ...]

    def keys(self, rows: pa.Table) -> pa.Array:
        """Of rows, the members' keys in that table."""
        names = [k.column for k in self.table.key]
        arrow = {f.name: f.type for f in self.table.arrow}
        own = [rows.column(mine).cast(arrow[name]) for mine, name in zip(self.columns, names, strict=True)]
        return encode_keys(self.table, pa.table(own, names=names))


def _family(rows: pa.Table | None, place: Callable[[str], tuple[Table, str] | None]) -> _Family | None:
    """The family of views made by name whose parameters rows have, if they do. `place`: the table's column it is."""
    found: dict[int, tuple[Table, dict[str, str]]] = {}
    for name in () if rows is None else rows.column_names:
        at = place(name)
        if at is not None and at[0].is_hidden:
            found.setdefault(at[0].id, (at[0], {}))[1][at[1]] = name
    for table, columns in found.values():
        if all(k.column in columns for k in table.key):
            return _Family(table, tuple(columns[k.column] for k in table.key))
    return None


def _members(
    family: _Family,
    ports: Ports,
    left: Ports,
    work: Work,
    kind: type[Exception],
    told: Callable[[Ports], str],
    *,
    jointly: bool,
) -> list[Blamed]:
    """The members that rows at the ports fail for, the first being that of `left`."""
    found: list[Blamed] = []
    parts: Ports | None = left
    with suppress(Exception):  # those that were found are known to fail
        while parts is not None and len(found) < _MOST:
            rows = next(p for p in parts if p is not None and p.num_rows)
            key = family.keys(rows.slice(0, 1))[0].as_py()
            found.append(Blamed(family.table.id, key, told(parts)))
            ports = [None if p is None else _without(family, p, key) for p in ports]
            parts = _narrowed(ports, work, kind, jointly)
    return found


def _without(family: _Family, rows: pa.Table, key: bytes) -> pa.Table:
    """The rows of other members."""
    if not set(family.columns) <= set(rows.column_names):
        return rows
    return rows.filter(pc.not_equal(family.keys(rows), pa.scalar(key, pa.binary())))


# -- names ------------------------------------------------------------------------------------------------------------


def _said(found: EvaluationError, row: str) -> str:
    return found.message if not row else f"{found.message.rstrip()} In the row with {row}."


def _row(flow: Flow, source: Operator, rows: pa.Table | None) -> str:
    """A source's row: by its table's key, or by what it is made of."""
    if rows is None or not rows.num_rows:
        return ""
    if source.changes_of is not None:
        table = flow.tables[source.changes_of]
        names = {k.column: f"{table.name}.{k.column}" for k in table.key}
    else:
        columns = source.known_by or [c for c in rows.column_names if c not in (WEIGHT, HASH)]
        names = _shown({c: place(flow, source, c) for c in columns[:_NAMED]})
    return row_text(rows, {c: shown for c, shown in names.items() if c in rows.column_names})


def _key(flow: Flow, operator: Operator, ports: Ports) -> str:
    """The key of an operator's first row."""
    rows = next((p for p in ports if p is not None and p.num_rows), None)
    if rows is None:
        return ""
    columns = operator.key_columns or tuple(c for c in rows.column_names if c not in (WEIGHT, HASH))[:_NAMED]
    segment = next(operator.segments(), None)
    names = {c: None if segment is None else _through(flow, segment, c) for c in columns if c in rows.column_names}
    return row_text(rows, _shown(names))


def _shown(places: Mapping[str, tuple[Table, str] | None]) -> dict[str, str]:
    """Columns by the names that users know. A family is not one of them: of its rows, what is a table's is shown."""
    of_family = any(at is not None and at[0].is_hidden for at in places.values())
    if of_family:
        places = {c: at for c, at in places.items() if at is not None and not at[0].is_hidden}
    return {c: c if at is None else f"{at[0].name}.{at[1]}" for c, at in places.items()}


def place(flow: Flow, operator: Operator, name: str) -> tuple[Table, str] | None:
    """The table and its column that an operator's column shows as it is, if it is one."""
    if operator.changes_of is not None:
        return flow.tables[operator.changes_of], name
    found = operator.made_of(name)
    return None if found is None else _placed(flow, *found)


def _through(flow: Flow, segment: Segment, name: str) -> tuple[Table, str] | None:
    expr = next((n.expr for n in segment.exprs if n.name == name), None)
    return None if expr is None else _placed(flow, segment.source, expr)


def _placed(flow: Flow, source: str, expr: Expr) -> tuple[Table, str] | None:
    return place(flow, flow.operators[source], str(expr.value)) if expr.op == "column" else None
