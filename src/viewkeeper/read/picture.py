"""A view's maintenance plan as a picture, with the sizes that its state has now."""

from __future__ import annotations

from viewkeeper.model.catalog import Catalog
from viewkeeper.plan.picture import Picture, picture
from viewkeeper.read.status import _flow, _sizes
from viewkeeper.store.base import Store


def picture_view(store: Store, catalog: Catalog, name: str) -> Picture:
    """The picture of one view."""
    view = catalog.view(name)
    names = {t.id: t.name for t in (*catalog.tables, *(v.table for v in catalog.views))}
    return picture(_flow(store, catalog), view.table, _sizes(store), names)
