"""Few rows: a view's step on Python's own values, where a statement would cost more than the work.

    rows before −1, rows after +1 ──filter──▶ by group: counts and sums ──▶ state + Δ ──▶ the group's row

The law is that of `kinds.aggregate`, and so is what lies on the shelves, byte for byte. It is done for plain columns,
comparisons of a column with a constant, and counts, sums and averages of integers, sums of decimals, minimum and
maximum. Anything else, and whatever would be an error, is left to the operators: `step` gives None.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.expressions.tree import Expr
from viewkeeper.model import types
from viewkeeper.model.encoding.keys import encode_keys, plain_encoders, plain_key, successor
from viewkeeper.model.encoding.row_fields import decimal_of
from viewkeeper.model.encoding.rows import encode_plain, plain_row
from viewkeeper.model.schema import WEIGHT, Table
from viewkeeper.model.types import Type
from viewkeeper.operators.aggregation.encoded_sums import Sums
from viewkeeper.operators.aggregation.row_sums import COMPARED, Tally
from viewkeeper.operators.aggregation.spec import VALUE_FUNCTIONS, Accumulator, AggregateSpec, Measure, layout, summing
from viewkeeper.operators.segment import Segment
from viewkeeper.resources.prepared_statements import Duck
from viewkeeper.state.key_hash import hashes
from viewkeeper.state.run import Arrangement

Row = Mapping[str, Any]
Change = tuple[Table, bytes, bytes]
"""A table, a key, and its row from now on; none: it goes."""


class Lying(Protocol):
    """Rows of a store by their encoded keys, as they were when the write call began."""

    def one(self, table: Table, key: bytes, named: Row) -> bytes | None:
        """The row of a key, whose columns are `named`."""

    def some(self, table: Table, start: bytes | None, stop: bytes | None, limit: int) -> list[bytes]: ...


Passing = Callable[[Row], bool]


@dataclass(frozen=True)
class Columns:
    """A segment that passes some rows and picks columns: their names, and those of its source."""

    passing: Passing | None
    taken: tuple[tuple[str, str], ...]
    compared: frozenset[str] = frozenset()
    """The source's columns that decide which rows pass."""
    conditions: tuple[Expr, ...] = ()
    """What they must be."""


def columns_of(segment: Segment) -> Columns | None:
    """None if it does more."""
    if segment.times or segment.sign < 0 or any(n.expr.op != "column" for n in segment.exprs):
        return None
    parts = [part for where in segment.where for part in _parts(where)]
    tests = [_test(part) for part in parts]
    if None in tests:
        return None
    known = [test for test in tests if test is not None]
    passing = (lambda row: all(test(row) for test in known)) if known else None
    compared = frozenset(str(part.args[0].value) for part in parts)
    return Columns(passing, tuple((n.name, str(n.expr.value)) for n in segment.exprs), compared, tuple(parts))


def _parts(where: Expr) -> list[Expr]:
    return [p for arg in where.args for p in _parts(arg)] if where.op == "And" else [where]


def _test(expr: Expr) -> Passing | None:
    """A comparison that Python makes as Spark does; a comparison with NULL does not pass."""
    if expr.op == "IsNotNull" and expr.args[0].op == "column":
        name = str(expr.args[0].value)
        return lambda row: row[name] is not None
    if expr.op not in COMPARED or [a.op for a in expr.args] != ["column", "literal"]:
        return None
    column, literal = expr.args
    if column.type != literal.type or not (types.is_integer(column.type) or column.type == types.STRING):
        return None
    compare, name, value = COMPARED[expr.op], str(column.value), literal.value
    if value is None:
        return None
    if column.type == types.STRING:  # as bytes: that is Spark's order
        value = value.encode()
        return lambda row: row[name] is not None and compare(row[name].encode(), value)
    return lambda row: row[name] is not None and compare(row[name], value)


@dataclass(frozen=True)
class Placed:
    """The end of a view: its rows from those of the last operator. `taken` has a source's name for each column."""

    table: Table
    columns: Columns

    @cached_property
    def _sources(self) -> list[tuple[str, str]]:
        named = zip(self.table.columns, self.columns.taken, strict=True)
        return [(column.name, source) for column, (_, source) in named]

    @cached_property
    def named_by(self) -> frozenset[str]:
        """The source's columns that tell where a row lies: those of the key, and those that are compared."""
        keyed = {part.column for part in self.table.key}
        return frozenset(source for name, source in self._sources if name in keyed) | self.columns.compared

    @cached_property
    def _keyed(self) -> list[tuple[str, Callable[[Any], bytes]]]:
        sources = dict(self._sources)
        return [(sources[name], encode) for name, encode in plain_encoders(self.table)]

    def _key(self, row: Row) -> bytes:
        return b"".join([encode(row.get(source)) for source, encode in self._keyed]) or b"\x00"

    def keys(self, rows: Iterable[Row]) -> list[bytes]:
        """Where the view has these rows, those that it has."""
        passing = self.columns.passing
        return [self._key(row) for row in rows if passing is None or passing(row)]

    def rows(self, rows: Iterable[Row]) -> list[tuple[bytes, bytes]]:
        passing, sources = self.columns.passing, self._sources
        return [
            (self._key(row), encode_plain(self.table, {name: row[source] for name, source in sources}))
            for row in rows
            if passing is None or passing(row)
        ]


