"""What a view's lookups are made together with, as EXPLAIN tells it.

shared paths
  changes of lineitem, of 17 views: orders by (o_orderkey) with 8 others, customer by (c_custkey) with 6 others
  changes of orders, of 12 views: customer by (c_custkey) with 6 others, lineitem by (l_orderkey) alone
lookups a batch of all its tables: 4 by itself, 1.4 shared (a lookup for n views counts 1/n)
chosen: shared, about 5.9 ms of a batch of 10,000 changed rows, instead of by itself, about 10.5 ms

By itself a view has a statement before each lookup and one at the end; together all views of a table's changes have one
statement for their conditions, and each its own at the end. Seconds are of one core, from TPC-H's 22 views at scale 1:
98 statements and 74 lookups took 285 ms, 2 statements and 20 lookups 52 ms, of 25,000 changed rows.
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
"""Changed rows of the batch that is spoken of."""
_STATEMENT_SECONDS = 1e-3
_LOOKUP_SECONDS = 2e-4 + EXPECTED_ROWS * 9e-8


def describe_shared_paths(dataflow: Dataflow, view: int, hints: SharingHints, names: Mapping[int, str]) -> list[str]:
    """The lines of EXPLAIN about a view's shared lookups; none if nobody shares one with it."""
    if view in hints.unshared:
        return ["paths: by itself (share = false)"]
    together = shared_variant(dataflow, frozenset(dataflow.used_columns), hints)
    users = _views_by_operator(dataflow)
    lines, alone, in_parts = [], 0, 0.0
    apart_seconds = together_seconds = 0.0
    for operator in select_delta_joins(together.operators.values()):
        views = [users[way[0]] for way in together.edges[operator.id]]
        mine = sum(1 << i for i, of in enumerate(views) if view in of)
        if not mine:
            continue
        told = []
        for step in all_steps(operator.path):
            if not step.exit_mask & mine:
                continue
            others = len(frozenset().union(*(of for i, of in enumerate(views) if step.exit_mask >> i & 1)) - {view})
            arranged = dataflow.operators[step.arrangement]
            table = names[arranged.arranged_table] if arranged.arranged_table is not None else arranged.id
            told.append(f"{table} by ({', '.join(step.arrangement_key)}) {_sharing_text(others)}")
            alone, in_parts = alone + 1, in_parts + 1 / (1 + others)
            together_seconds += _LOOKUP_SECONDS / (1 + others)
        everyone = len(frozenset().union(*views))
        apart_seconds += len(told) * (_LOOKUP_SECONDS + _STATEMENT_SECONDS) + _STATEMENT_SECONDS
        together_seconds += _STATEMENT_SECONDS / everyone + _STATEMENT_SECONDS
        if told and everyone > 1:
            table = names[dataflow.operators[operator.delta.source].input_table or 0]
            lines.append(f"  changes of {table}, of {everyone} views: {', '.join(told)}")
    if not lines:
        return []
    estimate = f"{alone} by itself, {in_parts:.1f} shared (a lookup for n views counts 1/n)"
    seconds = f"about {together_seconds * 1e3:.1f} ms of a batch of {EXPECTED_ROWS:,} changed rows"
    chosen = f"  chosen: shared, {seconds}, instead of by itself, about {apart_seconds * 1e3:.1f} ms"
    return ["shared paths", *lines, f"  lookups a batch of all its tables: {estimate}", chosen]


def _sharing_text(other_views: int) -> str:
    return f"with {other_views} other{'s' if other_views > 1 else ''}" if other_views else "alone"


def _views_by_operator(dataflow: Dataflow) -> Mapping[str, frozenset[int]]:
    found: dict[str, set[int]] = defaultdict(set)
    for view, made in dataflow.views.items():
        for name in made.operators:
            found[name].add(view)
    return {name: frozenset(views) for name, views in found.items()}


