"""A plan as text, for people and for golden tests: one line a node, indented, expressions as one would write them.

    limit 10
      sort c8 desc, c1
        project c1, c8 = c5 / cast(c6 as decimal(20,0))
          aggregate by c1: c5 = sum(c3), c6 = count(1)
            filter c3 is not null
              scan items: c1 = category, c3 = price

It shows everything that the plan means but types that follow from the columns, so different plans look different.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from viewkeeper.errors import Defect
from viewkeeper.expressions.backends.text import expr_text, function_text
from viewkeeper.plan.logical import nodes
from viewkeeper.plan.logical.nodes import Call, Expr, Named, Node, Order


def plan_text(node: Node, tables: Mapping[int, str] | None = None) -> str:
    """The plan below `node`; `tables` gives names for table ids."""
    return "\n".join(_lines(node, tables or {}, 0))


def _lines(node: Node, tables: Mapping[int, str], depth: int) -> Iterable[str]:
    yield "  " * depth + _line(node, tables)
    for child in node.children:
        yield from _lines(child, tables, depth + 1)


def _line(node: Node, tables: Mapping[int, str]) -> str:
    match node:
        case nodes.Scan(table, fields):
            return f"scan {tables.get(table, table)}: " + ", ".join(f"{c.name} = {stored}" for c, stored in fields)
        case nodes.Filter(_, condition):
            return f"filter {expr_text(condition)}"
        case nodes.Project(_, exprs):
            return "project " + _list(map(_named, exprs))
        case nodes.Join(how, _, _, condition, exists):
            named = f" as {exists}" if exists else ""
            return f"join {how}{named}" + (f" on {expr_text(condition)}" if condition else "")
        case nodes.Members(_, _, condition):
            return "members" + (f" on {expr_text(condition)}" if condition else "")
        case nodes.Seeded(_, _, members):
            return "seeded " + _list(c.name for c in members)
        case nodes.Aggregate(_, keys, calls):
            by = " by " + _list(map(_named, keys)) if keys else ""
            return "aggregate" + by + (": " + _list(map(_call, calls)) if calls else "")
        case nodes.Union(_, output):
            return "union " + _list(c.name for c in output)
        case nodes.Sort(_, order):
            return "sort " + _list(map(_order, order))
        case nodes.Limit(_, count, offset):
            return f"limit {'all' if count is None else count}" + (f" offset {offset}" if offset else "")
        case nodes.Window(_, partition, order, calls):
            by = " by " + _list(map(expr_text, partition)) if partition else ""
            sorted_ = " sort " + _list(map(_order, order)) if order else ""
            return f"window{by}{sorted_}: " + _list(map(_call, calls))
        case nodes.Expand(_, projections, output):
            rows = _list("(" + _list(map(expr_text, row)) + ")" for row in projections)
            return f"expand ({_list(c.name for c in output)}) = {rows}"
        case nodes.Generate(_, generator, outer, kept, output):
            kind = "generate outer" if outer else "generate"
            return (
                f"{kind} ({_list(c.name for c in output)}) = {expr_text(generator)} keep {_list(c.name for c in kept)}"
            )
    raise Defect(f"A {type(node).__name__} has no text.")


def _list(parts: Iterable[str]) -> str:
    return ", ".join(parts)


def _named(named: Named) -> str:
    text = expr_text(named.expr)
    return text if text == named.name else f"{named.name} = {text}"


def _call(call: Call) -> str:
    distinct = "distinct " if call.distinct else ""
    text = f"{call.name} = {function_text(call.function)}({distinct}{_list(map(expr_text, call.args))})"
    if call.filter:
        text += f" filter {expr_text(call.filter)}"
    shown = [f"{name} {_value(value)}" for name, value in call.value or () if value not in (False, "ANSI")]
    return text + (f" [{_list(shown)}]" if shown else "")


def _value(value: Any) -> str:
    if isinstance(value, Expr):
        return expr_text(value)
    if isinstance(value, tuple):
        kind, *bounds = value
        return f"{kind} {' to '.join(map(_value, bounds))}"
    return str(value)


def _order(order: Order) -> str:
    text = expr_text(order.expr) + (" desc" if order.descending else "")
    if order.nulls_last != order.descending:  # Spark's default: NULL is the smallest
        text += " nulls last" if order.nulls_last else " nulls first"
    return text