def placed(table: Table, segments: Sequence[Segment]) -> Placed | None:
    """None if the end of a view does more than to pick columns, or counts rows."""
    found = columns_of(segments[0]) if len(segments) == 1 and not table.is_bag else None
    return None if found is None else Placed(table, found)


def linear(end: Placed, before: Sequence[Row], after: Sequence[Row]) -> list[Change]:
    """What rows that went and rows that came do to a view without operators."""
    made = {**dict.fromkeys(end.keys(before), b""), **dict(end.rows(after))}
    return [(end.table, key, row) for key, row in made.items()]


Group = tuple[Any, ...]
Stepped = tuple[list[Change], list[Row], list[Row]]


class Groups:
    """An aggregate over plain columns, with the tables of its shelves by slot."""

    def __init__(self, spec: AggregateSpec, columns: Columns, shelved: Sequence[Sequence[Table]]) -> None:
        self._spec, self._columns, self._passing = spec, columns, columns.passing
        source = dict(columns.taken)
        plan = layout(spec)
        self._names = [k.name for k in spec.keys]
        self._keys = [source[name] for name in self._names]
        self._vectors = shelved[0][0]
        self._fed = [(a.kind, source[a.argument], a.name) for a in plan.plain]
        self._values = [(a, source[a], tables) for a, tables in zip(plan.values, shelved[1:], strict=True)]
        self._measures = [_reading(measure) for measure in spec.measures]
        self._nothing = dict.fromkeys(("¤n", *(name for _, _, name in self._fed)), 0)

    def step(
        self, before: Sequence[Row], after: Sequence[Row], lying: Lying, named_by: frozenset[str]
    ) -> Stepped | None:
        """What becomes of the state, and the touched groups' rows as they were and as they are. `named_by`: what is
        asked of those that were."""
        deltas: dict[Group, dict[str, int]] = {}
        counted: dict[Group, list[dict[Any, int]]] = {}
        for weight, rows in ((-1, before), (1, after)):
            for row in rows if self._passing is None else filter(self._passing, rows):
                self._add(row, weight, deltas, counted)
        brief = named_by <= set(self._names)
        changes: list[Change] = []
        was: list[Row] = []
        now: list[Row] = []
        for group, delta in deltas.items():
            named = dict(zip(self._names, group, strict=True))
            key = plain_key(self._vectors, named)
            lies = lying.one(self._vectors, key, named)
            old = self._nothing if lies is None else plain_row(self._vectors, lies)
            new = {name: old[name] + added for name, added in delta.items()}
            stays = not self._names or any(new.values())
            changes.append((self._vectors, key, encode_plain(self._vectors, {**named, **new}) if stays else b""))
            extremes: tuple[dict[tuple[str, str], Any], ...] = ({}, {})
            for (argument, _, tables), values in zip(self._values, counted[group], strict=True):
                changes += self._ends(argument, tables, named, values, lying, extremes)
            for shown, side, ends, there in ((was, old, extremes[0], lies is not None), (now, new, extremes[1], True)):
                if side["¤n"] > 0 or (there and not self._names):
                    made = named if brief and side is old else self._read(named, side, ends)
                    if made is None or new["¤n"] < 0:
                        return None
                    shown.append(made)
        return changes, was, now

    def of_many(self, end: Placed) -> Sums | None:
        """The same for many rows at once, for a view that shows the groups as they are; None if that is not so."""
        if not self._shows_groups(end):
            return None
        reads = [(name, function, counts, sums) for name, function, _, counts, sums, *_ in self._measures]
        taken = [source for _, source in end.columns.taken]
        fed = (self._columns.conditions, self._keys, self._fed, reads)
        return Sums(self._spec, *fed, self._vectors, end.table, taken)

    def tally(self, end: Placed) -> Tally | None:
        """The same for few rows of a write call, under the same condition."""
        if not self._shows_groups(end):
            return None
        conditions, taken = self._columns.conditions, [source for _, source in end.columns.taken]
        made = (self._names, self._keys, conditions, self._fed, self._measures)
        return Tally(*made, self._vectors, end.table, taken)

    def _shows_groups(self, end: Placed) -> bool:
        """Whether a view shows the groups as they are, and each has numbers only."""
        plain = not self._values and not end.columns.conditions
        return plain and bool(self._names) and end.named_by <= set(self._names)

    def in_runs(self, duck: Duck, state: Arrangement, key: bytes, named: Row) -> bytes | None:
        """What a group's sums are in a state of runs, as they would lie on the shelf."""
        asked = pa.table({k.name: _column(k.type, named[k.name]) for k in self._spec.keys})
        rows = state.slice(hashes(duck, asked, tuple(self._names)) if self._names else np.zeros(1, np.uint64))
        if rows.num_rows:  # an arrangement without runs does not know its columns
            rows = rows.filter(pc.equal(encode_keys(self._vectors, rows), pa.scalar(key, pa.binary())))
        if not rows.num_rows:
            return None
        sums = {name: sum(map(int, rows[name].to_pylist())) for name in ("¤n", *(name for _, _, name in self._fed))}
        return encode_plain(self._vectors, {**named, **sums})

    def _add(
        self, row: Row, weight: int, deltas: dict[Group, dict[str, int]], counted: dict[Group, list[dict[Any, int]]]
    ) -> None:
        group = tuple([row[k] for k in self._keys])
        delta = deltas.get(group)
        if delta is None:
            delta = deltas[group] = dict(self._nothing)
            counted[group] = [{} for _ in self._values]
        delta["¤n"] += weight
        for kind, source, name in self._fed:
            value = row[source]
            if value is not None:
                delta[name] += weight * (1 if kind == "count" else int(float(value)) if kind == "double" else value)
        for (_, source, _), values in zip(self._values, counted[group], strict=True):
            value = row[source]
            if value is not None:
                values[value] = values.get(value, 0) + weight

    def _ends(
        self,
        argument: str,
        tables: Sequence[Table],
        named: Row,
        values: Mapping[Any, int],
        lying: Lying,
        extremes: tuple[dict[tuple[str, str], Any], ...],
    ) -> list[Change]:
        """What becomes of a group's values; the least and the greatest, as they were and are, go into `extremes`."""
        changes: list[Change] = []
        new: dict[Any, int] = {}
        for value, weight in values.items():
            row = {**named, argument: value}
            lies = lying.one(tables[0], plain_key(tables[0], row), row)
            new[value] = weight + (0 if lies is None else plain_row(tables[0], lies)[WEIGHT])
            for table in tables:
                after = encode_plain(table, {**row, WEIGHT: new[value]}) if new[value] else b""
                changes.append((table, plain_key(table, row), after))
        for table in tables:
            function = "Max" if table.key[-1].descending else "Min"
            start = plain_key(table, named, len(self._names)) if self._names else None
            stop = None if start is None else successor(start)
            rows = lying.some(table, start, stop, len(values) + 1)
            there = [plain_row(table, row)[argument] for row in rows]
            left = [v for v in there if new.get(v, 1) > 0] + [v for v, count in new.items() if count > 0]
            best = max if function == "Max" else min
            extremes[0][function, argument] = there[0] if there else None
            extremes[1][function, argument] = best(left, default=None)
        return changes

    def _read(self, named: Row, side: Mapping[str, int], extremes: Mapping[tuple[str, str], Any]) -> Row | None:
        """The row of a group; None if a sum does not fit."""
        row = dict(named)
        for name, function, argument, counts, sums, least, most in self._measures:
            if function in VALUE_FUNCTIONS:
                row[name] = extremes[function, argument]
            elif not sums:
                row[name] = side[counts]
            else:
                count, total = side[counts], side[sums]
                if function == "Sum" and not least <= total <= most:
                    return None
                row[name] = None if not count else total if function == "Sum" else float(total) / count
        return row


