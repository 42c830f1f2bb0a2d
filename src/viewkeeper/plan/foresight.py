"""What a view's lookups see ahead, as EXPLAIN tells it.

look-ahead auto: rows that lead nowhere are left out where that pays
  changes of tweet: follower by (user_id) that lead to follower, user; 12,345 rows left out in the last 32 batches
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from viewkeeper.model.catalog import View
from viewkeeper.operators.outlooks import Outlook
from viewkeeper.operators.routes import routes_among
from viewkeeper.operators.stretches import Step
from viewkeeper.plan.flow import Flow
from viewkeeper.plan.paths import shared
from viewkeeper.plan.wishes import Wishes

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


def _ahead(outlook: Outlook, mode: str) -> Iterator[Step]:
    for _, child in outlook.onward:
        yield from [child.step] if mode == "local" else (o.step for o in child.all())


def _table(flow: Flow, step: Step, names: Mapping[int, str]) -> str:
    arranged = flow.operators[step.arrangement].arranges
    return step.arrangement if arranged is None else names[arranged]
