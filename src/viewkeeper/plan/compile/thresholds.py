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
from viewkeeper.operators.segment import ORDERED
from viewkeeper.plan.compile.branch import Branch, positional, reference
from viewkeeper.plan.logical.nodes import Expr, Named

if TYPE_CHECKING:
    from viewkeeper.plan.compile.compiler import Compiler
    from viewkeeper.plan.compile.join_relations import Relation

_REACH = {
    "GreaterThan": ("above", "below"),
    "GreaterThanOrEqual": ("above", "below"),
    "LessThan": ("below", "above"),
    "LessThanOrEqual": ("below", "above"),
}
"""Where `value op scalar` holds, and where `scalar op value` does."""


@dataclass(frozen=True)
class Threshold:
    """`value` of the relation at `step` is compared with `scalar`; the comparison holds on the side `reach` of it."""

    step: int
    value: Expr
    scalar: Expr
    reach: str


def threshold(
    relations: Sequence[Relation], start: int, linked: frozenset[int], conditions: Sequence[Expr], keep: frozenset[str]
) -> Threshold | None:
    """The one comparison by which a scalar takes part in the join, if that is all that is used of it.

    `linked`: relations with an equality to another; `keep`: columns that are used after the join.
    """
    mine = {c.name for c in relations[start].columns}
    touching = [c for c in conditions if c.columns() & mine]
    if frozenset() not in relations[start].unique or start in linked or mine & keep or len(touching) != 1:
        return None
    condition = touching[0]
    if condition.op not in _REACH:
        return None
    for place, (value, scalar) in enumerate((condition.args, condition.args[::-1])):
        others = [i for i, r in enumerate(relations) if i != start and value.columns() & {c.name for c in r.columns}]
        apart = bool(scalar.columns()) and scalar.columns() <= mine and not value.columns() & mine
        if apart and len(others) == 1 and all(e.type.family in ORDERED for e in (value, scalar)):
            return Threshold(others[0], value, scalar, _REACH[condition.op][place])
    return None


def lookup(
    compiler: Compiler,
    scalar: Relation,
    relation: Relation,
    found: Threshold,
    later: frozenset[str],
    fresh: bool,
    load: bool,
) -> Branch:
    """The scalar's changes with the rows that they may let in or out."""
    names = positional(relation.columns, "x")
    present = Expr("IsNotNull", types.BOOLEAN, (found.value,), nullable=False)
    exprs, key = _keyed(names, relation.columns, found.value, "y0")
    arranged = compiler.add(
        Arrange(tuple(b.filtered(present).segment(exprs, (key,), ordered=True) for b in relation.branches))
    )
    columns = [c for c in scalar.columns if c.name in later]
    probes = positional(columns, "p")
    exprs, key = _keyed(probes, columns, found.scalar, "q0")
    probe = tuple(b.segment(exprs, (key,), ordered=True) for b in scalar.branches)
    take = tuple((names[c.name].name, Column(f"a{i}", c.type, c.nullable)) for i, c in enumerate(relation.columns))
    operator = compiler.add(Lookup(probe, arranged.id, fresh, take, load, found.reach))
    inner = {c.name: reference(taken) for c, (_, taken) in zip(relation.columns, take, strict=True)}
    return Branch(operator, {c.name: reference(probes[c.name]) for c in columns} | inner)


def _keyed(names: dict[str, Column], columns: Sequence[Column], key: Expr, extra: str) -> tuple[list[Named], str]:
    """The columns under their positions, and the name of the one that the key is, or that is added for it."""
    exprs = [Named(names[c.name].name, reference(c)) for c in columns]
    if key.op == "column":
        return exprs, names[key.value].name
    return [*exprs, Named(extra, key)], extra
