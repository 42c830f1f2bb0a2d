"""The row that an operator's error comes from, so that the message can name it.

Segments are linear and operators work by key, so over a part of their rows they do a part of their work. An error that
comes again over one row, or one key, alone is met with that row; halving finds it. If it does not come again, no row is
named.

Where the row has the parameters of a family's member, the error is that member's, and the search goes on without its
rows: others may fail too, and what is left of the family goes on (`maintain.expelling`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.errors import Contradiction, EvaluationError, TooLarge
from viewkeeper.expressions.tree import Expr
from viewkeeper.model.encoding.keys import encode_keys
from viewkeeper.model.names import HASH
from viewkeeper.model.row_names import row_text
from viewkeeper.model.schema import WEIGHT, Table
from viewkeeper.operators.description import Told
from viewkeeper.operators.operator import Operator
from viewkeeper.operators.segment import Segment
from viewkeeper.operators.segment_execution import passed
from viewkeeper.plan.dataflow.dataflow import Flow
from viewkeeper.resources.prepared_statements import Duck
from viewkeeper.runtime.operator_errors import PROCESS_FAULTS, Blamed, Failed, described, is_of_data

Ports = Sequence[pa.Table | None]
Work = Callable[[Ports], object]
Changed = Callable[[str], pa.Table | None]
"""The changes that a source gave in this batch, where they are at hand."""

_NAMED = 8
"""Columns of a row that are shown, if it is not known which are its key."""
_LOOKED_AT = 64
"""Rows that are looked at for the last one that came into a group."""
_MOST = 256
"""Members of a family that are found at a time."""


def in_segment(
    duck: Duck, flow: Flow, segment: Segment, to: str, rows: pa.Table, work: Work, error: Exception, changed: Changed
) -> Failed | None:
    """The error of a segment with the row of its source that it comes from; None if there is no such row."""
    source = flow.operators[segment.source]
    left = _narrowed([rows], work, type(error), jointly=False)
    if left is None:
        return None

    def told(ports: Ports) -> str:
        return _said(error, _row(flow, source, ports[0]), _latest(duck, flow, source, ports[0], changed))

    family = _family(rows, lambda name: place(flow, source, name))
    members = () if family is None else _members(family, [rows], left, work, type(error), told, jointly=False)
    return Failed(to, told(left), members)


def in_operator(
    duck: Duck, flow: Flow, operator: Operator, ports: Ports, work: Work, error: Exception, changed: Changed
) -> Failed | None:
    """The error of an operator with the key of the rows that it comes from; None if there are no such rows."""
    jointly = operator.jointly
    left = _narrowed(ports, work, type(error), jointly)
    if left is None:
        return None
    segment = next(operator.segments(), None)
    rows = next((p for p in left if p is not None and p.num_rows), None)

    def told(ports: Ports) -> str:
        first = next((p for p in ports if p is not None and p.num_rows), None)
        return _said(error, _key(flow, operator, first), _latest(duck, flow, operator, first, changed))

    family = None if segment is None else _family(rows, lambda name: _through(flow, segment, name))
    members = () if family is None else _members(family, ports, left, work, type(error), told, jointly=jointly)
    return Failed(operator.id, told(left), members)


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


def _said(error: Exception, where: str, latest: str) -> str:
    """The error with where it comes from: a row, or a group and the last row that came into it."""
    text = described(error).rstrip()
    if not is_of_data(error):
        met = f"the row with {latest}" if latest else where
        return f"{text.rstrip('.')}. It was met with {met}, which need not be its cause." if met else text
    if where:
        text = f"{text} In {where}."
    return f"{text} The last row that came into it is the one with {latest}." if latest else text


def _row(flow: Flow, source: Operator, rows: pa.Table | None) -> str:
    """A source's row: by its table's key, by its group's, or by what it is made of."""
    if rows is None or not rows.num_rows:
        return ""
    if source.changes_of is not None:
        table = flow.tables[source.changes_of]
        return f"the row with {row_text(rows, {k.column: f'{table.name}.{k.column}' for k in table.key})}"
    columns = source.known_by
    if columns is None:
        columns = tuple(c for c in rows.column_names if c not in (WEIGHT, HASH))[:_NAMED]
    traced = Told(flow, {}, {}).columns(source.id)
    places = {c: place(flow, source, c) for c in columns if c in rows.column_names}
    return _phrase(source, rows, _shown(places, traced.get))


