"""Recompute: the output of a key is a function of the rows of that key, so run the real SQL on its new rows.

    affected = the hashes in the delta
    Δoutput  = sql(new rows of the affected) − what was emitted for the affected

What was emitted is stored, not computed again from the old rows: with ties, `row_number` or LIMIT are no functions of
the bag, and only what was emitted can be taken back. The unit is the hash: a slice may hold the rows of two keys that
collide, and then both are computed and both are compared.

SQL sees each row as often as its weight says (at most `clip` times, for a top-k that can show no more), never a
negative one. Its inputs are the tables `input0`, `input1`, … with `¤h`, and it gives `¤h` with each row of its output.
Where the SQL asks whether a group has another value, sums say the same (`others_step`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import ClassVar

import numpy as np
import pyarrow as pa

from viewkeeper.errors import Contradiction
from viewkeeper.model import types
from viewkeeper.model.delta import no_rows, weighted
from viewkeeper.model.names import FIRST, HASH, PLACE, quoted
from viewkeeper.model.schema import WEIGHT, Column
from viewkeeper.operators.aggregation.window_float_sums import Fold, folded, high, low
from viewkeeper.operators.chunked_execution import stepped, touched
from viewkeeper.operators.description import Drawn, Told
from viewkeeper.operators.exists_other_value_step import other_values, step_of_others
from viewkeeper.operators.operator import Operator, Ports, Site
from viewkeeper.operators.segment import LATER, Segment
from viewkeeper.operators.table_slices import Tables
from viewkeeper.resources.prepared_statements import Duck
from viewkeeper.state.consolidate import consolidate
from viewkeeper.state.hash_index import Hashes
from viewkeeper.state.run import Arrangement, distinct_hashes, weights_of

NOTHING_SHARED: Mapping[int, Callable[[Hashes], pa.Table]] = {}


@dataclass(frozen=True)
class Recompute(Operator):
    """`sql` reads `input0`, `input1`, …, one for each port, with rows repeated by weight.

    State: each input by key, and the output last emitted. An input that is a base table is read from a shared
    arrangement of it (`shared`), through its segment. `why` says, for EXPLAIN, why no cheaper kind does it.
    """

    inputs: tuple[tuple[Segment, ...], ...]
    shared: tuple[str | None, ...]
    sql: str
    output: tuple[Column, ...]
    why: str
    clip: int | None = None
    folds: tuple[Fold, ...] = field(default=(), metadata={LATER: True})
    kind: ClassVar[str] = "recompute"
    stateful: ClassVar[bool] = True
    jointly: ClassVar[bool] = True

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

    @property
    def reads(self) -> Mapping[str, frozenset[str]]:
        found: dict[str, frozenset[str]] = {}
        for port, shared in zip(self.inputs, self.shared, strict=True):
            if shared is not None:
                found[shared] = found.get(shared, frozenset()) | port[0].used()
        return found

    @property
    def key(self) -> tuple[str, ...]:
        return self.inputs[0][0].key or ()

    def run(self, site: Site, ports: Ports) -> Iterator[pa.Table]:
        at_hand = Tables(site, self)
        shared = {port: partial(at_hand.rows, port) for port, table in enumerate(self.shared) if table is not None}
        state, form = site.state(self), other_values(self)
        arrived = [table for tables in ports for table in tables]
        covered = None if form is None or not arrived else at_hand.covered(distinct_hashes(*arrived))
        looked_up = [site.fresh(f"{a}/0") for a in self.reads] if covered is None else []
        size = touched(site, [*state, *looked_up], ports) if self.key else 0

        def part(rows: list[pa.Table | None]) -> tuple[pa.Table, list[pa.Table]]:
            is_whole = sum(r.num_rows for r in rows if r is not None) == sum(t.num_rows for t in arrived)
            more = covered if is_whole else None
            found = None if form is None else step_of_others(site.duck, self, form, state, rows, at_hand, more)
            return step(site.duck, self, state, rows, shared) if found is None else found

        return stepped(site, self, ports, part, size)

    def seed(self, duck: Duck) -> Iterator[tuple[int, pa.Table]]:
        """Without keys all rows are one slice, which is computed also over nothing."""
        if not self.key:
            yield 0, no_rows(self.inputs[0][0].columns)

    def full(self, duck: Duck, states: Sequence[Arrangement]) -> pa.Table:
        """All that was emitted and not taken back."""
        if not states[-1].runs:
            return no_rows(self.output).drop_columns([HASH])
        return consolidate(duck, states[-1].rows([c.name for c in self.output]))

    @property
    def unproven(self) -> str:
        return self.why

    def attempt(self, duck: Duck) -> None:
        rows = [no_rows(port[0].columns).drop_columns([WEIGHT]) for port in self.inputs]
        duck.run(_sql(self), **{f"input{i}": r for i, r in enumerate(rows)})

    def describe(self, told: Told) -> str:
        return f"recompute by ({', '.join(self.key)}): {self.why}"

    def reason(self, told: Told) -> str:
        if not self.key:
            return "no key to divide the rows by: every change computes all of them anew, so the cost follows the data"
        return "no law gives the change of the result from the change of the rows: the changed keys are computed anew"

    def drawn(self, told: Told) -> Drawn:
        return Drawn("recompute", (self.why,), key=tuple(told.given(self.inputs[0][0], k) for k in self.key))


def step(
    duck: Duck,
    operator: Recompute,
    states: Sequence[Arrangement],
    deltas: Sequence[pa.Table | None],
    shared: Mapping[int, Callable[[Hashes], pa.Table]] = NOTHING_SHARED,
) -> tuple[pa.Table, list[pa.Table]]:
    """The output's delta, and what to add to each state: the inputs' in order, then the emitted rows'.

    `shared` gives, for a port whose rows another operator keeps, the new rows of some hashes, each as often as its
    weight says, which is not negative; it has no state here, and its delta only tells the hashes.

    `states` are the inputs' arrangements and, last, the emitted rows'. A delta may be None: nothing at that port.
    Without keys all rows are one slice with hash 0, which is computed also over nothing.
    """
    *inputs, emitted = states
    changes = [
        no_rows(port[0].columns) if delta is None else delta if i in shared else consolidate(duck, delta)
        for i, (delta, port) in enumerate(zip(deltas, operator.inputs, strict=True))
    ]
    affected = distinct_hashes(*changes) if operator.inputs[0][0].key else np.zeros(1, np.uint64)
    if not len(affected):
        empty = no_rows(operator.output)
        return empty.drop_columns([HASH]), [*(c for i, c in enumerate(changes) if i not in shared), empty]
    own = iter(inputs)
    rows = [
        shared[i](affected) if i in shared else _new(duck, next(own), change, affected)
        for i, change in enumerate(changes)
    ]
    new = [_repeated(r, operator) for r in rows]
    kept = [c for i, c in enumerate(changes) if i not in shared]
    computed = duck.run(_sql(operator), **{f"input{i}": rows for i, rows in enumerate(new)})
    shown = weighted(folded(computed, operator.folds) if operator.folds else computed, 1)
    if emitted.runs:
        shown = pa.concat_tables([shown, _negated(emitted.slice(affected).select(shown.column_names))])
    difference = consolidate(duck, shown)
    return difference.drop_columns([HASH]), [*kept, difference]


def _new(duck: Duck, state: Arrangement, change: pa.Table, affected: Hashes) -> pa.Table:
    """The rows of the affected hashes after the change."""
    if not state.runs:
        return change
    return consolidate(duck, pa.concat_tables([state.slice(affected).select(change.column_names), change]))


def _repeated(rows: pa.Table, operator: Recompute) -> pa.Table:
    """Each row as often as its weight."""
    weights = weights_of(rows)
    if (weights < 0).any():
        raise Contradiction("A slice holds fewer than no copies of a row.")
    rows = rows.drop_columns([WEIGHT])
    if not (weights > 1).any():
        return rows
    times = weights if operator.clip is None else np.minimum(weights, operator.clip)
    return rows.take(pa.array(np.repeat(np.arange(len(times)), times)))


@lru_cache(maxsize=1024)
def _sql(operator: Recompute) -> str:
    listed = [f"{quoted(c.name)}::{types.duckdb(c.type)} AS {quoted(c.name)}" for c in operator.output]
    if operator.folds:
        places = (PLACE, FIRST, *(n for f in operator.folds for n in (low(f), high(f))))
        listed += [f"{n}::BIGINT AS {n}" for n in places]
    columns = ", ".join(listed)
    return f"SELECT {columns}{', ' if columns else ''}{HASH}::UBIGINT AS {HASH} FROM ({operator.sql})"


def _negated(rows: pa.Table) -> pa.Table:
    return rows.set_column(rows.schema.get_field_index(WEIGHT), WEIGHT, pa.array(-weights_of(rows)))
