"""Endpoints for the catalog: tables, views, plans; and status, health, metrics."""

from __future__ import annotations

import time
from typing import Any

from viewkeeper.errors import Timeout
from viewkeeper.explain.diagram import diagram_with_operators
from viewkeeper.model.catalog.catalog import Catalog, View
from viewkeeper.model.catalog.strategies import strategy_of
from viewkeeper.model.schema import Column, Table
from viewkeeper.read.status import Status, ViewStatus, database_status
from viewkeeper.read.suspension import suspension_summary
from viewkeeper.server import metrics
from viewkeeper.server.context import ServerContext
from viewkeeper.server.http import formats
from viewkeeper.server.http.json_values import encode_json
from viewkeeper.server.http.request import Reply, Request
from viewkeeper.syntax.show_create import create_table_sql, indexed_table, show_create
from viewkeeper.syntax.view_text import display_query


async def list_tables(context: ServerContext, request: Request) -> Reply:
    """Every table."""
    status = await read_status(context)
    rows = {table.name: table for table in status.tables}
    found = []
    for table in context.store.catalog().user_tables:
        table_status = rows.get(table.name)
        counts = (
            {"rows": table_status.rows, "rejected": table_status.rejected}
            if table_status is not None
            else {"rows": None, "rejected": 0}
        )
        found.append({**table_json(table), "sql": create_table_sql(table), **counts})
    return _json_reply({"tables": found, **_state_json(context, status)})


async def list_views(context: ServerContext, request: Request) -> Reply:
    """Every view."""
    status = await read_status(context)
    statuses = {view.name: view for view in status.views}
    catalog = context.store.catalog()
    return _json_reply(
        {
            "views": [_view_json(catalog, v, statuses.get(v.table.name)) for v in catalog.user_views_and_indexes],
            **_state_json(context, status),
        }
    )


async def get_view(context: ServerContext, request: Request) -> Reply:
    """One view."""
    catalog = context.store.catalog()
    found = catalog.view(request.name)
    status = await read_status(context)
    view_status = next((v for v in status.views if v.name == found.table.name), None)
    token = str(context.db.token(found.table.name))  # stands for the rows that the view shows
    return _json_reply({**_state_json(context, status), **_view_json(catalog, found, view_status), "token": token})


async def get_table(context: ServerContext, request: Request) -> Reply:
    """One table or view: columns, key and definition."""
    catalog = context.store.catalog()
    found = catalog.find(request.name)
    if isinstance(found, View):
        kind = {} if found.index is None else {"kind": "index"}
        details = {"sql": show_create(catalog, found), "token": str(context.db.token(request.name))}
        suspended = {} if found.suspended is None else {"suspended": suspension_summary(found.suspended)}
        return _json_reply({**table_json(found.table), **kind, **details, **suspended})
    table = catalog.table(request.name)
    return _json_reply(
        {**table_json(table), "sql": create_table_sql(table), "token": str(context.db.token(request.name))}
    )


async def get_plan(context: ServerContext, request: Request) -> Reply:
    """A view's maintenance plan as a graph, with what its operators took in the last batches."""
    context.store.catalog().view(request.name)
    return _json_reply(await context.run_in_thread(_plan_json, context, request.name))


def _plan_json(context: ServerContext, name: str) -> dict[str, Any]:
    maintainer = context.db._maintainer
    timed = maintainer.publisher.history.operators() if maintainer is not None else None
    diagram, ids = diagram_with_operators(context.store, context.store.catalog(), name)
    boxes = []
    for box in diagram.boxes:
        timing = timed.get(ids[box.number]) if timed is not None else None
        boxes.append({**vars(box), "last": timing})
    links = [vars(link) for link in diagram.links]
    plan = context.db.explain(name)
    shared = sorted({other for box in diagram.boxes if box.rows is not None for other in box.shared})
    return {
        "view": diagram.view,
        "key": diagram.key,
        "unique": diagram.unique,
        "rounds": diagram.rounds,
        "boxes": boxes,
        "links": links,
        "shares_state_with": shared,
        "timed": timed is not None,
        "text": plan,
        "svg": plan.svg,
    }


