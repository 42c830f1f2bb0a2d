"""A logical plan written back as Spark SQL, so that Spark can say whether it means what the query meant.

Only for tests: one nested SELECT a node. Running the query and its replayed plan over the same rows must give the same
rows. This checks what reading does to a plan (subqueries as joins, keys and calls apart, limits moved, columns
dropped), independently of the renderer and the operators that really run it.
"""

from __future__ import annotations

from collections.abc import Mapping

from viewkeeper.model import types
from viewkeeper.plan.logical import nodes
from viewkeeper.plan.logical.nodes import Call, Expr, Node, Order

_INFIX = {
    "Add": "+",
    "Subtract": "-",
    "Multiply": "*",
    "Divide": "/",
    "IntegralDivide": "DIV",
    "Remainder": "%",
    "EqualTo": "=",
    "EqualNullSafe": "<=>",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
    "And": "AND",
    "Or": "OR",
    "BitwiseAnd": "&",
}
_NAMES = {
    "StringSplit": "split",
    "DateAdd": "date_add",
    "ShiftRight": "shiftright",
    "CreateArray": "array",
    "RaiseError": "raise_error",
    "Average": "avg",
    "CollectList": "collect_list",
    "RowNumber": "row_number",
    "DenseRank": "dense_rank",
    "MaxBy": "max_by",
    "StddevSamp": "stddev_samp",
}


def sql(node: Node, tables: Mapping[int, str]) -> str:
    match node:
        case nodes.Scan(table, fields):
            return f"SELECT {', '.join(f'{stored} AS {c.name}' for c, stored in fields)} FROM {tables[table]}"
        case nodes.Filter(child, condition):
            return f"SELECT * FROM ({sql(child, tables)}) WHERE {expr(condition)}"
        case nodes.Project(child, exprs):
            return f"SELECT {', '.join(f'{expr(n.expr)} AS {n.name}' for n in exprs)} FROM ({sql(child, tables)})"
        case nodes.Join("existence", left, right, condition, exists):
            inner = f"SELECT 1 FROM ({sql(right, tables)}) WHERE {_condition(condition)}"
            return f"SELECT *, EXISTS ({inner}) AS {exists} FROM ({sql(left, tables)})"
        case nodes.Join(how, left, right, condition):
            word = how.upper() if how in ("inner", "full", "left", "right") else f"LEFT {how.upper()}"
            on = _condition(condition)
            return f"SELECT * FROM ({sql(left, tables)}) {word} JOIN ({sql(right, tables)}) ON {on}"
        case nodes.Aggregate(child, keys, calls):
            shown = [f"{expr(k.expr)} AS {k.name}" for k in keys] + [f"{_call(c)} AS {c.name}" for c in calls]
            by = f" GROUP BY {', '.join(expr(k.expr) for k in keys)}" if keys else ""
            return f"SELECT {', '.join(shown)} FROM ({sql(child, tables)}){by}"
        case nodes.Union(inputs, output):
            return " UNION ALL ".join(
                f"SELECT {', '.join(f'{a.name} AS {b.name}' for a, b in zip(i.columns, output, strict=True))} "
                f"FROM ({sql(i, tables)})"
                for i in inputs
            )
        case nodes.Sort(child, order):
            return f"SELECT * FROM ({sql(child, tables)}) ORDER BY {', '.join(map(_order, order))}"
        case nodes.Limit(child, count, offset):
            limit = "" if count is None else f" LIMIT {count}"
            return sql(child, tables) + limit + (f" OFFSET {offset}" if offset else "")
        case nodes.Window(child, partition, order, calls):
            shown = ", ".join(f"{_call(c)} OVER ({_over(partition, order, c)}) AS {c.name}" for c in calls)
            return f"SELECT *, {shown} FROM ({sql(child, tables)})"
        case nodes.Expand(child, projections, output):
            return " UNION ALL ".join(
                f"SELECT {', '.join(f'{expr(e)} AS {c.name}' for e, c in zip(row, output, strict=True))} "
                f"FROM ({sql(child, tables)})"
                for row in projections
            )
        case nodes.Generate(child, generator, outer, kept, output):
            shown = [c.name for c in kept]
            if generator.op == "ReplicateRows":
                count, *values = map(expr, generator.args)
                shown += [f"{v} AS {c.name}" for v, c in zip(values, output, strict=True)]
                view = f"LATERAL VIEW explode(sequence(1L, {count})) t AS one"
            else:
                shown += [c.name for c in output]
                view = f"LATERAL VIEW {'OUTER ' * outer}{expr(generator)} t AS {', '.join(c.name for c in output)}"
            return f"SELECT {', '.join(shown)} FROM ({sql(child, tables)}) s {view}"
    raise AssertionError(node)


