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
from viewkeeper.model.display import counted
from viewkeeper.operators.delta_join.operator import routes_among
from viewkeeper.operators.delta_join.plan import PathStep, steps_of
from viewkeeper.operators.delta_join.semijoin_graph import Outlook
from viewkeeper.operators.description import FanOut
from viewkeeper.operators.kinds import Image, Input
from viewkeeper.plan.compile.compiled_view import slots
from viewkeeper.plan.dataflow.dataflow import Flow, Sizes
from viewkeeper.plan.dataflow.shared_paths import shared
from viewkeeper.plan.dataflow.sharing_hints import Wishes
from viewkeeper.plan.families import cost
from viewkeeper.plan.rules.key_propagation import KEY, Step
from viewkeeper.read.lazy.evaluate import Asked, asked_of
from viewkeeper.store.contract.store import Store

EXPECTED = 10_000
"""Changed rows of the batch that is spoken of."""
_STATEMENT = 1e-3
_LOOKUP = 2e-4 + EXPECTED * 9e-8


def companions(flow: Flow, view: int, wishes: Wishes, names: Mapping[int, str]) -> list[str]:
    """The lines of EXPLAIN about a view's shared lookups; none if nobody shares one with it."""
    if view in wishes.apart:
        return ["paths: by itself (share = false)"]
    together = shared(flow, frozenset(flow.used), wishes)
    users = _users(flow)
    lines, alone, in_parts = [], 0, 0.0
    apart_seconds = together_seconds = 0.0
    for operator in routes_among(together.operators.values()):
        views = [users[way[0]] for way in together.consumers[operator.id]]
        mine = sum(1 << i for i, of in enumerate(views) if view in of)
        if not mine:
            continue
        told = []
        for step in steps_of(operator.stretch):
            if not step.exits & mine:
                continue
            others = len(frozenset().union(*(of for i, of in enumerate(views) if step.exits >> i & 1)) - {view})
            arranged = flow.operators[step.arrangement]
            table = names[arranged.arranges] if arranged.arranges is not None else arranged.id
            told.append(f"{table} by ({', '.join(step.by)}) {_with(others)}")
            alone, in_parts = alone + 1, in_parts + 1 / (1 + others)
            together_seconds += _LOOKUP / (1 + others)
        everyone = len(frozenset().union(*views))
        apart_seconds += len(told) * (_LOOKUP + _STATEMENT) + _STATEMENT
        together_seconds += _STATEMENT / everyone + _STATEMENT
        if told and everyone > 1:
            table = names[flow.operators[operator.delta.source].changes_of or 0]
            lines.append(f"  changes of {table}, of {everyone} views: {', '.join(told)}")
    if not lines:
        return []
    estimate = f"{alone} by itself, {in_parts:.1f} shared (a lookup for n views counts 1/n)"
    seconds = f"about {together_seconds * 1e3:.1f} ms of a batch of {EXPECTED:,} changed rows"
    chosen = f"  chosen: shared, {seconds}, instead of by itself, about {apart_seconds * 1e3:.1f} ms"
    return ["shared paths", *lines, f"  lookups a batch of all its tables: {estimate}", chosen]


def _with(others: int) -> str:
    return f"with {others} other{'s' if others > 1 else ''}" if others else "alone"


def _users(flow: Flow) -> Mapping[str, frozenset[int]]:
    found: dict[str, set[int]] = defaultdict(set)
    for view, made in flow.views.items():
        for name in made.operators:
            found[name].add(view)
    return {name: frozenset(views) for name, views in found.items()}


# What a view's lookups see ahead, as EXPLAIN tells it.
#
# look-ahead auto: rows that lead nowhere are left out where that pays
#   changes of tweet: follower by (user_id) that lead to follower, user; 12,345 rows left out in the last 32 batches


_WORDS = {
    "local": "rows whose next lookup finds nothing are left out",
    "auto": "rows that lead nowhere are left out where that pays",
    "global": "rows that lead nowhere are left out",
}


def foresight(
    flow: Flow, view: View, wishes: Wishes, names: Mapping[int, str], skipped: Mapping[str, int], batches: int
) -> list[str]:
    """The lines of EXPLAIN about a view's look-ahead; none where it is only a matter of whether it will pay."""
    if view.table.id in wishes.apart:
        return []
    together = shared(flow, frozenset(flow.used), wishes)
    mine = flow.views[view.table.id].operators
    lines = []
    for operator in routes_among(together.operators.values()):
        table = names[flow.operators[operator.delta.source].changes_of or 0]
        for outlook in operator.outlooks.values():
            asked = [name for name in outlook.step.lookups if name in mine]
            if not asked:
                continue
            count = sum(skipped.get(name, 0) for name in asked)
            if view.lookahead == "auto" and not count:
                continue
            rows = f"; {count:,} rows left out in the last {batches} batches" if count else ""
            lines.append(f"  changes of {table}: {_seen(flow, outlook, view.lookahead, names)}{rows}")
    if not lines:
        return []
    if view.lookahead == "none":
        return ["look-ahead none: every lookup is made"]
    return [f"look-ahead {view.lookahead}: {_WORDS[view.lookahead]}", *lines]


def _seen(flow: Flow, outlook: Outlook, mode: str, names: Mapping[int, str]) -> str:
    told = f"{_table(flow, outlook.step, names)} by ({', '.join(outlook.step.by)})"
    parts = ["meet their conditions"] if outlook.own is not None else []
    tables = dict.fromkeys(_table(flow, step, names) for step in _ahead(outlook, mode))
    parts += [f"lead to {', '.join(tables)}"] if tables else []
    return f"{told} that {' and '.join(parts)}"


def _ahead(outlook: Outlook, mode: str) -> Iterator[PathStep]:
    for _, child in outlook.onward:
        yield from [child.step] if mode == "local" else (o.step for o in child.all())


