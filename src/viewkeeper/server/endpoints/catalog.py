"""What there is: tables, views, plans, status, health, metrics."""

from __future__ import annotations

import time
from typing import Any

from viewkeeper.errors import Timeout
from viewkeeper.explain.diagram import picture_of
from viewkeeper.model.catalog.catalog import Catalog, View
from viewkeeper.model.catalog.strategies import strategy_of
from viewkeeper.model.schema import Column, Table
from viewkeeper.read.status import Status, ViewStatus, database_status
from viewkeeper.read.suspension import told
from viewkeeper.server import metrics
from viewkeeper.server.context import Serving
from viewkeeper.server.http import formats
from viewkeeper.server.http.json_values import dumps
from viewkeeper.server.http.request import Asked, Reply
from viewkeeper.syntax.show_create import create_table, created, indexed
from viewkeeper.syntax.view_text import shown_query


async def tables(serving: Serving, asked: Asked) -> Reply:
    """Every table."""
    now = await status_of(serving)
    rows = {table.name: table for table in now.tables}
    found = []
    for table in serving.store.catalog().named_tables:
        known = rows.get(table.name)
        counts = (
            {"rows": known.rows, "rejected": known.rejected} if known is not None else {"rows": None, "rejected": 0}
        )
        found.append({**shape(table), "sql": create_table(table), **counts})
    return _json({"tables": found, **_about(serving, now)})


async def views(serving: Serving, asked: Asked) -> Reply:
    """Every view."""
    now = await status_of(serving)
    known = {view.name: view for view in now.views}
    catalog = serving.store.catalog()
    return _json(
        {"views": [_view(catalog, v, known.get(v.table.name)) for v in catalog.shown_views], **_about(serving, now)}
    )


async def view(serving: Serving, asked: Asked) -> Reply:
    """One view."""
    catalog = serving.store.catalog()
    found = catalog.view(asked.name)
    now = await status_of(serving)
    known = next((v for v in now.views if v.name == found.table.name), None)
    token = str(serving.db.token(found.table.name))  # of the rows that it shows
    return _json({**_about(serving, now), **_view(catalog, found, known), "token": token})


async def table(serving: Serving, asked: Asked) -> Reply:
    """One table or view: columns, key and definition."""
    catalog = serving.store.catalog()
    found = catalog.find(asked.name)
    if isinstance(found, View):
        kind = {} if found.index is None else {"kind": "index"}
        about = {"sql": created(catalog, found), "token": str(serving.db.token(asked.name))}
        suspended = {} if found.suspended is None else {"suspended": told(found.suspended)}
        return _json({**shape(found.table), **kind, **about, **suspended})
    named = catalog.table(asked.name)
    return _json({**shape(named), "sql": create_table(named), "token": str(serving.db.token(asked.name))})


async def plan(serving: Serving, asked: Asked) -> Reply:
    """A view's maintenance plan as a graph, with what its operators took in the last batches."""
    serving.store.catalog().view(asked.name)
    return _json(await serving.call(_plan, serving, asked.name))


def _plan(serving: Serving, name: str) -> dict[str, Any]:
    maintainer = serving.db._maintainer
    timed = maintainer.publisher.recent.operators() if maintainer is not None else None
    picture, ids = picture_of(serving.store, serving.store.catalog(), name)
    boxes = []
    for box in picture.boxes:
        one = timed.get(ids[box.number]) if timed is not None else None
        boxes.append({**vars(box), "last": one})
    links = [vars(link) for link in picture.links]
    told = serving.db.explain(name)
    shared = sorted({other for box in picture.boxes if box.rows is not None for other in box.shared})
    return {
        "view": picture.view,
        "key": picture.key,
        "unique": picture.unique,
        "rounds": picture.rounds,
        "boxes": boxes,
        "links": links,
        "shares_state_with": shared,
        "timed": timed is not None,
        "text": told,
        "svg": told.svg,
    }


