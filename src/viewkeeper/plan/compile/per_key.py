"""Per-key recomputation: compile nodes whose output for a key is a function of that key's rows.

These are outer, semi and anti joins that `joins` cannot compile, OFFSET without LIMIT, windows, and aggregates that are
not sums. Each becomes a `Recompute`: its inputs are arranged by the key, and when rows of a key change, the SQL runs on
the new rows of that key, and the rows emitted before are subtracted. ORDER BY … LIMIT becomes a `TopK`. Every ORDER BY
is extended with all columns of the sort's input, so that ties are broken the same way in every batch and lane.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from viewkeeper.expressions import render
from viewkeeper.model import types
from viewkeeper.model.names import FIRST_ROW_INDEX, HASH, ROW_INDEX, quoted
from viewkeeper.model.schema import Column
from viewkeeper.operators.aggregation.window_float_sums import FloatFrameSum, frame_end_column, frame_start_column
from viewkeeper.operators.kinds import Recompute, TopK
from viewkeeper.operators.segment import Segment, where_sql
from viewkeeper.plan import functions
from viewkeeper.plan.compile.branch import (
    Branch,
    can_any_raise,
    column_reference,
    conjunction,
    conjuncts,
    positional_columns,
    substitute,
)
from viewkeeper.plan.functions import PEER_FUNCTIONS
from viewkeeper.plan.logical.nodes import Aggregate, Call, Expr, Join, Limit, Named, Node, Order, Sort, Window, column

if TYPE_CHECKING:
    from viewkeeper.plan.compile.compiler import Compiler

_OUTER_JOINS = {"left": "LEFT", "right": "RIGHT", "full": "FULL"}


def compile_per_key_join(compiler: Compiler, node: Join, needed: frozenset[str]) -> list[Branch]:
    """Outer, semi, anti and existence joins: recomputed from the rows of both sides with one key."""
    left_names, right_names = ({c.name for c in side.columns} for side in (node.left, node.right))
    conditions = conjuncts(node.condition)
    edges = [e for c in conditions if (e := _equality_sides(c, left_names, right_names)) is not None]
    used = needed.union(*(c.columns() for c in conditions))
    left = [c for c in node.left.columns if c.name in used]
    right = [c for c in node.right.columns if c.name in used]
    left_port, left_key, left_shared = _keyed_port(compiler, node.left, left, [e[0] for e in edges], "l")
    right_port, _, right_shared = _keyed_port(compiler, node.right, right, [e[1] for e in edges], "r")
    shared = (left_shared, right_shared)
    names = positional_columns(left, "l") | positional_columns(right, "r")
    columns = {name: column_reference(c) for name, c in names.items()}
    on = where_sql(tuple(substitute(c, columns) for c in conditions)) if conditions else "TRUE"
    output = [c for c in node.columns if c.name in needed and c.name != node.existence_column]
    output_columns = positional_columns(output, "o")
    selected = [f"{quoted(names[c.name].name)} AS {quoted(output_columns[c.name].name)}" for c in output]
    exists_sql = f"EXISTS (SELECT 1 FROM input1 WHERE {on})"
    if node.existence_column is not None:
        output_columns[node.existence_column] = Column("e", types.BOOLEAN, nullable=False)
        selected.append(f"{exists_sql} AS e")
    selected.append(
        f"coalesce(input0.{HASH}, input1.{HASH}) AS {HASH}" if node.join_type in _OUTER_JOINS else f"input0.{HASH}"
    )
    body = f"SELECT {', '.join(selected)} FROM input0"
    if node.join_type in _OUTER_JOINS:
        body += f" {_OUTER_JOINS[node.join_type]} JOIN input1 ON {on}"
    elif node.join_type != "existence":
        body += f" WHERE {'' if node.join_type == 'semi' else 'NOT '}{exists_sql}"
    reason = f"{node.join_type} join" + (
        "" if left_key else " without an equality: every change compares with all rows"
    )
    operator = compiler.add_operator(
        Recompute((left_port, right_port), shared, body, tuple(output_columns.values()), reason)
    )
    return [Branch(operator, {name: column_reference(c) for name, c in output_columns.items()})]


def compile_limit(compiler: Compiler, node: Limit, needed: frozenset[str]) -> list[Branch]:
    """ORDER BY … LIMIT: the first rows of all rows."""
    child: Node = node.child
    order: tuple[Order, ...] = ()
    if isinstance(child, Sort):
        order, child = child.order, child.child
    columns = list(child.columns)
    names = positional_columns(columns, "x")
    result = {name: column_reference(c) for name, c in names.items()}
    exprs = [Named(names[c.name].name, column_reference(c)) for c in columns]
    branches = compiler.compile(child, frozenset(c.name for c in columns))
    branches = compiler.consolidate_before(branches, [b.resolve(n.expr) for b in branches for n in exprs])
    source = tuple(b.build_segment(exprs, tuple(n.name for n in exprs), gather=True) for b in branches)
    if node.count is not None:
        return [Branch(compiler.add_operator(TopK(source, order_sql(order, names), node.count, node.offset)), result)]
    select_list = ", ".join([*(quoted(c.name) for c in names.values()), HASH])
    sql = f"SELECT {select_list} FROM input0 ORDER BY {order_sql(order, names)} OFFSET {node.offset}"
    port = tuple(replace(s, key=(), gather=False) for s in source)
    return [
        Branch(
            compiler.add_operator(Recompute((port,), (None,), sql, tuple(names.values()), "OFFSET without LIMIT")),
            result,
        )
    ]


def compile_window(compiler: Compiler, node: Window, needed: frozenset[str]) -> list[Branch]:
    """Window functions: recomputed from the rows of one partition."""
    columns = list(node.child.columns)
    port, key, shared = _keyed_port(compiler, node.child, columns, list(node.partition), "x")
    names = positional_columns(columns, "x")
    refs = {name: column_reference(c) for name, c in names.items()}
    calls = [c for c in node.calls if c.name in needed]
    results = {c.name: Column(f"w{i}", c.type, c.nullable) for i, c in enumerate(calls)}
    over = f"PARTITION BY {', '.join(quoted(k) for k in key)}" if key else ""
    texts, folds, source = [], [], "input0"
    for call in calls:
        resolved, result_name = _resolve_call(call, refs), results[call.name].name
        exact = call.function not in PEER_FUNCTIONS and functions.parameter(call, "frame")[0] == "rows"
        order = order_sql(node.order, names, extended=exact)
        framed = functions.frame_sql(call, node.order)
        if functions.is_ordered_sum(call):
            folds.append(fold := FloatFrameSum(result_name, call.function == "Average"))
            order = ROW_INDEX if exact else order
            clause = f"OVER ({over}{' ORDER BY ' + order if order else ''}{framed})"
            texts.append(f"{functions.summand(resolved)} AS {quoted(result_name)}")
            texts += [
                f"min({ROW_INDEX}) {clause} AS {frame_start_column(fold)}",
                f"max({ROW_INDEX}) {clause} AS {frame_end_column(fold)}",
            ]
        else:
            clause = f" OVER ({over}{' ORDER BY ' + order if order else ''}{framed})"
            ordered_call = resolved if exact else functions.with_order(resolved, order_sql(node.order, names))
            texts.append(f"{functions.window_sql(ordered_call, clause)} AS {quoted(result_name)}")
    if folds:
        total = ", ".join([*(f"{quoted(k)} ASC NULLS FIRST" for k in key), order_sql(node.order, names)])
        source = f"(SELECT *, row_number() OVER (ORDER BY {total}) AS {ROW_INDEX} FROM input0)"
        texts += [ROW_INDEX, f"min({ROW_INDEX}) OVER ({over}) AS {FIRST_ROW_INDEX}"]
    select_list = [quoted(c.name) for c in names.values()]
    sql = f"SELECT {', '.join([*select_list, *texts, HASH])} FROM {source}"
    reason = "window functions" + ("" if key else " without PARTITION BY: every change recomputes all rows")
    output = names | results
    operator = compiler.add_operator(
        Recompute((port,), (shared,), sql, tuple(output.values()), reason, frame_sums=tuple(folds))
    )
    return [Branch(operator, {name: column_reference(c) for name, c in output.items()})]


def compile_per_key_aggregate(
    compiler: Compiler, node: Aggregate, calls: tuple[Call, ...], is_incremental: Callable[[Call], bool]
) -> list[Branch]:
    """Aggregates that are not sums: recomputed from the rows of one group.

    Calls that are sums stay in an incremental aggregate, which is joined by the group's key.
    """
    sums = tuple(c for c in calls if is_incremental(c))
    recomputed = tuple(c for c in calls if not is_incremental(c))
    if sums:
        right_keys = tuple(Named(f"{k.name}'", k.expr) for k in node.keys)
        pairs = [
            Expr(
                "EqualNullSafe",
                types.BOOLEAN,
                (column(k.name, k.expr.type), column(a.name, a.expr.type)),
                nullable=False,
            )
            for k, a in zip(node.keys, right_keys, strict=True)
        ]
        joined = Join(
            "inner", replace(node, calls=sums), replace(node, keys=right_keys, calls=recomputed), conjunction(pairs)
        )
        return compiler.compile(joined, frozenset({*(k.name for k in node.keys), *(c.name for c in calls)}))
    arguments = [a for c in recomputed for a in (*c.args, *([c.filter] if c.filter else []))]
    columns = [c for c in node.child.columns if any(c.name in a.columns() for a in arguments)]
    port, key, shared = _keyed_port(compiler, node.child, columns, [k.expr for k in node.keys], "x")
    refs = {name: column_reference(c) for name, c in positional_columns(columns, "x").items()}
    output: dict[str, Column] = {k.name: Column(f"k{i}", k.expr.type, k.expr.nullable) for i, k in enumerate(node.keys)}
    texts = [f"{quoted(hashed)} AS k{i}" for i, hashed in enumerate(key)]
    for i, call in enumerate(recomputed):
        resolved = _resolve_call(call, refs)
        output[call.name] = Column(f"m{i}", call.type, call.nullable)
        texts.append(f"{functions.aggregate_sql(resolved)} AS m{i}")
    grouped = f" GROUP BY {', '.join([*(quoted(k) for k in key), HASH])}" if key else ""
    hashed = HASH if key else f"0::UBIGINT AS {HASH}"
    sql = f"SELECT {', '.join([*texts, hashed])} FROM input0{grouped}"
    names = ", ".join(sorted({functions.function_name(c) for c in recomputed}))
    operator = compiler.add_operator(
        Recompute((port,), (shared,), sql, tuple(output.values()), f"{names} of a group's rows")
    )
    return [Branch(operator, {name: column_reference(c) for name, c in output.items()})]


def _resolve_call(call: Call, columns: Mapping[str, Expr]) -> Call:
    """Return the call over the columns of its input."""
    condition = None if call.filter is None else substitute(call.filter, columns)
    return replace(call, args=tuple(substitute(a, columns) for a in call.args), filter=condition)


def order_sql(order: tuple[Order, ...], names: dict[str, Column], extended: bool = True) -> str:
    """Return ORDER BY, extended with every column so that the order is total."""
    columns = {name: column_reference(c) for name, c in names.items()}
    parts = [
        f"{render(substitute(o.expr, columns))} {'DESC' if o.descending else 'ASC'}"
        f" NULLS {'LAST' if o.nulls_last else 'FIRST'}"
        for o in order
    ]
    rest = [f"{quoted(c.name)} ASC NULLS FIRST" for c in names.values()] if extended else []
    return ", ".join([*parts, *rest])


def _equality_sides(condition: Expr, left: set[str], right: set[str]) -> tuple[Expr, Expr] | None:
    """Return the two sides of an equality between left and right by which rows can be co-partitioned, else None."""
    if condition.op not in ("EqualTo", "EqualNullSafe") or can_any_raise([condition]):
        return None
    a, b = condition.args
    if a.columns() and b.columns():
        if a.columns() <= left and b.columns() <= right:
            return a, b
        if a.columns() <= right and b.columns() <= left:
            return b, a
    return None


def _keyed_port(
    compiler: Compiler, node: Node, columns: list[Column], key: list[Expr], prefix: str
) -> tuple[tuple[Segment, ...], tuple[str, ...], str | None]:
    """Return the segments of a node's columns, distributed by `key` (expressions over the node's columns).

    Also return the names of the key columns, and the table image in which a base table's rows are found by the key.
    """
    branches = compiler.compile(node, frozenset(c.name for c in columns).union(*(k.columns() for k in key)))
    names = positional_columns(columns, prefix)
    exprs = [Named(names[c.name].name, column_reference(c)) for c in columns]
    exprs += [Named(f"{prefix}k{i}", k) for i, k in enumerate(key)]
    branches = compiler.consolidate_before(branches, [b.resolve(n.expr) for b in branches for n in exprs])
    key_names = tuple(f"{prefix}k{i}" for i in range(len(key)))
    image = _shared_arrangement(compiler, branches, key) if key else None
    return tuple(b.build_segment(exprs, key_names) for b in branches), key_names, image


def _shared_arrangement(compiler: Compiler, branches: list[Branch], key: list[Expr]) -> str | None:
    """Return the shared table image by the key, if the key is plain columns of a base table; else None."""
    table = branches[0].source.input_table
    if len(branches) > 1 or table is None:
        return None
    stored = [branches[0].resolve(k) for k in key]
    if any(e.op != "column" for e in stored):
        return None
    return compiler.add_image(table, tuple(e.value for e in stored)).id
