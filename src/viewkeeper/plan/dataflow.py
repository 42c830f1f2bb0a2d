"""The maintenance plan: a graph of operators through which deltas flow.

    Input ──segment──▶ Arrange            state: rows by key, shared by every view that looks them up
      └────segment──▶ Lookup ──segment──▶ Lookup ──segment──▶ Aggregate ──segment──▶ Sink

An **operator** has ports; a port is fed by segments. A **segment** is a linear statement (filter, projection, and the
hash of the key by which its consumer is distributed) over the output of one operator: it runs where its source ran,
needs no state, and is one prepared DuckDB statement. Between a segment and an operator with a key lies an exchange.

An operator's id is the hash of what it computes, its sources included, so equal sub-plans of all views are one node,
and state on disk is found again by what it means. Column names inside are positions, never names of a query.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, ClassVar

from viewkeeper.errors import Defect
from viewkeeper.model.names import HASH as HASH
from viewkeeper.model.names import WEIGHT, quoted
from viewkeeper.model.schema import Column
from viewkeeper.operators.segments import Segment as Segment
from viewkeeper.operators.segments import hash_sql as hash_sql
from viewkeeper.operators.segments import where_sql as where_sql
from viewkeeper.plan.nodes import Expr, Named, Node, Order, node_to_json


@dataclass(frozen=True)
class Operator:
    """Base of the operators. `ports` holds, for each port, the segments that feed it."""

    kind: ClassVar[str]
    stateful: ClassVar[bool] = False
    keyed: ClassVar[bool] = True

    @cached_property
    def id(self) -> str:
        text = json.dumps([self.kind, *_said(self)], sort_keys=True)
        return f"{self.kind}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"

    @property
    def ports(self) -> tuple[tuple[Segment, ...], ...]:
        return ()

    @property
    def columns(self) -> tuple[Column, ...]:
        raise Defect(f"A {type(self).__name__} does not say what it is.")

    @property
    def slots(self) -> int:
        """How many arrangements of its own it keeps."""
        return 0

    @property
    def arity(self) -> int:
        """How many ports deltas arrive at."""
        return max(1, len(self.ports))

    @property
    def looked_up(self) -> tuple[str, ...]:
        """Arrangements of other operators that it reads in their fresh state."""
        return ()

    def segments(self) -> Iterator[Segment]:
        for port in self.ports:
            yield from port


@dataclass(frozen=True)
class Input(Operator):
    """The changes of a base table: the columns that any view uses, consolidated."""

    table: int
    kind: ClassVar[str] = "input"
    keyed: ClassVar[bool] = False

    @property
    def columns(self) -> tuple[Column, ...]:
        raise Defect("An input's columns are those that the segments over it read")


@dataclass(frozen=True)
class Image(Operator):
    """A base table arranged by plain columns; by its primary key it is the table image.

    It holds every column that any view uses, so it is shared by (table, key) whatever the views select.
    """

    table: int
    key: tuple[str, ...]
    kind: ClassVar[str] = "image"
    stateful: ClassVar[bool] = True

    @property
    def slots(self) -> int:
        return 1


@dataclass(frozen=True)
class SelectedImage(Image):
    """The table image where every view that reads the table makes the same comparisons: only rows that pass them."""

    where: tuple[Expr, ...]


@dataclass(frozen=True)
class Arrange(Operator):
    """A relation that is no plain base table, arranged by the key on which it is looked up."""

    source: tuple[Segment, ...]
    kind: ClassVar[str] = "arrange"
    stateful: ClassVar[bool] = True

    @property
    def ports(self) -> tuple[tuple[Segment, ...], ...]:
        return (self.source,)

    @property
    def columns(self) -> tuple[Column, ...]:
        return self.source[0].columns

    @property
    def key(self) -> tuple[str, ...]:
        key = self.source[0].key
        if key is None:
            raise Defect("An arrangement has no key.")
        return key

    @property
    def slots(self) -> int:
        return 1


@dataclass(frozen=True)
class Lookup(Operator):
    """Probe rows times the rows of an arrangement with the same hash; the next segment compares the real keys.

    `fresh`: the arrangement with this batch's changes, else as the last batch left it. `take` pairs an arrangement's
    column with the name that it gets here.
    """

    probe: tuple[Segment, ...]
    arrangement: str
    fresh: bool
    take: tuple[tuple[str, Column], ...]
    load: bool = False
    """Whether this lookup also runs in a first load on Spark (the path of the join's last relation)."""
    reach: str = ""
    """`above`, `below`: not rows of the same key but those whose comparison with the probe's value (on this side of it)
    differs from that with another probe's: see `thresholds`."""
    kind: ClassVar[str] = "lookup"

    @property
    def looked_up(self) -> tuple[str, ...]:
        return (self.arrangement,) if self.fresh else ()

    @property
    def ports(self) -> tuple[tuple[Segment, ...], ...]:
        return (self.probe,)

    @property
    def columns(self) -> tuple[Column, ...]:
        return (*self.probe[0].columns, *(c for _, c in self.take))


@dataclass(frozen=True)
class BulkJoin(Operator):
    """The whole join at once, for first loads in the driver: one DuckDB statement over all relations."""

    relations: tuple[tuple[Segment, ...], ...]
    where: tuple[Expr, ...]
    kind: ClassVar[str] = "bulkjoin"

    @property
    def ports(self) -> tuple[tuple[Segment, ...], ...]:
        return self.relations

    @property
    def columns(self) -> tuple[Column, ...]:
        return tuple(c for relation in self.relations for c in relation[0].columns)

    @cached_property
    def sql(self) -> str:
        """Each relation is a table `input0`, `input1`, …; their weights multiply."""
        names = [f"input{i}" for i in range(len(self.relations))]
        weight = " * ".join(f"{n}.{WEIGHT}" for n in names)
        condition = f" WHERE {where_sql(self.where)}" if self.where else ""
        columns = "".join(f"{quoted(c.name)}, " for c in self.columns)
        return f"SELECT {columns}CAST({weight} AS BIGINT) AS {WEIGHT} FROM {', '.join(names)}{condition}"


@dataclass(frozen=True)
class Consolidate(Operator):
    """The sum of its inputs with what cancels removed.

    Stands between a join's paths and an expression that can raise: a path may bring a combination of rows that was
    never in any state, which another path takes back.
    """

    source: tuple[Segment, ...]
    kind: ClassVar[str] = "consolidate"

    @property
    def ports(self) -> tuple[tuple[Segment, ...], ...]:
        return (self.source,)

    @property
    def columns(self) -> tuple[Column, ...]:
        return self.source[0].columns


@dataclass(frozen=True)
class Measure:
    """One aggregate: `function` (a Catalyst class name) of the input column `argument` (None: count(*))."""

    name: str
    function: str
    argument: str | None
    argument_type: str | None
    type: str
    distinct: bool = False

    @property
    def column(self) -> Column:
        return Column(self.name, self.type)


@dataclass(frozen=True)
class AggregateSpec:
    keys: tuple[Column, ...]
    measures: tuple[Measure, ...]


@dataclass(frozen=True)
class Aggregate(Operator):
    """Groups as a vector space: exact sums and counts by group, value counts for extremes and DISTINCT."""

    source: tuple[Segment, ...]
    spec: AggregateSpec
    exchanges: int
    kind: ClassVar[str] = "aggregate"
    stateful: ClassVar[bool] = True

    @property
    def ports(self) -> tuple[tuple[Segment, ...], ...]:
        return (self.source,)

    @property
    def columns(self) -> tuple[Column, ...]:
        return (*self.spec.keys, *(m.column for m in self.spec.measures))

    @property
    def slots(self) -> int:
        return self.exchanges

    @property
    def arity(self) -> int:
        """Rows are pre-aggregated before they travel: partial sums, and the values of each counted argument."""
        return self.exchanges


@dataclass(frozen=True)
class Fold:
    """A sum or average of floats over a window's frame, which is the places from `low` to `high`.

    A row's place is that in the order of all rows (`PLACE`); `FIRST` is the place of its partition's first row. SQL
    gives the row's own value in its column; `operators.folds` adds the frame's values up in their order.
    """

    column: str
    average: bool


def low(fold: Fold) -> str:
    return f"{fold.column}_l"


def high(fold: Fold) -> str:
    return f"{fold.column}_h"


@dataclass(frozen=True)
class Recompute(Operator):
    """The output of a key is a function of the rows of that key: run the real SQL on the slices that changed.

    `sql` reads `input0`, `input1`, …, one for each port, with rows repeated by weight. State: each input by key, and
    the output last emitted. An input that is a base table is read from a shared arrangement of it (`shared`), through
    its segment. `why` says, for EXPLAIN, why no cheaper kind does it.
    """

    inputs: tuple[tuple[Segment, ...], ...]
    shared: tuple[str | None, ...]
    sql: str
    output: tuple[Column, ...]
    why: str
    clip: int | None = None
    folds: tuple[Fold, ...] = ()
    kind: ClassVar[str] = "recompute"
    stateful: ClassVar[bool] = True

    @property
    def ports(self) -> tuple[tuple[Segment, ...], ...]:
        return self.inputs

    @property
    def columns(self) -> tuple[Column, ...]:
        return self.output

    @property
    def slots(self) -> int:
        return self.shared.count(None) + 1

    @property
    def looked_up(self) -> tuple[str, ...]:
        return tuple(s for s in self.shared if s is not None)


@dataclass(frozen=True)
class TopK(Operator):
    """ORDER BY … LIMIT over all rows: the first `count` after `offset`, in a total order (an ORDER BY clause).

    State: all rows, and a buffer of the first ones with a margin, from which most batches are answered.
    """

    source: tuple[Segment, ...]
    order: str
    count: int
    offset: int
    kind: ClassVar[str] = "topk"
    stateful: ClassVar[bool] = True

    @property
    def ports(self) -> tuple[tuple[Segment, ...], ...]:
        return (self.source,)

    @property
    def columns(self) -> tuple[Column, ...]:
        return self.source[0].columns

    @property
    def slots(self) -> int:
        return 2


@dataclass(frozen=True)
class Sink(Operator):
    """The end of a view: its table in the store."""

    view: int
    source: tuple[Segment, ...]
    kind: ClassVar[str] = "sink"
    keyed: ClassVar[bool] = False

    @property
    def ports(self) -> tuple[tuple[Segment, ...], ...]:
        return (self.source,)

    @property
    def columns(self) -> tuple[Column, ...]:
        return self.source[0].columns


_LATER = frozenset({"folds", "ordered", "reach"})
"""Fields that came later: left out of names where they say nothing, so that stored state keeps its name."""


def _said(value: Any) -> list[Any]:
    held = ((f.name, getattr(value, f.name)) for f in fields(value))
    return [_json(v) for name, v in held if name not in _LATER or v]


def _json(value: Any) -> Any:
    if isinstance(value, Segment):
        return _said(value)
    if isinstance(value, Expr):
        return value.to_json()
    if isinstance(value, Node):
        return node_to_json(value)
    if isinstance(value, Column):  # what is not said is left out: a name must not change with the program's version
        return [value.name, value.type, value.nullable, *([value.alias] if value.alias else [])]
    if isinstance(value, (Segment, Named, Measure, AggregateSpec, Order, Fold)):
        return [_json(getattr(value, f.name)) for f in fields(value)]
    if isinstance(value, tuple):
        return [_json(v) for v in value]
    return value
