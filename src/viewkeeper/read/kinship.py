"""What EXPLAIN says of views that are alike but for constants: a member's family, or why there is none."""

from __future__ import annotations

from viewkeeper.expressions.text import expr_text
from viewkeeper.expressions.tree import Expr
from viewkeeper.model.catalog import Catalog, View
from viewkeeper.model.shown import counted
from viewkeeper.plan.families import costs
from viewkeeper.store.base import Store


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
        f"  chosen: a family, about {costs.family(rows)}",
        f"  instead of {counted(len(all_), 'view')} by themselves, about {costs.apart(len(all_), distinct, rows)}",
    ]


def kin(store: Store, catalog: Catalog, view: View) -> list[str]:
    """Of a view by itself that others are like: from how many on they would be a family."""
    found = catalog.templates.get(view.template, ()) if view.template and not view.is_member else ()
    if len(found) < 2:
        return []
    if found[-1].gathers:
        return [f"family: of {counted(len(catalog.members[found[-1].table.id]), 'like view')} that came later"]
    rows = _rows(store, catalog, view)
    apart, together = costs.apart(len(found), len(found), rows), costs.family(rows)
    return [
        f"family: none; {len(found)} like views by themselves, about {apart}",
        f"  instead of a family, about {together}; views that come make one from {costs.fewest(rows)} on",
    ]


def _rows(store: Store, catalog: Catalog, view: View) -> int:
    """Of the tables that it reads."""
    read = map(catalog.table_of, view.reads - {view.parameters})
    return sum(store.count(table) for table in read if table is not None and not table.is_view)
