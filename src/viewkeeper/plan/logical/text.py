"""Plans as text, for EXPLAIN and for golden tests: one line per node, indented, with expressions in SQL-like notation.

    limit 10
      sort c8 desc, c1
        project c1, c8 = c5 / cast(c6 as decimal(20,0))
          aggregate by c1: c5 = sum(c3), c6 = count(1)
            filter c3 is not null
              scan items: c1 = category, c3 = price

The text shows the whole plan except types that follow from the columns, so different plans have different texts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from viewkeeper.errors import Defect
from viewkeeper.expressions.backends.text import expr_text, function_text
from viewkeeper.plan.logical import nodes
from viewkeeper.plan.logical.nodes import Call, Expr, Named, Node, Order


def plan_text(node: Node, tables: Mapping[int, str] | None = None) -> str:
    """Return the plan below `node` as text; `tables` maps table ids to names."""
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
            return "project " + _comma_list(map(_named_text, exprs))
        case nodes.Join(how, _, _, condition, exists):
            named = f" as {exists}" if exists else ""
            return f"join {how}{named}" + (f" on {expr_text(condition)}" if condition else "")
        case nodes.MemberJoin(_, _, condition):
            return "members" + (f" on {expr_text(condition)}" if condition else "")
        case nodes.MemberSeeds(_, _, members):
            return "seeded " + _comma_list(c.name for c in members)
        case nodes.Aggregate(_, keys, calls):
            by = " by " + _comma_list(map(_named_text, keys)) if keys else ""
            return "aggregate" + by + (": " + _comma_list(map(_call_text, calls)) if calls else "")
        case nodes.Union(_, output):
            return "union " + _comma_list(c.name for c in output)
        case nodes.Sort(_, order):
            return "sort " + _comma_list(map(_order_text, order))
        case nodes.Limit(_, count, offset):
            return f"limit {'all' if count is None else count}" + (f" offset {offset}" if offset else "")
        case nodes.Window(_, partition, order, calls):
            by = " by " + _comma_list(map(expr_text, partition)) if partition else ""
            sorted_ = " sort " + _comma_list(map(_order_text, order)) if order else ""
            return f"window{by}{sorted_}: " + _comma_list(map(_call_text, calls))
        case nodes.Expand(_, projections, output):
            rows = _comma_list("(" + _comma_list(map(expr_text, row)) + ")" for row in projections)
            return f"expand ({_comma_list(c.name for c in output)}) = {rows}"
        case nodes.Generate(_, generator, outer, kept, output):
            kind = "generate outer" if outer else "generate"
            names, others = _comma_list(c.name for c in output), _comma_list(c.name for c in kept)
            return f"{kind} ({names}) = {expr_text(generator)} keep {others}"
    raise Defect(f"A {type(node).__name__} has no text.")


def _comma_list(parts: Iterable[str]) -> str:
    return ", ".join(parts)


def _named_text(named: Named) -> str:
    text = expr_text(named.expr)
    return text if text == named.name else f"{named.name} = {text}"


def _call_text(call: Call) -> str:
    distinct = "distinct " if call.distinct else ""
    text = f"{call.name} = {function_text(call.function)}({distinct}{_comma_list(map(expr_text, call.args))})"
    if call.filter:
        text += f" filter {expr_text(call.filter)}"
    parameters = [f"{name} {_value_text(value)}" for name, value in call.value or () if value not in (False, "ANSI")]
    return text + (f" [{_comma_list(parameters)}]" if parameters else "")


def _value_text(value: Any) -> str:
    if isinstance(value, Expr):
        return expr_text(value)
    if isinstance(value, tuple):
        kind, *bounds = value
        return f"{kind} {' to '.join(map(_value_text, bounds))}"
    return str(value)


def _order_text(order: Order) -> str:
    text = expr_text(order.expr) + (" desc" if order.descending else "")
    if order.nulls_last != order.descending:  # Spark's default: NULL is the smallest
        text += " nulls last" if order.nulls_last else " nulls first"
    return text