# What a view's lookups see ahead, as EXPLAIN tells it.
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
    """The lines of EXPLAIN about a view's look-ahead; none where it is only a matter of whether it will pay."""
    if view.table.id in hints.unshared:
        return []
    together = shared_variant(dataflow, frozenset(dataflow.used_columns), hints)
    mine = dataflow.views[view.table.id].operators
    lines = []
    for operator in select_delta_joins(together.operators.values()):
        table = names[dataflow.operators[operator.delta.source].input_table or 0]
        for outlook in operator.semijoin_nodes.values():
            asked = [name for name in outlook.step.lookup_ids if name in mine]
            if not asked:
                continue
            count = sum(skipped_rows.get(name, 0) for name in asked)
            if view.lookahead == "auto" and not count:
                continue
            rows = f"; {count:,} rows left out in the last {batches} batches" if count else ""
            lines.append(f"  changes of {table}: {_describe_reduction(dataflow, outlook, view.lookahead, names)}{rows}")
    if not lines:
        return []
    if view.lookahead == "none":
        return ["look-ahead none: every lookup is made"]
    return [f"look-ahead {view.lookahead}: {_MODE_TEXTS[view.lookahead]}", *lines]


def _describe_reduction(dataflow: Dataflow, semijoin: SemijoinNode, mode: str, names: Mapping[int, str]) -> str:
    told = f"{_table_name(dataflow, semijoin.step, names)} by ({', '.join(semijoin.step.arrangement_key)})"
    parts = ["meet their conditions"] if semijoin.relation_filter is not None else []
    tables = dict.fromkeys(_table_name(dataflow, step, names) for step in _reached_steps(semijoin, mode))
    parts += [f"lead to {', '.join(tables)}"] if tables else []
    return f"{told} that {' and '.join(parts)}"


def _reached_steps(semijoin: SemijoinNode, mode: str) -> Iterator[PathStep]:
    for _, child in semijoin.children:
        yield from [child.step] if mode == "local" else (o.step for o in child.walk())


def _table_name(dataflow: Dataflow, step: PathStep, names: Mapping[int, str]) -> str:
    arranged = dataflow.operators[step.arrangement].arranged_table
    return step.arrangement if arranged is None else names[arranged]


# What EXPLAIN says of views that are alike but for constants: a member's family, or why there is none.


def membership_notes(store: Store, catalog: Catalog, view: View) -> list[str]:
    """Of a member of a family, what stands before the family's plan; nothing of others."""
    if not view.is_member:
        return []
    family = catalog.maintained_view(view)
    parameters = zip(family.table.columns[: family.parameter_count], view.parameter_values, strict=True)
    given = ", ".join(f"{c.name} = {expr_text(Expr('literal', c.type, value=v))}" for c, v in parameters)
    key = ", ".join(k.column + (" DESC" if k.descending else "") for k in view.table.key)
    all_ = catalog.members[family.table.id]
    equal = sum(m.table.key_prefix == view.table.key_prefix for m in all_) - 1
    others = f"with {count_text(len(all_) - 1, 'other view')}"
    same = f", {equal} of them equal to it" if equal else ""
    rows, distinct = _base_rows(store, catalog, family), len({m.table.key_prefix for m in all_})
    return [
        f"view {view.table.name}  key ({key}), a member of a family {others} of the same query{same}",
        f"  its rows: those of the family with {given}",
        f"  chosen: a family, about {cost.family_cost(rows)}",
        f"  instead of {count_text(len(all_), 'view')} by themselves, "
        f"about {cost.separate_cost(len(all_), distinct, rows)}",
    ]


def similar_view_notes(store: Store, catalog: Catalog, view: View) -> list[str]:
    """Of a view by itself that others are like: from how many on they would be a family."""
    found = catalog.templates.get(view.template, ()) if view.template and not view.is_member else ()
    if len(found) < 2:
        return []
    if found[-1].is_hidden_family:
        return [f"family: of {count_text(len(catalog.members[found[-1].table.id]), 'like view')} that came later"]
    rows = _base_rows(store, catalog, view)
    apart, together = cost.separate_cost(len(found), len(found), rows), cost.family_cost(rows)
    return [
        f"family: none; {len(found)} like views by themselves, about {apart}",
        f"  instead of a family, about {together}; views that come make one from {cost.min_family_views(rows)} on",
    ]