async def status(serving: Serving, asked: Asked) -> Reply:
    """What the database is doing."""
    return _json({**(await status_of(serving)).to_json(), **_server(serving)})


async def healthy(serving: Serving, asked: Asked) -> Reply:
    """Alive."""
    serving.store.head()
    return _json({"status": "ok"})


async def ready(serving: Serving, asked: Asked) -> Reply:
    """Fresh enough to serve."""
    now = await status_of(serving)
    most = serving.settings.max_lag
    suspended = {v.name: _behind(v) for v in now.views if v.suspended is not None}
    counted = suspended if serving.settings.suspended == "count" else {}
    lag = max([now.lag_seconds, *counted.values()])
    if most is not None and lag > most:
        late = [name for name, seconds in counted.items() if seconds > most]
        which = f"{', '.join(late)} (suspended) and so the views" if late else "The views"
        raise Timeout(f"{which} are {lag:.1f} s behind; {most:g} s are allowed.", hint="")
    if serving.settings.maintain and now.error is not None:
        raise Timeout(f"Maintenance failed: {now.error[:200]}", hint="It is tried again.")
    return _json({"status": "ready", "lag_seconds": lag, "epoch": now.epoch, "suspended": suspended})


def _behind(view: ViewStatus) -> float:
    """Seconds that a suspended view is behind: the age of the first change that it lacks, or of its suspension if the
    log does not have that change any more."""
    if view.lag_seconds is not None:
        return view.lag_seconds
    return 0.0 if view.suspended_since is None else max(0.0, time.time() - view.suspended_since)


async def measured(serving: Serving, asked: Asked) -> Reply:
    """Metrics for Prometheus."""
    now = await status_of(serving)
    hub = serving.hub
    text = await serving.call(serving.metrics.text, now, serving.store.log_bytes(), hub.subscribed(), hub.cut_off)
    return Reply(200, text, metrics.MEDIA)


async def described(serving: Serving, asked: Asked) -> Reply:
    """This interface."""
    return Reply(200, serving.description, formats.JSON)


# -- shapes ------------------------------------------------------------------------------------------------------------


async def status_of(serving: Serving) -> Status:
    return await serving.call(lambda: database_status(serving.store, serving.store.catalog()))


def shape(table: Table) -> dict[str, Any]:
    """What a program must know to read a table's rows."""
    return {
        "name": table.name,
        "kind": "view" if table.is_view else "table",
        "columns": [_column(c) for c in table.columns],
        "key": [{"column": k.column, "descending": k.descending, "nulls_last": k.nulls_last} for k in table.key],
        "unique": not table.is_bag,
        "stored": table.has_rows,
    }


def _column(column: Column) -> dict[str, Any]:
    default = {} if column.default is None else {"default": column.default}
    return {"name": column.name, "type": str(column.type), "nullable": column.nullable, **default}


_SAID = ("name", "strategy", "suspended", "sql", "index_of")


def _view(catalog: Catalog, view: View, now: ViewStatus | None) -> dict[str, Any]:
    known = {} if now is None else {k: v for k, v in vars(now).items() if k not in _SAID}
    index = {} if view.index is None else {"kind": "index", "index_of": indexed(catalog, view).name}
    return {
        **shape(view.table),
        **index,
        "definition": shown_query(catalog, view),
        "sql": created(catalog, view),
        "options": dict(view.options),
        "strategy": strategy_of(view).name,
        "suspended": None if view.suspended is None else view.suspended.reason,
        **known,
    }


def _about(serving: Serving, now: Status) -> dict[str, Any]:
    return {"epoch": now.epoch, "token": str(serving.db.token())}


def _server(serving: Serving) -> dict[str, Any]:
    hub, settings = serving.hub, serving.settings
    return {
        "subscribers": hub.subscribers,
        "log_bytes": serving.store.log_bytes(),
        "maintains": settings.maintain,
        "read_only": settings.read_only,
    }


def _json(found: Any) -> Reply:
    return Reply(200, dumps(found), formats.JSON)