def _reading(measure: Measure) -> tuple[str, str, str, str, str, int, int]:
    """A measure, what it is read from (a count, a sum), and the least and the greatest sum that fits."""
    argument, function = measure.argument, measure.function
    if argument is None:
        return measure.name, function, "", "¤n", "", 0, 0
    is_sum = function in ("Sum", "Average")
    digits = types.decimal_digits(measure.type)
    most = 10 ** digits[0] - 1 if digits else (1 << 63) - 1
    sums = summing(measure).name if is_sum else ""
    return measure.name, function, argument, Accumulator("count", argument).name, sums, -most - (not digits), most


def groups(spec: AggregateSpec, segments: Sequence[Segment], shelved: Sequence[Sequence[Table]]) -> Groups | None:
    """None if it cannot be done so."""
    columns = columns_of(segments[0]) if len(segments) == 1 else None
    plan = layout(spec)
    known = not plan.distincts and all(a.kind in ("count", "sum", "double") for a in plan.accumulators)
    exact = all(_is_exact(m) for m in spec.measures) and not any(types.is_float(k.type) for k in spec.keys)
    return Groups(spec, columns, shelved) if columns is not None and known and exact else None


def _column(kind: Type, value: Any) -> pa.Array:
    """One plain value as a column."""
    arrow = types.arrow(kind)
    if pa.types.is_decimal(arrow):
        return pa.array([None if value is None else decimal_of(value, arrow.scale)], arrow)
    if pa.types.is_date32(arrow):
        return pa.array([value], pa.int32()).cast(arrow)
    return pa.array([value], pa.int64()).cast(arrow) if pa.types.is_timestamp(arrow) else pa.array([value], arrow)


def _is_exact(measure: Measure) -> bool:
    kind = measure.argument_type
    if measure.function == "Average":
        return kind is not None and types.is_integer(kind)
    ordered = measure.function in VALUE_FUNCTIONS and kind in (types.STRING, types.BINARY, types.BOOLEAN)
    return kind is None or not (types.is_float(kind) or ordered)
