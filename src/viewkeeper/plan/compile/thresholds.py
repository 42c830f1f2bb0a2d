"""Range lookups: joins with a scalar by one comparison, `value > (SELECT avg(value) …)`, in HAVING or WHERE.

    Δ(σ_{v > s}(R × S)) = σ(ΔR × Sⁿᵉʷ) + σ(Rᵒˡᵈ × ΔS)

The first term is a lookup of one row. The second would read all of R. But if nothing else of S is used, the rows on
which the comparisons with the old and the new scalar agree cancel: R is kept in the order of v, and only the rows
between the two scalars are read. A comparison with `=` is a lookup by key like any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from viewkeeper.model import types
from viewkeeper.model.schema import Column
from viewkeeper.operators.kinds import Arrange, Lookup
from viewkeeper.operators.segment import ORDERED_TYPE_FAMILIES
from viewkeeper.plan.compile.branch import Branch, column_reference, positional_columns
from viewkeeper.plan.logical.nodes import Expr, Named

if TYPE_CHECKING:
    from viewkeeper.plan.compile.compiler import Compiler
    from viewkeeper.plan.compile.join_relations import JoinRelation

_RANGE_SIDES = {
    "GreaterThan": ("above", "below"),
    "GreaterThanOrEqual": ("above", "below"),
    "LessThan": ("below", "above"),
    "LessThanOrEqual": ("below", "above"),
}
"""By operator: the side on which `value op scalar` holds, and the side on which `scalar op value` holds."""


@dataclass(frozen=True)
class Threshold:
    """`value` of `relation` is compared with `scalar`; the comparison holds on the side `range_side` of the scalar."""

    relation: int
    value: Expr
    scalar: Expr
    range_side: str


def find_threshold(
    relations: Sequence[JoinRelation],
    start: int,
    linked: frozenset[int],
    conditions: Sequence[Expr],
    output_columns: frozenset[str],
) -> Threshold | None:
    """Return the comparison by which a scalar takes part in the join; None if more of the scalar is used.

    `linked`: relations with an equality to another; `output_columns`: columns that are used after the join.
    """
    scalar_columns = {c.name for c in relations[start].columns}
    comparisons = [c for c in conditions if c.columns() & scalar_columns]
    if (
        frozenset() not in relations[start].unique
        or start in linked
        or scalar_columns & output_columns
        or len(comparisons) != 1
    ):
        return None
    condition = comparisons[0]
    if condition.op not in _RANGE_SIDES:
        return None
    for index, (value, scalar) in enumerate((condition.args, condition.args[::-1])):
        value_relations = [
            i for i, r in enumerate(relations) if i != start and value.columns() & {c.name for c in r.columns}
        ]
        is_separated = (
            bool(scalar.columns()) and scalar.columns() <= scalar_columns and not value.columns() & scalar_columns
        )
        if (
            is_separated
            and len(value_relations) == 1
            and all(e.type.family in ORDERED_TYPE_FAMILIES for e in (value, scalar))
        ):
            return Threshold(value_relations[0], value, scalar, _RANGE_SIDES[condition.op][index])
    return None


def compile_range_lookup(
    compiler: Compiler,
    scalar: JoinRelation,
    relation: JoinRelation,
    threshold: Threshold,
    later_columns: frozenset[str],
    new_state: bool,
    is_load_path: bool,
) -> Branch:
    """Return the scalar's delta joined with the rows that the change may add to or remove from the result."""
    names = positional_columns(relation.columns, "x")
    present = Expr("IsNotNull", types.BOOLEAN, (threshold.value,), nullable=False)
    exprs, key = _add_key_column(names, relation.columns, threshold.value, "y0")
    arrangement = compiler.add_operator(
        Arrange(tuple(b.add_filter(present).build_segment(exprs, (key,), ordered=True) for b in relation.branches))
    )
    columns = [c for c in scalar.columns if c.name in later_columns]
    probes = positional_columns(columns, "p")
    exprs, key = _add_key_column(probes, columns, threshold.scalar, "q0")
    probe = tuple(b.build_segment(exprs, (key,), ordered=True) for b in scalar.branches)
    fetched = tuple((names[c.name].name, Column(f"a{i}", c.type, c.nullable)) for i, c in enumerate(relation.columns))
    operator = compiler.add_operator(
        Lookup(probe, arrangement.id, new_state, fetched, is_load_path, threshold.range_side)
    )
    relation_columns = {
        c.name: column_reference(fetched_column)
        for c, (_, fetched_column) in zip(relation.columns, fetched, strict=True)
    }
    return Branch(operator, {c.name: column_reference(probes[c.name]) for c in columns} | relation_columns)


def _add_key_column(
    names: dict[str, Column], columns: Sequence[Column], key: Expr, key_name: str
) -> tuple[list[Named], str]:
    """Return the columns named by position, and the name of the key column, which is appended if the key is no
    column."""
    exprs = [Named(names[c.name].name, column_reference(c)) for c in columns]
    if key.op == "column":
        return exprs, names[key.value].name
    return [*exprs, Named(key_name, key)], key_name