async def get_status(context: ServerContext, request: Request) -> Reply:
    """What the database is doing."""
    return _json_reply({**(await read_status(context)).to_json(), **_server_json(context)})


async def check_health(context: ServerContext, request: Request) -> Reply:
    """Alive."""
    context.store.head()
    return _json_reply({"status": "ok"})


async def check_readiness(context: ServerContext, request: Request) -> Reply:
    """Fresh enough to serve."""
    status = await read_status(context)
    max_lag = context.settings.max_lag
    suspended = {v.name: _suspended_lag_seconds(v) for v in status.views if v.suspended is not None}
    counted = suspended if context.settings.suspended == "count" else {}
    lag = max([status.lag_seconds, *counted.values()])
    if max_lag is not None and lag > max_lag:
        late = [name for name, seconds in counted.items() if seconds > max_lag]
        names = f"{', '.join(late)} (suspended) and so the views" if late else "The views"
        raise Timeout(f"{names} are {lag:.1f} s behind; {max_lag:g} s are allowed.", hint="")
    if context.settings.maintain and status.error is not None:
        raise Timeout(f"Maintenance failed: {status.error[:200]}", hint="It is tried again.")
    return _json_reply({"status": "ready", "lag_seconds": lag, "epoch": status.epoch, "suspended": suspended})


def _suspended_lag_seconds(view: ViewStatus) -> float:
    """Seconds that a suspended view is behind: the age of the first change that it lacks, or of its suspension if the
    log does not have that change any more."""
    if view.lag_seconds is not None:
        return view.lag_seconds
    return 0.0 if view.suspended_since is None else max(0.0, time.time() - view.suspended_since)


async def get_metrics(context: ServerContext, request: Request) -> Reply:
    """Metrics for Prometheus."""
    status = await read_status(context)
    hub = context.hub
    text = await context.run_in_thread(
        context.metrics.exposition, status, context.store.log_bytes(), hub.subscribers_by_table(), hub.cut_off_count
    )
    return Reply(200, text, metrics.MEDIA)


async def get_openapi(context: ServerContext, request: Request) -> Reply:
    """This interface."""
    return Reply(200, context.openapi_json, formats.JSON)


# -- JSON shapes -------------------------------------------------------------------------------------------------------


async def read_status(context: ServerContext) -> Status:
    return await context.run_in_thread(lambda: database_status(context.store, context.store.catalog()))


def table_json(table: Table) -> dict[str, Any]:
    """What a program needs to know to read a table's rows."""
    return {
        "name": table.name,
        "kind": "view" if table.is_view else "table",
        "columns": [_column_json(c) for c in table.columns],
        "key": [{"column": k.column, "descending": k.descending, "nulls_last": k.nulls_last} for k in table.key],
        "unique": not table.is_bag,
        "stored": table.has_rows,
    }


def _column_json(column: Column) -> dict[str, Any]:
    default = {} if column.default is None else {"default": column.default}
    return {"name": column.name, "type": str(column.type), "nullable": column.nullable, **default}


_CATALOG_FIELDS = ("name", "strategy", "suspended", "sql", "index_of")


def _view_json(catalog: Catalog, view: View, status: ViewStatus | None) -> dict[str, Any]:
    fields = {} if status is None else {k: v for k, v in vars(status).items() if k not in _CATALOG_FIELDS}
    index = {} if view.index is None else {"kind": "index", "index_of": indexed_table(catalog, view).name}
    return {
        **table_json(view.table),
        **index,
        "definition": display_query(catalog, view),
        "sql": show_create(catalog, view),
        "options": dict(view.options),
        "strategy": strategy_of(view).name,
        "suspended": None if view.suspended is None else view.suspended.reason,
        **fields,
    }


def _state_json(context: ServerContext, status: Status) -> dict[str, Any]:
    return {"epoch": status.epoch, "token": str(context.db.token())}


def _server_json(context: ServerContext) -> dict[str, Any]:
    hub, settings = context.hub, context.settings
    return {
        "subscribers": hub.subscribers,
        "log_bytes": context.store.log_bytes(),
        "maintains": settings.maintain,
        "read_only": settings.read_only,
    }


def _json_reply(value: Any) -> Reply:
    return Reply(200, encode_json(value), formats.JSON)
