"""Several DISTINCT aggregates as one aggregate again.

Spark has no operator for them, so its optimiser (RewriteDistinctAggregates, which cannot be switched off) writes

    γ_{k; f(d₁) FILTER (g = 1), h(d₂) FILTER (g = 2 AND m), first(r) FILTER (g = 0)}
      γ_{k, d₁, d₂, g; r := sum(x), m := max(c)}
        Expand [k, NULL, NULL, x, NULL, 0], [k, a, NULL, NULL, NULL, 1], [k, NULL, b, NULL, c, 2]

for `SELECT f(DISTINCT a), h(DISTINCT b) FILTER (WHERE c), sum(x) GROUP BY k`. Our aggregate counts the values of as
many arguments as there are in one pass over a group, where the above brings every row once for each DISTINCT. Read
backwards: the rows of number g are the input's rows through projection g; those that the inner aggregate makes of them
are the distinct values of the columns that projection g does not leave NULL, and `max(c)` says whether a row with that
value passed the filter; with none left there is one row for each k, which holds the others' results. That is checked
here column by column, and what does not fit stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from viewkeeper.model import types
from viewkeeper.plan.branches import substitute
from viewkeeper.plan.catalyst.expressions import conjunction, conjuncts
from viewkeeper.plan.nodes import Aggregate, Call, Expand, Expr, Named, Node, Project

_COUNTED = frozenset({"Count", "Sum", "Average", "Min", "Max"})
"""Those whose DISTINCT the aggregate operator maintains."""


def together(node: Aggregate) -> Aggregate:
    """The aggregate over the rows themselves, if the node is what Spark makes of several DISTINCT ones."""
    names, inner = _below(node.child)
    if not isinstance(inner, Aggregate) or not isinstance(inner.child, Expand):
        return node
    rewritten = _Rewritten(names, inner, inner.child)
    keys = [rewritten.key(k) for k in node.keys]
    calls = [rewritten.call(c, node) for c in node.calls]
    if not calls or any(k is None for k in keys) or any(c is None for c in calls):
        return node
    return Aggregate(inner.child.child, tuple(k for k in keys if k), tuple(c for c in calls if c))


def _below(node: Node) -> tuple[dict[str, str], Node]:
    """What stands below projections that only pick and rename, and its columns by their names above."""
    names = {c.name: c.name for c in node.columns}
    while isinstance(node, Project) and all(n.expr.op == "column" for n in node.exprs):
        passed = {n.name: str(n.expr.value) for n in node.exprs}
        names = {above: passed[name] for above, name in names.items()}
        node = node.child
    return names, node


class _Rewritten:
    """The inner aggregate and its Expand: what the outer one's columns are over the rows below."""

    def __init__(self, names: Mapping[str, str], inner: Aggregate, expand: Expand) -> None:
        self.names = names
        self.keys = {k.name: k.expr for k in inner.keys}
        self.calls = {c.name: c for c in inner.calls}
        self.rows = [dict(zip((c.name for c in expand.output), p, strict=True)) for p in expand.projections]

    def key(self, key: Named) -> Named | None:
        """A key of the outer aggregate: a key of the inner one that is the same in every projection."""
        found = {self._seen(key.expr, row) for row in self.rows}
        expr = found.pop()
        return None if found or expr is None else Named(key.name, expr)

    def call(self, call: Call, outer: Aggregate) -> Call | None:
        chosen = [(number, c) for c in conjuncts(call.filter) if (number := self._number(c)) is not None]
        if call.distinct or len(chosen) != 1:
            return None
        (number, condition), grouped = chosen[0], {str(self._name(c)) for k in outer.keys for c in k.expr.columns()}
        row = self._row(*number)
        if row is None:
            return None
        rest = [c for c in conjuncts(call.filter) if c is not condition]
        kept = {name for name, e in self.keys.items() if not _is_null(e, row)} - grouped - {number[0]}
        if not kept and call.function == "First" and not rest and len(call.args) == 1:
            return self._other(call, row)
        return self._distinct(call, row, rest, kept)

    def _other(self, call: Call, row: Mapping[str, Expr]) -> Call | None:
        """An aggregate without DISTINCT: the inner one has made it."""
        made = self.calls.get(self._name(str(call.args[0].value)) or "")
        if call.args[0].op != "column" or made is None or made.distinct:
            return None
        condition = None if made.filter is None else substitute(made.filter, row)
        args = tuple(substitute(a, row) for a in made.args)
        return replace(made, name=call.name, args=args, filter=condition, nullable=call.nullable)

    def _distinct(self, call: Call, row: Mapping[str, Expr], rest: list[Expr], kept: set[str]) -> Call | None:
        if call.function not in _COUNTED or len(call.args) != 1:
            return None
        if {self._name(c) for c in call.args[0].columns()} != kept or len(kept) != 1:
            return None
        passed = [self._passed(c, row) for c in rest]
        argument = self._seen(call.args[0], row)
        if argument is None or any(p is None for p in passed):
            return None
        condition = conjunction(tuple(p for p in passed if p))
        return replace(call, args=(argument,), distinct=True, filter=condition)

    def _passed(self, condition: Expr, row: Mapping[str, Expr]) -> Expr | None:
        """The FILTER of a DISTINCT aggregate, of which the inner one has kept the maximum."""
        made = self.calls.get(self._name(str(condition.value)) or "") if condition.op == "column" else None
        if made is None or made.function != "Max" or made.filter is not None or made.type != types.BOOLEAN:
            return None
        return substitute(made.args[0], row)

    def _name(self, above: str) -> str | None:
        return self.names.get(above)

    def _number(self, condition: Expr) -> tuple[str, int] | None:
        """(column, number) of `g = number` over a key of the inner aggregate that numbers the projections."""
        if condition.op != "EqualTo":
            return None
        for side, other in (condition.args, condition.args[::-1]):
            name = self._name(str(side.value)) if side.op == "column" else None
            if name in self.keys and other.op == "literal" and isinstance(other.value, int):
                return str(name), other.value
        return None

    def _row(self, column: str, number: int) -> Mapping[str, Expr] | None:
        """The one projection that has the number."""
        found = [(substitute(self.keys[column], row), row) for row in self.rows]
        rows = [row for e, row in found if e.op == "literal" and e.value == number]
        return rows[0] if len(rows) == 1 and all(e.op == "literal" for e, _ in found) else None

    def _seen(self, expr: Expr, row: Mapping[str, Expr]) -> Expr | None:
        """An expression over the inner aggregate's keys, over the rows below a projection."""
        keys = {above: self.keys[name] for above, name in self.names.items() if name in self.keys}
        if not expr.columns() <= set(keys):
            return None
        return substitute(substitute(expr, keys), row)


def _is_null(expr: Expr, row: Mapping[str, Expr]) -> bool:
    """Whether a key is NULL in all rows of a projection."""
    seen = [row[c] for c in expr.columns()]
    return bool(seen) and all(e.op == "literal" and e.value is None for e in seen)
