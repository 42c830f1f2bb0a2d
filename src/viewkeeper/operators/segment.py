"""Segments: the linear statements between operators, and the hashes by which rows are partitioned and arranged.

A hash only says where a row belongs. For range lookups (`kinds.lookup`) a row's hash is instead a number that grows
with the column's value, so that the rows between two values are adjacent:

    order hash(v) = c ± log₂(1 + |v|), rounded to 2⁻⁴⁰      with room above for ±∞, and for NaN, which is the greatest

Different values may have the same order hash; the consumer of a lookup compares the values afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from viewkeeper.errors import Defect
from viewkeeper.expressions import render, render_predicate
from viewkeeper.expressions.backends.vector_case import is_vectorised
from viewkeeper.expressions.backends.vector_decimals import is_word_product
from viewkeeper.expressions.backends.vector_predicates import VectorPredicate, compile_predicates
from viewkeeper.expressions.tree import Expr, Named
from viewkeeper.model import types
from viewkeeper.model.names import HASH, WEIGHT, quoted
from viewkeeper.model.schema import Column
from viewkeeper.model.types import Family
from viewkeeper.state.key_hash import hash_sql

OMITTED_IF_EMPTY = "later"
"""Metadata key of a field that was added when state had already been stored under ids without it."""

_FRACTION_BITS, _INFINITY_EXPONENT = 40, 1025
_ORDER_HASH_OFFSET = (1 << 62) + (1 << 57)
"""All order hashes share their top bits, so the rows of an ordered arrangement belong to one task."""

ORDERED_TYPE_FAMILIES = (Family.INTEGER, Family.FLOAT, Family.DECIMAL, Family.DATE, Family.TIME)
"""The families of types whose values have an order hash."""


@dataclass(frozen=True)
class Segment:
    """`SELECT exprs, ¤w, hash(key) AS ¤h FROM source WHERE where`. `key` None: no hash is needed.

    `gather`: all rows go to one task whatever their key; the lower hash bits still spread them within it. `sign` −1:
    the rows are subtracted. `times`: expressions by which the weight is multiplied (INTERSECT ALL and EXCEPT ALL repeat
    rows).
    """

    source: str
    where: tuple[Expr, ...]
    exprs: tuple[Named, ...]
    key: tuple[str, ...] | None
    gather: bool = False
    sign: int = 1
    times: tuple[Expr, ...] = ()
    ordered: bool = field(default=False, metadata={OMITTED_IF_EMPTY: True})
    """Whether `¤h` is the order hash of the key's one column."""

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        return tuple(n.column for n in self.exprs)

    @cached_property
    def sql(self) -> str:
        outer = [quoted(n.name) for n in self.exprs] + [WEIGHT]
        if self.key is not None:
            # Rows are partitioned by the top bits of the hash: without them, all rows go to the first task.
            hashed = f"({hash_sql(self.key)} >> 16)" if self.gather else hash_sql(self.key)
            outer.append(f"{order_sql(self._key_column) if self.ordered else hashed} AS {HASH}")
        factors = [WEIGHT, *(f"CAST({render(t)} AS BIGINT)" for t in self.times)]
        weight = f"{'' if self.sign > 0 else '-'}({' * '.join(factors)}) AS {WEIGHT}"
        inner = [f"{render(n.expr)} AS {quoted(n.name)}" for n in self.exprs] + [weight]
        condition = f" WHERE {where_sql(self.where)}" if self.where else ""
        inner_sql = f"SELECT {', '.join(inner)} FROM input{condition}"
        return inner_sql if self.key is None else f"SELECT {', '.join(outer)} FROM ({inner_sql})"

    @property
    def _key_column(self) -> Column:
        if self.key is None:
            raise Defect("A segment without a key was asked for it.")
        return next(c for c in self.columns if c.name == self.key[0])

    @cached_property
    def is_vectorised(self) -> bool:
        """Whether the segment runs without a statement: its conditions and columns are evaluated by Arrow and numpy. A
        column of `product_columns` still needs a statement if its values are large."""
        if self.vector_conditions is None or self.sign < 0 or self.times or self.ordered:
            return False
        return all(n.name in self.product_columns or is_vectorised(n.expr) for n in self.exprs)

    @cached_property
    def product_columns(self) -> frozenset[str]:
        """Columns that Arrow does not compute, but products of 64-bit words do."""
        return frozenset(n.name for n in self.exprs if not is_vectorised(n.expr) and is_word_product(n.expr))

    @cached_property
    def vector_conditions(self) -> tuple[VectorPredicate, ...] | None:
        """The vectorised conditions; None if one of them needs a statement. None of them can fail, so their order does
        not matter."""
        return compile_predicates(self.where)

    def used_columns(self) -> frozenset[str]:
        """Return the columns that it reads of its source."""
        return frozenset().union(*(e.columns() for e in [*self.where, *self.times, *(n.expr for n in self.exprs)]))


def where_sql(conjuncts: tuple[Expr, ...]) -> str:
    """Return the conjunction as SQL. The conjuncts keep their order, so a guard before a division protects it."""
    condition = conjuncts[0]
    for conjunct in conjuncts[1:]:
        condition = Expr("And", types.BOOLEAN, (condition, conjunct))
    return render_predicate(condition)


def order_sql(column: Column) -> str:
    """Return the SQL of the order hash of a column. NULL, which no comparison holds for, is in the middle."""
    text = quoted(column.name)
    number = f"epoch({text})" if column.type in (types.DATE, *types.TIMES) else f"CAST({text} AS DOUBLE)"
    size = f"least(log2(1 + abs({number})), {_INFINITY_EXPONENT})"
    signed = f"CASE WHEN isnan({number}) THEN {_INFINITY_EXPONENT + 1} WHEN {number} < 0 THEN -{size} ELSE {size} END"
    rounded = f"CAST(round({1 << _FRACTION_BITS} * ({signed})) AS BIGINT)"
    return f"CAST({_ORDER_HASH_OFFSET} + coalesce({rounded}, 0) AS UBIGINT)"
