"""A view's maintenance plan as a picture, with the sizes that its state has now."""

from __future__ import annotations

from collections.abc import Mapping

from viewkeeper.model.catalog import Catalog
from viewkeeper.plan import flows
from viewkeeper.plan.picture import Picture, numbered, picture
from viewkeeper.read.status import _sizes
from viewkeeper.store.base import Store


def picture_view(store: Store, catalog: Catalog, name: str) -> Picture:
    """The picture of one view."""
    return picture_of(store, catalog, name)[0]


def picture_of(store: Store, catalog: Catalog, name: str) -> tuple[Picture, Mapping[int, str]]:
    """The picture of one view, and by a box's number the id of its operator."""
    view = catalog.keeper(catalog.view(name))
    names = {t.id: t.name for t in (*catalog.tables, *(v.table for v in catalog.views))}
    flow = flows.everything(store, catalog)
    return picture(flow, view.table, _sizes(store), names), {n: o.id for n, o in numbered(flow, view.table).items()}
