"""Turn a query into a view: its table, its key, and the plan that the catalog stores.

The key is the GROUP BY columns, or the key that the plan proves unique, or the whole row with its multiplicity (a bag).
The columns of `KEY (cols)` and ORDER BY come first in the key. They are extended by the proven key unless they contain
one.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import duckdb

from viewkeeper import expressions
from viewkeeper.errors import BadStatement, UnknownName, Unsupported
from viewkeeper.model import types
from viewkeeper.model.schema import LAZY, Column, KeyPart, Table
from viewkeeper.operators.operator import Operator
from viewkeeper.plan.compile.compiler import Compiler, ViewPlan
from viewkeeper.plan.depth import to_any_depth
from viewkeeper.plan.logical.nodes import Node, Order, Project, Query, Sort
from viewkeeper.plan.logical.unique_keys import unique_keys
from viewkeeper.resources.prepared_statements import PreparedStatements


def plan_view(
    name: str,
    table_id: int,
    query: Query,
    key: Sequence[str],
    tables: Mapping[int, Table],
    views: Mapping[int, ViewPlan],
    sizes: Mapping[int, int],
    options: Mapping[str, str],
    dry_run: Callable[[Iterable[Operator]], None] = lambda _: None,
) -> tuple[Table, ViewPlan]:
    """Return the view's table and plan; raise Unsupported if the view cannot be maintained.

    `tables` holds base and view tables. `dry_run` is called with the view's operators and raises Unsupported for an
    operator that cannot be run.
    """
    plan = ViewPlan(query, sizes)
    dry_run(compile_plan(table_id, plan, tables, views))
    columns = tuple(Column(column_name, c.type, c.nullable) for column_name, c in query.output)
    parts, is_bag = _choose_key(query, key, tables)
    if options.get("store") == LAZY:
        plan = replace(plan, lazy_key=tuple(k.column for k in parts))
    return Table(table_id, name, columns, parts, True, is_bag, tuple(sorted(options.items()))), plan


def compile_plan(
    table_id: int, plan: ViewPlan, tables: Mapping[int, Table], views: Mapping[int, ViewPlan]
) -> Iterable[Operator]:
    """Return the operators of a view's plan; raise Unsupported if the plan cannot be compiled.

    `tables` holds base and view tables.
    """
    base = {i: t.internal for i, t in tables.items() if not t.is_view}

    def work() -> Iterable[Operator]:
        compiler = Compiler(base, ChainMap({table_id: plan}, views))  # type: ignore[arg-type]
        compiler.compile_view(table_id)
        return compiler.operators.values()

    return to_any_depth(work)


def _choose_key(
    query: Query, requested_key: Sequence[str], tables: Mapping[int, Table]
) -> tuple[tuple[KeyPart, ...], bool]:
    output_names = {c.name: name for name, c in reversed(query.output)}
    names = {name.lower(): name for name, _ in query.output}
    parts: list[KeyPart] = []
    if requested_key:
        for column in requested_key:
            if column.lower() not in names:
                raise UnknownName(f"KEY names the column {column!r}, which the query does not give.", hint="")
            parts.append(KeyPart(names[column.lower()]))
        if len({p.column for p in parts}) < len(parts):
            raise BadStatement("KEY names a column twice.")
    else:
        parts = [_order_key_part(order, output_names) for order in _root_order(query.root)]
        parts = list({p.column: p for p in reversed(parts)}.values())[::-1]
    proven = [
        [output_names[c] for c in k] for k in unique_keys(query.root, tables) if all(c in output_names for c in k)
    ]
    chosen = {p.column for p in parts}
    if any(set(k) <= chosen for k in proven):
        return tuple(parts), False
    extension = min(proven, key=len) if proven else [name for name, _ in query.output]
    return (*parts, *(KeyPart(c) for c in extension if c not in chosen)), not proven


def _root_order(root: Node) -> tuple[Order, ...]:
    """Return the ORDER BY at the top of a query, below projections that only drop or rename columns."""
    names: dict[str, str] | None = None
    while isinstance(root, Project):
        step = {n.expr.value: n.name for n in root.exprs if n.expr.op == "column"}
        names = step if names is None else {inner: names[outer] for inner, outer in step.items() if outer in names}
        root = root.child
    if not isinstance(root, Sort):
        return ()
    if names is None:
        return root.order
    if isinstance(root.child, Project):
        # ORDER BY t.x after SELECT t.x AS y: Spark sorts by a column of its own, which equals y under another name.
        expr_names = {n.expr: names[n.name] for n in root.child.exprs if n.name in names}
        names = {n.name: expr_names[n.expr] for n in root.child.exprs if n.expr in expr_names} | names
    result = []
    for order in root.order:
        if order.expr.op != "column" or order.expr.value not in names:
            raise Unsupported(_ORDER_NOT_SELECTED)
        expr = type(order.expr)("column", order.expr.type, value=names[order.expr.value])
        result.append(Order(expr, order.descending, order.nulls_last))
    return tuple(result)


_ORDER_NOT_SELECTED = (
    "ORDER BY sorts a view by an expression that is not one of its columns; add it to the SELECT list."
)


def _order_key_part(order: Order, output_names: Mapping[str, str]) -> KeyPart:
    if order.expr.op != "column" or order.expr.value not in output_names:
        raise Unsupported(_ORDER_NOT_SELECTED)
    return KeyPart(output_names[order.expr.value], order.descending, order.nulls_last)


# The dry run refuses, before the view exists, what an operator could not run: expressions without a rule, types that
# state cannot store, and SQL that DuckDB cannot bind (it is executed over no rows).


def dry_run_operators(operators: Iterable[Operator]) -> None:
    """Check the columns and expressions of all operators; execute over no rows those whose SQL is not proven valid."""
    operators = list(operators)
    for operator in operators:
        _refuse_unstorable_types(operator)
    segments = [segment for operator in operators for segment in operator.segments()]
    used = (e for s in segments for e in (*s.where, *s.times, *(n.expr for n in s.exprs)) if e.args)
    for expr in dict.fromkeys(used):
        expressions.check(expr)
    unproven = [o for o in operators if o.unproven_part is not None]
    if not unproven:
        return
    with PreparedStatements(expressions.register_functions, threads=1) as statements:
        for operator in unproven:
            try:
                operator.dry_run(statements)
            except duckdb.Error as error:
                # an evaluation error of a constant is an error of the rows, and no reason to refuse the query
                if expressions.translate_error(error) is None:
                    reason = str(error).split("\n")[0].split(": ", 1)[-1].rstrip(".")
                    raise Unsupported(
                        f"The query has a part that cannot be computed ({operator.unproven_part}): {reason}."
                    ) from None


def _refuse_unstorable_types(operator: Operator) -> None:
    """Refuse segment columns of types that no table can have: rows between operators and in state need table types."""
    for column in (c for segment in operator.segments() for c in segment.columns):
        try:
            types.arrow(column.type)
        except Unsupported as refused:
            verbs = {"aggregate": "groups rows, or takes distinct ones, by", "sink": "returns"}
            raise Unsupported(
                f"The query {verbs.get(operator.kind, 'keeps')} a value of type {column.type.sql}.", hint=refused.hint
            ) from None
