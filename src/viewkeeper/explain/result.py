"""The result of EXPLAIN: text that a notebook shows as a diagram."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a remote client receives the plan from the server and imports none of these
    from viewkeeper.model.catalog.catalog import Catalog
    from viewkeeper.store.contract.store import Store


class Plan(str):
    """The text of EXPLAIN; `svg` is the diagram of the same plan."""

    svg: str

    __slots__ = ("svg",)

    def _repr_svg_(self) -> str:
        return self.svg

    def __repr__(self) -> str:
        return str(self)  # so that a prompt shows the text on several lines


def make_plan(text: str, svg: str) -> Plan:
    plan = Plan(text)
    plan.svg = svg
    return plan


def view_plan(store: Store, catalog: Catalog, view: str) -> Plan:
    from viewkeeper.explain.diagram import view_diagram
    from viewkeeper.explain.render import to_svg
    from viewkeeper.explain.view import explain_view

    return make_plan(explain_view(store, catalog, view), to_svg(view_diagram(store, catalog, view)))