def _condition(condition: Expr | None) -> str:
    return "true" if condition is None else expr(condition)


def _order(order: Order) -> str:
    direction = "DESC" if order.descending else "ASC"
    return f"{expr(order.expr)} {direction} NULLS {'LAST' if order.nulls_last else 'FIRST'}"


def _call(call: Call) -> str:
    parameters = dict(call.value or ())
    args = ", ".join(map(expr, call.args))
    if call.function in ("First", "Last"):
        args += f", {str(parameters['ignoreNulls']).lower()}"
    distinct = "DISTINCT " if call.distinct else ""
    text = f"{_NAMES.get(call.function, call.function)}({distinct}{args})"
    if call.function in ("Lag", "Lead") and parameters["ignoreNulls"]:
        text += " IGNORE NULLS"
    return text + (f" FILTER (WHERE {expr(call.filter)})" if call.filter else "")


def _over(partition: tuple[Expr, ...], order: tuple[Order, ...], call: Call) -> str:
    kind, lower, upper = dict(call.value)["frame"]
    parts = [f"PARTITION BY {', '.join(map(expr, partition))}"] if partition else []
    parts += [f"ORDER BY {', '.join(map(_order, order))}"] if order else []
    if call.function not in ("Lag", "Lead"):
        parts.append(f"{kind} BETWEEN {_bound(lower)} AND {_bound(upper)}")
    return " ".join(parts)


def _bound(bound: str | Expr) -> str:
    if isinstance(bound, str):
        return bound
    if types.is_interval(bound.type):
        return f"INTERVAL '{abs(bound.value) // 86_400_000_000}' DAY {'PRECEDING' if bound.value < 0 else 'FOLLOWING'}"
    return f"{abs(bound.value)} {'PRECEDING' if bound.value < 0 else 'FOLLOWING'}"


def expr(e: Expr) -> str:
    args = [expr(a) for a in e.args]
    if e.op in _INFIX:
        assert e.value in (None, ("ANSI",)), e
        return f"({args[0]} {_INFIX[e.op]} {args[1]})"
    match e.op:
        case "column":
            return str(e.value)
        case "literal":
            return _literal(e)
        case "Cast":
            return f"{'TRY_' if e.value == ('TRY',) else ''}CAST({args[0]} AS {e.type})"
        case "IsNull" | "IsNotNull":
            return f"({args[0]} IS {'NOT ' * (e.op == 'IsNotNull')}NULL)"
        case "Not":
            return f"(NOT {args[0]})"
        case "In":
            return f"({args[0]} IN ({', '.join(args[1:])}))"
        case "Like":
            return f"({args[0]} LIKE {args[1]} ESCAPE '{e.value[0]}')".replace("\\", "\\\\")
        case "CaseWhen":
            pairs = " ".join(f"WHEN {c} THEN {v}" for c, v in zip(args[0::2], args[1::2], strict=False))
            return f"CASE {pairs}{f' ELSE {args[-1]}' if len(args) % 2 else ''} END"
        case "NormalizeNaNAndZero":  # Spark does it by itself wherever it matters
            return args[0]
    return f"{_NAMES.get(e.op, e.op)}({', '.join(args)})"


def _literal(e: Expr) -> str:
    if e.value is None:
        return "NULL" if e.type == types.VOID else f"CAST(NULL AS {e.type})"
    if e.type == types.DATE:
        return f"date_from_unix_date({e.value})"
    if e.type == types.TIMESTAMP:
        return f"timestamp_micros({e.value})"
    if e.type == types.BINARY:
        return f"X'{e.value}'"
    if e.type == types.STRING:
        return "'" + e.value.replace("\\", "\\\\").replace("'", "\\'") + "'"
    return f"CAST('{e.value}' AS {e.type})"
