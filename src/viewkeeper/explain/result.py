"""A view's maintenance plan, as text that a notebook shows as a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a client has the plan from its server
    from viewkeeper.model.catalog.catalog import Catalog
    from viewkeeper.store.contract.store import Store


class Plan(str):
    """The text of EXPLAIN; `svg` is the same plan drawn."""

    svg: str

    __slots__ = ("svg",)

    def _repr_svg_(self) -> str:
        return self.svg

    def __repr__(self) -> str:
        return str(self)  # at a prompt the text itself, not one long line


def make_plan(text: str, svg: str) -> Plan:
    found = Plan(text)
    found.svg = svg
    return found


def view_plan(store: Store, catalog: Catalog, view: str) -> Plan:
    from viewkeeper.explain.diagram import view_diagram
    from viewkeeper.explain.render import to_svg
    from viewkeeper.explain.view import explain_view

    return make_plan(explain_view(store, catalog, view), to_svg(view_diagram(store, catalog, view)))