def _key(flow: Flow, operator: Operator, rows: pa.Table | None) -> str:
    """The key of an operator's first row."""
    segment = next(operator.segments(), None)
    if rows is None or segment is None:
        return ""
    columns = operator.key_columns
    if not columns and operator.groups_by is None:
        columns = tuple(c for c in rows.column_names if c not in (WEIGHT, HASH))[:_NAMED]
    known = {n.name for n in segment.exprs}
    told = Told(flow, {}, {})
    places = {c: _through(flow, segment, c) for c in columns if c in rows.column_names}
    return _phrase(operator, rows, _shown(places, lambda c: told.given(segment, c) if c in known else None))


def _phrase(operator: Operator, rows: pa.Table, names: Mapping[str, str]) -> str:
    what = "row" if operator.groups_by is None else "group"
    if names:
        return f"the {what} with {row_text(rows, names)}"
    return "the group of all rows" if operator.groups_by == () else ""


def _latest(duck: Duck, flow: Flow, group: Operator, rows: pa.Table | None, changed: Changed) -> str:
    """Of a group: the last row of its table that came into it in this batch, where that is at hand."""
    segment = next(group.segments(), None)
    if rows is None or not rows.num_rows or segment is None or group.groups_by is None:
        return ""
    source = flow.operators[segment.source]
    came = None if source.changes_of is None else changed(source.id)
    if source.changes_of is None or came is None:
        return ""
    came = came.filter(pc.greater(came[WEIGHT], 0))
    key = {c: rows[c][0].as_py() for c in group.groups_by}
    table = flow.tables[source.changes_of]
    for at in reversed(range(max(0, came.num_rows - _LOOKED_AT), came.num_rows)):
        row = came.slice(at, 1)
        with suppress(Exception):  # the row may be one that the segment fails on
            given = passed(duck, segment, row)
            if not given.num_rows or any(given[c][0].as_py() != value for c, value in key.items()):
                continue
            return row_text(row, {k.column: f"{table.name}.{k.column}" for k in table.key})
    return ""


def _shown(places: Mapping[str, tuple[Table, str] | None], expression: Callable[[str], str | None]) -> dict[str, str]:
    """Columns by the names that users know: a table's column, or the expression that it is. Others are left out.

    A family is not known to users: of its rows, what is a table's is shown.
    """
    if any(at is not None and at[0].is_hidden for at in places.values()):
        return {c: f"{at[0].name}.{at[1]}" for c, at in places.items() if at is not None and not at[0].is_hidden}
    names = {c: expression(c) if at is None else f"{at[0].name}.{at[1]}" for c, at in places.items()}
    return {c: name for c, name in names.items() if name is not None}


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


# One view must not stop the others: an error that a view's own rows cause is that view's alone.
#
# Where operators run, `rounds.failures` names the operator and `broken_by` its views. Here are the two places where one
# view's rows are at hand and no operator is: at its sink, and in its table in the store. State that contradicts itself
# is that of the views that are made from it, as far as anybody can say.


class BrokenViews(EvaluationError):
    """These views failed on their own rows.

    `members`: of a family of views made by name, those that it failed for; or `key`, that of the row in its table.
    """

    def __init__(
        self, views: frozenset[int], message: str, members: Sequence[Blamed] = (), key: bytes | None = None
    ) -> None:
        self.views = views
        self.members = tuple(members)
        self.key = key
        super().__init__(message)


class Contradicted(Contradiction):
    """State that these views are made from contradicts itself."""

    def __init__(self, views: frozenset[int], message: str) -> None:
        self.views = views
        super().__init__(message)


def broken_by(flow: Flow, names: Mapping[int, str], failed: Failed) -> BrokenViews:
    """The views that an operator's error suspends: those that it is part of."""
    views = flow.views_of(failed.operator)
    stopped = ", ".join(sorted(names.get(v, "the new view") for v in views))
    return BrokenViews(views, f"{stopped}: {failed.message}", failed.members)


@contextmanager
def own_rows(view: Table) -> Iterator[None]:
    """What fails in here fails on the rows of this view, unless the machine or the store does."""
    try:
        yield
    except Contradiction as wrong:
        raise Contradicted(frozenset([view.id]), wrong.message) from wrong
    except (BrokenViews, *PROCESS_FAULTS):
        raise
    except Exception as error:
        raise BrokenViews(frozenset([view.id]), f"{view.name}: {described(error)}") from error


@contextmanager
def storing(views: Iterable[Table]) -> Iterator[None]:
    """A commit: a row that the store cannot hold stops the view that it is of."""
    try:
        yield
    except TooLarge as large:
        for view in views:
            if view.id == large.table:
                raise BrokenViews(frozenset([view.id]), f"{view.name}: {described(large)}", key=large.key) from large
        raise
