"""Notes of EXPLAIN: shared paths, semijoin reduction, view families, and the costs of lazy views.

The note about shared paths lists the lookups that a view shares with other views:

shared paths
  changes of lineitem, of 17 views: orders by (o_orderkey) with 8 others, customer by (c_custkey) with 6 others
  changes of orders, of 12 views: customer by (c_custkey) with 6 others, lineitem by (l_orderkey) alone
lookups a batch of all its tables: 4 by itself, 1.4 shared (a lookup for n views counts 1/n)
chosen: shared, about 5.9 ms of a batch of 10,000 changed rows, instead of by itself, about 10.5 ms

Without sharing, a view runs a statement before each lookup and one at the end. With sharing, all views over a table's
changes run one statement for their conditions, and each view runs one at the end. Seconds are of one core, measured
with TPC-H's 22 views at scale 1 and 25,000 changed rows: 98 statements and 74 lookups took 285 ms, 2 statements and 20
lookups 52 ms.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from viewkeeper.expressions.backends.text import expr_text
from viewkeeper.expressions.tree import Expr
from viewkeeper.model.catalog.catalog import Catalog, View
from viewkeeper.model.display import count_text
from viewkeeper.operators.delta_join.operator import select_delta_joins
from viewkeeper.operators.delta_join.plan import PathStep, all_steps
from viewkeeper.operators.delta_join.semijoin_graph import SemijoinNode
from viewkeeper.operators.description import FanOut
from viewkeeper.operators.kinds import Input, TableImage
from viewkeeper.plan.compile.compiled_view import slot_names
from viewkeeper.plan.dataflow.dataflow import Dataflow, SlotSizes
from viewkeeper.plan.dataflow.shared_paths import shared_variant
from viewkeeper.plan.dataflow.sharing_hints import SharingHints
from viewkeeper.plan.families import cost
from viewkeeper.plan.rules.key_propagation import KEY_STEP, PropagationStep
from viewkeeper.read.lazy.evaluate import LazyPlan, plan_lazy_view
from viewkeeper.store.contract.store import Store

EXPECTED_ROWS = 10_000
"""Changed rows of the batch that the estimates are for."""
_STATEMENT_SECONDS = 1e-3
_LOOKUP_SECONDS = 2e-4 + EXPECTED_ROWS * 9e-8


def describe_shared_paths(dataflow: Dataflow, view: int, hints: SharingHints, names: Mapping[int, str]) -> list[str]:
    """Return the lines of EXPLAIN about a view's shared lookups; none if no other view shares them."""
    if view in hints.unshared:
        return ["paths: by itself (share = false)"]
    variant = shared_variant(dataflow, frozenset(dataflow.used_columns), hints)
    users = _views_by_operator(dataflow)
    lines, separate_count, shared_count = [], 0, 0.0
    separate_seconds = shared_seconds = 0.0
    for operator in select_delta_joins(variant.operators.values()):
        views = [users[edge[0]] for edge in variant.edges[operator.id]]
        own_exits = sum(1 << i for i, readers in enumerate(views) if view in readers)
        if not own_exits:
            continue
        lookups = []
        for step in all_steps(operator.path):
            if not step.exit_mask & own_exits:
                continue
            other_count = len(
                frozenset().union(*(readers for i, readers in enumerate(views) if step.exit_mask >> i & 1)) - {view}
            )
            arranged = dataflow.operators[step.arrangement]
            table = names[arranged.arranged_table] if arranged.arranged_table is not None else arranged.id
            lookups.append(f"{table} by ({', '.join(step.arrangement_key)}) {_sharing_text(other_count)}")
            separate_count, shared_count = separate_count + 1, shared_count + 1 / (1 + other_count)
            shared_seconds += _LOOKUP_SECONDS / (1 + other_count)
        view_count = len(frozenset().union(*views))
        separate_seconds += len(lookups) * (_LOOKUP_SECONDS + _STATEMENT_SECONDS) + _STATEMENT_SECONDS
        shared_seconds += _STATEMENT_SECONDS / view_count + _STATEMENT_SECONDS
        if lookups and view_count > 1:
            table = names[dataflow.operators[operator.delta.source].input_table or 0]
            lines.append(f"  changes of {table}, of {view_count} views: {', '.join(lookups)}")
    if not lines:
        return []
    estimate = f"{separate_count} by itself, {shared_count:.1f} shared (a lookup for n views counts 1/n)"
    seconds = f"about {shared_seconds * 1e3:.1f} ms of a batch of {EXPECTED_ROWS:,} changed rows"
    chosen = f"  chosen: shared, {seconds}, instead of by itself, about {separate_seconds * 1e3:.1f} ms"
    return ["shared paths", *lines, f"  lookups a batch of all its tables: {estimate}", chosen]


