"""A join with a scalar by one comparison: `value > (SELECT avg(value) …)`, in HAVING or in WHERE.

    Δ(σ_{v > s}(R × S)) = σ(ΔR × Sⁿᵉʷ) + σ(Rᵒˡᵈ × ΔS)

The first is a lookup of one row. The second would meet all of R; but if nothing else of S is used, rows on which the
old and the new scalar agree cancel: R is kept in the order of v, and only what lies between the two is read
(`operators.threshold`). With `=` it is a lookup by key like any other.
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
"""Where `value op scalar` holds, and where `scalar op value` does."""


@dataclass(frozen=True)
class Threshold:
    """`value` of the relation at `step` is compared with `scalar`; the comparison holds on the side `reach` of it."""

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
    """The one comparison by which a scalar takes part in the join, if that is all that is used of it.

    `linked`: relations with an equality to another; `keep`: columns that are used after the join.
    """
    mine = {c.name for c in relations[start].columns}
    touching = [c for c in conditions if c.columns() & mine]
    if frozenset() not in relations[start].unique or start in linked or mine & output_columns or len(touching) != 1:
        return None
    condition = touching[0]
    if condition.op not in _RANGE_SIDES:
        return None
    for place, (value, scalar) in enumerate((condition.args, condition.args[::-1])):
        others = [i for i, r in enumerate(relations) if i != start and value.columns() & {c.name for c in r.columns}]
        apart = bool(scalar.columns()) and scalar.columns() <= mine and not value.columns() & mine
        if apart and len(others) == 1 and all(e.type.family in ORDERED_TYPE_FAMILIES for e in (value, scalar)):
            return Threshold(others[0], value, scalar, _RANGE_SIDES[condition.op][place])
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
    """The scalar's changes with the rows that they may let in or out."""
    names = positional_columns(relation.columns, "x")
    present = Expr("IsNotNull", types.BOOLEAN, (threshold.value,), nullable=False)
    exprs, key = _add_key_column(names, relation.columns, threshold.value, "y0")
    arranged = compiler.add_operator(
        Arrange(tuple(b.add_filter(present).build_segment(exprs, (key,), ordered=True) for b in relation.branches))
    )
    columns = [c for c in scalar.columns if c.name in later_columns]
    probes = positional_columns(columns, "p")
    exprs, key = _add_key_column(probes, columns, threshold.scalar, "q0")
    probe = tuple(b.build_segment(exprs, (key,), ordered=True) for b in scalar.branches)
    take = tuple((names[c.name].name, Column(f"a{i}", c.type, c.nullable)) for i, c in enumerate(relation.columns))
    operator = compiler.add_operator(Lookup(probe, arranged.id, new_state, take, is_load_path, threshold.range_side))
    inner = {c.name: column_reference(taken) for c, (_, taken) in zip(relation.columns, take, strict=True)}
    return Branch(operator, {c.name: column_reference(probes[c.name]) for c in columns} | inner)


def _add_key_column(
    names: dict[str, Column], columns: Sequence[Column], key: Expr, key_name: str
) -> tuple[list[Named], str]:
    """The columns under their positions, and the name of the one that the key is, or that is added for it."""
    exprs = [Named(names[c.name].name, column_reference(c)) for c in columns]
    if key.op == "column":
        return exprs, names[key.value].name
    return [*exprs, Named(key_name, key)], key_name