def _base_rows(store: Store, catalog: Catalog, view: View) -> int:
    """Of the tables that it reads."""
    read = map(catalog.find_table_by_id, view.reads - {view.parameter_table_id})
    return sum(store.count(table) for table in read if table is not None and not table.is_view)


# What a lazy view costs and what it would cost if it were stored, in rows, for EXPLAIN.
#
# lazy      a change   a row in each arrangement of its table
#           a read     the rows that are looked up from step to step, each as many as its arrangement has of one key
# stored    a change   the rows that the lookups of a join make of it, and the view's rows that it changes
#           a read     the view's rows that are asked for


def lazy_cost_notes(
    catalog: Catalog, view: View, names: Mapping[int, str], sizes: SlotSizes, fan_out: FanOut
) -> list[str]:
    """The lines of EXPLAIN about it."""
    asked = plan_lazy_view(catalog, view)
    whole = sum(sizes.get(slot_names(image)[0], (0, 0))[0] for image in asked.arrangements.values())
    lines = ["lazy: batches keep these arrangements; nothing is joined or summed until it is read"]
    by_key = _rows_by_key(asked, fan_out, sizes)
    if by_key is not None:
        known = ", ".join(k.column for k in view.table.key[: asked.key_propagation.min_key_columns])
        steps = ", ".join(
            _step_text(step, names, rows) for step, rows in zip(asked.key_propagation.steps, by_key, strict=True)
        )
        lines.append(f"  a read by ({known}): about {sum(by_key):,.0f} rows: {steps}")
    else:
        lines.append("  a read by key: as one of all, since no column of the key is a column of its tables")
    lines.append(f"  a read of all: {whole:,} rows; answers are remembered until one of the tables changes")
    changes = {table: _joined_rows(asked.dataflow, Input(table).id, fan_out) for table in asked.arrangements}
    said = ", ".join(f"of {names[table]} about {rows:,.1f}" for table, rows in changes.items())
    lines.append(f"stored, it would cost joined rows for each change: {said}; and a read by key one row")
    most, read = max(changes.values()), sum(by_key) if by_key is not None else whole
    if read:
        lines.append(f"  so lazy does less work while fewer than {most / read:,.2g} keys are read for a change")
    return lines


def _step_text(step: PropagationStep, names: Mapping[int, str], rows: float) -> str:
    by = f" by ({', '.join(step.columns)})" if step.columns else ", all"
    return f"{names[step.table]}{by} {rows:,.0f}"


def _rows_by_key(plan: LazyPlan, fan_out: FanOut, sizes: SlotSizes) -> Sequence[float] | None:
    """Rows that each step finds for one key; None if nothing is narrowed."""
    if not plan.key_propagation.min_key_columns:
        return None
    found: list[float] = []
    for step in plan.key_propagation.steps:
        image = TableImage(step.table, step.columns) if step.columns else plan.arrangements[step.table]
        rows = sizes.get(slot_names(image)[0], (0, 0))[0]
        each = fan_out.get(image.id, 0.0)
        found.append(rows if not step.columns else each if step.source == KEY_STEP else found[step.source] * each)
    return found


def _joined_rows(dataflow: Dataflow, source: str, fan_out: FanOut) -> float:
    """Rows that lookups make of one changed row of a table; where an arrangement is not kept, one each."""
    rows = {source: 1.0}
    made = 0.0
    for name in dataflow.sort_operators(dataflow.reachable([source], dataflow.batch_operators)):
        operator = dataflow.operators[name]
        if name == source:
            continue
        came = max((rows.get(s, 0.0) for s in dataflow.input_operators(name)), default=0.0)
        if operator.probed_arrangement is not None:
            came *= fan_out.get(operator.probed_arrangement, 1.0)
            made += came
        rows[name] = came
    return max(made, 1.0)