def _sharing_text(other_views: int) -> str:
    return f"with {other_views} other{'s' if other_views > 1 else ''}" if other_views else "alone"


def _views_by_operator(dataflow: Dataflow) -> Mapping[str, frozenset[int]]:
    found: dict[str, set[int]] = defaultdict(set)
    for view, compiled in dataflow.views.items():
        for name in compiled.operators:
            found[name].add(view)
    return {name: frozenset(views) for name, views in found.items()}


# The note about semijoin reduction (option `lookahead`) lists the lookups whose rows are reduced:
#
# look-ahead auto: rows that lead nowhere are left out where that pays
#   changes of tweet: follower by (user_id) that lead to follower, user; 12,345 rows left out in the last 32 batches


_MODE_TEXTS = {
    "local": "rows whose next lookup finds nothing are left out",
    "auto": "rows that lead nowhere are left out where that pays",
    "global": "rows that lead nowhere are left out",
}


def describe_semijoins(
    dataflow: Dataflow,
    view: View,
    hints: SharingHints,
    names: Mapping[int, str],
    skipped_rows: Mapping[str, int],
    batches: int,
) -> list[str]:
    """Return the lines of EXPLAIN about semijoin reduction; none in mode `auto` before it has skipped any rows."""
    if view.table.id in hints.unshared:
        return []
    variant = shared_variant(dataflow, frozenset(dataflow.used_columns), hints)
    operators = dataflow.views[view.table.id].operators
    lines = []
    for operator in select_delta_joins(variant.operators.values()):
        table = names[dataflow.operators[operator.delta.source].input_table or 0]
        for node in operator.semijoin_nodes.values():
            lookups = [name for name in node.step.lookup_ids if name in operators]
            if not lookups:
                continue
            count = sum(skipped_rows.get(name, 0) for name in lookups)
            if view.lookahead == "auto" and not count:
                continue
            rows = f"; {count:,} rows left out in the last {batches} batches" if count else ""
            lines.append(f"  changes of {table}: {_describe_reduction(dataflow, node, view.lookahead, names)}{rows}")
    if not lines:
        return []
    if view.lookahead == "none":
        return ["look-ahead none: every lookup is made"]
    return [f"look-ahead {view.lookahead}: {_MODE_TEXTS[view.lookahead]}", *lines]


def _describe_reduction(dataflow: Dataflow, semijoin: SemijoinNode, mode: str, names: Mapping[int, str]) -> str:
    lookup = f"{_table_name(dataflow, semijoin.step, names)} by ({', '.join(semijoin.step.arrangement_key)})"
    parts = ["meet their conditions"] if semijoin.relation_filter is not None else []
    tables = dict.fromkeys(_table_name(dataflow, step, names) for step in _reached_steps(semijoin, mode))
    parts += [f"lead to {', '.join(tables)}"] if tables else []
    return f"{lookup} that {' and '.join(parts)}"


def _reached_steps(semijoin: SemijoinNode, mode: str) -> Iterator[PathStep]:
    for _, child in semijoin.children:
        yield from [child.step] if mode == "local" else (node.step for node in child.walk())


def _table_name(dataflow: Dataflow, step: PathStep, names: Mapping[int, str]) -> str:
    arranged = dataflow.operators[step.arrangement].arranged_table
    return step.arrangement if arranged is None else names[arranged]


# The notes about views that differ only in constants: a member's family, or the reason why there is none.


def membership_notes(store: Store, catalog: Catalog, view: View) -> list[str]:
    """Return the lines before the family's plan for a family member; none for other views."""
    if not view.is_member:
        return []
    family = catalog.maintained_view(view)
    parameters = zip(family.table.columns[: family.parameter_count], view.parameter_values, strict=True)
    condition = ", ".join(
        f"{column.name} = {expr_text(Expr('literal', column.type, value=value))}" for column, value in parameters
    )
    key = ", ".join(k.column + (" DESC" if k.descending else "") for k in view.table.key)
    members = catalog.members[family.table.id]
    equal = sum(member.table.key_prefix == view.table.key_prefix for member in members) - 1
    other_views = f"with {count_text(len(members) - 1, 'other view')}"
    equal_text = f", {equal} of them equal to it" if equal else ""
    rows, distinct = _base_rows(store, catalog, family), len({member.table.key_prefix for member in members})
    return [
        f"view {view.table.name}  key ({key}), a member of a family {other_views} of the same query{equal_text}",
        f"  its rows: those of the family with {condition}",
        f"  chosen: a family, about {cost.family_cost(rows)}",
        f"  instead of {count_text(len(members), 'view')} by themselves, "
        f"about {cost.separate_cost(len(members), distinct, rows)}",
    ]