def _table(flow: Flow, step: PathStep, names: Mapping[int, str]) -> str:
    arranged = flow.operators[step.arrangement].arranges
    return step.arrangement if arranged is None else names[arranged]


# What EXPLAIN says of views that are alike but for constants: a member's family, or why there is none.


def membership(store: Store, catalog: Catalog, view: View) -> list[str]:
    """Of a member of a family, what stands before the family's plan; nothing of others."""
    if not view.is_member:
        return []
    family = catalog.keeper(view)
    parameters = zip(family.table.columns[: family.given], view.values, strict=True)
    given = ", ".join(f"{c.name} = {expr_text(Expr('literal', c.type, value=v))}" for c, v in parameters)
    key = ", ".join(k.column + (" DESC" if k.descending else "") for k in view.table.key)
    all_ = catalog.members[family.table.id]
    equal = sum(m.table.prefix == view.table.prefix for m in all_) - 1
    others = f"with {counted(len(all_) - 1, 'other view')}"
    same = f", {equal} of them equal to it" if equal else ""
    rows, distinct = _rows(store, catalog, family), len({m.table.prefix for m in all_})
    return [
        f"view {view.table.name}  key ({key}), a member of a family {others} of the same query{same}",
        f"  its rows: those of the family with {given}",
        f"  chosen: a family, about {cost.family(rows)}",
        f"  instead of {counted(len(all_), 'view')} by themselves, about {cost.apart(len(all_), distinct, rows)}",
    ]


def kin(store: Store, catalog: Catalog, view: View) -> list[str]:
    """Of a view by itself that others are like: from how many on they would be a family."""
    found = catalog.templates.get(view.template, ()) if view.template and not view.is_member else ()
    if len(found) < 2:
        return []
    if found[-1].gathers:
        return [f"family: of {counted(len(catalog.members[found[-1].table.id]), 'like view')} that came later"]
    rows = _rows(store, catalog, view)
    apart, together = cost.apart(len(found), len(found), rows), cost.family(rows)
    return [
        f"family: none; {len(found)} like views by themselves, about {apart}",
        f"  instead of a family, about {together}; views that come make one from {cost.fewest(rows)} on",
    ]


def _rows(store: Store, catalog: Catalog, view: View) -> int:
    """Of the tables that it reads."""
    read = map(catalog.table_of, view.reads - {view.parameters})
    return sum(store.count(table) for table in read if table is not None and not table.is_view)


# What a lazy view costs and what it would cost if it were stored, in rows, for EXPLAIN.
#
# lazy      a change   a row in each arrangement of its table
#           a read     the rows that are looked up from step to step, each as many as its arrangement has of one key
# stored    a change   the rows that the lookups of a join make of it, and the view's rows that it changes
#           a read     the view's rows that are asked for


def both_costs(catalog: Catalog, view: View, names: Mapping[int, str], sizes: Sizes, fan_out: FanOut) -> list[str]:
    """The lines of EXPLAIN about it."""
    asked = asked_of(catalog, view)
    whole = sum(sizes.get(slots(image)[0], (0, 0))[0] for image in asked.kept.values())
    lines = ["lazy: batches keep these arrangements; nothing is joined or summed until it is read"]
    by_key = _by_key(asked, fan_out, sizes)
    if by_key is not None:
        known = ", ".join(k.column for k in view.table.key[: asked.narrowing.needs])
        steps = ", ".join(_said(step, names, rows) for step, rows in zip(asked.narrowing.steps, by_key, strict=True))
        lines.append(f"  a read by ({known}): about {sum(by_key):,.0f} rows: {steps}")
    else:
        lines.append("  a read by key: as one of all, since no column of the key is a column of its tables")
    lines.append(f"  a read of all: {whole:,} rows; answers are remembered until one of the tables changes")
    changes = {table: _made(asked.flow, Input(table).id, fan_out) for table in asked.kept}
    said = ", ".join(f"of {names[table]} about {rows:,.1f}" for table, rows in changes.items())
    lines.append(f"stored, it would cost joined rows for each change: {said}; and a read by key one row")
    most, read = max(changes.values()), sum(by_key) if by_key is not None else whole
    if read:
        lines.append(f"  so lazy does less work while fewer than {most / read:,.2g} keys are read for a change")
    return lines


def _said(step: Step, names: Mapping[int, str], rows: float) -> str:
    by = f" by ({', '.join(step.columns)})" if step.columns else ", all"
    return f"{names[step.table]}{by} {rows:,.0f}"


def _by_key(asked: Asked, fan_out: FanOut, sizes: Sizes) -> Sequence[float] | None:
    """Rows that each step finds for one key; None if nothing is narrowed."""
    if not asked.narrowing.needs:
        return None
    found: list[float] = []
    for step in asked.narrowing.steps:
        image = Image(step.table, step.columns) if step.columns else asked.kept[step.table]
        rows = sizes.get(slots(image)[0], (0, 0))[0]
        each = fan_out.get(image.id, 0.0)
        found.append(rows if not step.columns else each if step.source == KEY else found[step.source] * each)
    return found


def _made(flow: Flow, source: str, fan_out: FanOut) -> float:
    """Rows that lookups make of one changed row of a table; where an arrangement is not kept, one each."""
    rows = {source: 1.0}
    made = 0.0
    for name in flow.ordered(flow.reached([source], flow.in_batches)):
        operator = flow.operators[name]
        if name == source:
            continue
        came = max((rows.get(s, 0.0) for s in flow.feeders(name)), default=0.0)
        if operator.probes is not None:
            came *= fan_out.get(operator.probes, 1.0)
            made += came
        rows[name] = came
    return max(made, 1.0)