def similar_view_notes(store: Store, catalog: Catalog, view: View) -> list[str]:
    """Return the lines about separate views that differ only in constants, with the number that makes a family."""
    similar = catalog.templates.get(view.template, ()) if view.template and not view.is_member else ()
    if len(similar) < 2:
        return []
    if similar[-1].is_hidden_family:
        return [f"family: of {count_text(len(catalog.members[similar[-1].table.id]), 'like view')} that came later"]
    rows = _base_rows(store, catalog, view)
    separate, family = cost.separate_cost(len(similar), len(similar), rows), cost.family_cost(rows)
    return [
        f"family: none; {len(similar)} like views by themselves, about {separate}",
        f"  instead of a family, about {family}; views that come make one from {cost.min_family_views(rows)} on",
    ]


def _base_rows(store: Store, catalog: Catalog, view: View) -> int:
    """Return the total number of rows of the base tables that a view reads."""
    read = map(catalog.find_table_by_id, view.reads - {view.parameter_table_id})
    return sum(store.count(table) for table in read if table is not None and not table.is_view)


# The notes about a lazy view: its cost, and the cost if it were stored, in rows.
#
# lazy      a change   one row in each arrangement of the changed table
#           a read     the rows that the steps of key propagation look up: at each step the fan-out of its arrangement
# stored    a change   the rows that join lookups produce for it, and the rows of the view that it changes
#           a read     the requested rows of the view


def lazy_cost_notes(
    catalog: Catalog, view: View, names: Mapping[int, str], sizes: SlotSizes, fan_out: FanOut
) -> list[str]:
    """Return the lines of EXPLAIN about a lazy view's cost."""
    plan = plan_lazy_view(catalog, view)
    row_count = sum(sizes.get(slot_names(image)[0], (0, 0))[0] for image in plan.arrangements.values())
    lines = ["lazy: batches keep these arrangements; nothing is joined or summed until it is read"]
    by_key = _rows_by_key(plan, fan_out, sizes)
    if by_key is not None:
        key_columns = ", ".join(k.column for k in view.table.key[: plan.key_propagation.min_key_columns])
        steps = ", ".join(
            _step_text(step, names, rows) for step, rows in zip(plan.key_propagation.steps, by_key, strict=True)
        )
        lines.append(f"  a read by ({key_columns}): about {sum(by_key):,.0f} rows: {steps}")
    else:
        lines.append("  a read by key: as one of all, since no column of the key is a column of its tables")
    lines.append(f"  a read of all: {row_count:,} rows; answers are remembered until one of the tables changes")
    changes = {table: _joined_rows(plan.dataflow, Input(table).id, fan_out) for table in plan.arrangements}
    joined = ", ".join(f"of {names[table]} about {rows:,.1f}" for table, rows in changes.items())
    lines.append(f"stored, it would cost joined rows for each change: {joined}; and a read by key one row")
    max_joined, read_rows = max(changes.values()), sum(by_key) if by_key is not None else row_count
    if read_rows:
        lines.append(
            f"  so lazy does less work while fewer than {max_joined / read_rows:,.2g} keys are read for a change"
        )
    return lines


def _step_text(step: PropagationStep, names: Mapping[int, str], rows: float) -> str:
    by = f" by ({', '.join(step.columns)})" if step.columns else ", all"
    return f"{names[step.table]}{by} {rows:,.0f}"


def _rows_by_key(plan: LazyPlan, fan_out: FanOut, sizes: SlotSizes) -> Sequence[float] | None:
    """Return the rows that each step finds for one key; None if a key does not restrict the base rows."""
    if not plan.key_propagation.min_key_columns:
        return None
    row_counts: list[float] = []
    for step in plan.key_propagation.steps:
        image = TableImage(step.table, step.columns) if step.columns else plan.arrangements[step.table]
        rows = sizes.get(slot_names(image)[0], (0, 0))[0]
        found = fan_out.get(image.id, 0.0)
        row_counts.append(
            rows if not step.columns else found if step.source == KEY_STEP else row_counts[step.source] * found
        )
    return row_counts


def _joined_rows(dataflow: Dataflow, source: str, fan_out: FanOut) -> float:
    """Estimate the rows that lookups produce for one changed row; one per lookup if the fan-out is unknown."""
    rows = {source: 1.0}
    joined = 0.0
    for name in dataflow.sort_operators(dataflow.reachable([source], dataflow.batch_operators)):
        operator = dataflow.operators[name]
        if name == source:
            continue
        count = max((rows.get(s, 0.0) for s in dataflow.input_operators(name)), default=0.0)
        if operator.probed_arrangement is not None:
            count *= fan_out.get(operator.probed_arrangement, 1.0)
            joined += count
        rows[name] = count
    return max(joined, 1.0)
