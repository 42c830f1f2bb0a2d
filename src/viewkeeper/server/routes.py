"""Every endpoint: path, role, parameters. The router and the OpenAPI document are generated from this list."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from viewkeeper import __version__
from viewkeeper.server import errors, metrics
from viewkeeper.server.context import ServerContext
from viewkeeper.server.endpoints import catalog, changes, rows, selection, sql, write
from viewkeeper.server.http import formats
from viewkeeper.server.http.request import Reply, Request
from viewkeeper.server.status_feed import StatusFeed

EndpointFunction = Callable[[ServerContext, Request], Awaitable[Reply]]


@dataclass(frozen=True)
class Endpoint:
    """One endpoint. `role` None: public. `answer`, `body`: names of schemas in the OpenAPI document."""

    method: str
    path: str
    run: EndpointFunction
    role: str | None
    parameters: tuple[str, ...] = ()
    media: tuple[str, ...] = (formats.JSON,)
    answer: str = "Object"
    body: str | None = None
    bodies: tuple[str, ...] = ()

    @property
    def summary(self) -> str:
        return (self.run.__doc__ or "").strip().splitlines()[0]


_FRESHNESS_PARAMETERS = ("after", "level", "timeout", "numbers")
_RANGE_PARAMETERS = ("prefix", "start", "stop", "limit", "cursor")


def all_endpoints(status_feed: StatusFeed) -> tuple[Endpoint, ...]:
    """All endpoints, in the order in which paths are matched."""
    arrow_in, json_in = write.BODY_MEDIA_TYPES, (formats.JSON,)
    row = "/v1/{name}/rows/{key:path}"
    streams = (formats.EVENTS, formats.ARROW)
    media_types = (*formats.ROWS, formats.EVENTS)
    return (
        Endpoint("GET", "/healthz", catalog.check_health, None),
        Endpoint("GET", "/readyz", catalog.check_readiness, None),
        Endpoint("GET", "/metrics", catalog.get_metrics, "reader", media=(metrics.MEDIA,), answer="Text"),
        Endpoint("GET", "/v1/openapi.json", catalog.get_openapi, None),
        Endpoint("GET", "/v1/status", catalog.get_status, "reader"),
        Endpoint("GET", "/v1/events", status_feed.watch, "reader", media=(formats.EVENTS,), answer="Text"),
        Endpoint("GET", "/v1/tables", catalog.list_tables, "reader", answer="Tables"),
        Endpoint("GET", "/v1/views", catalog.list_views, "reader", answer="Views"),
        Endpoint("GET", "/v1/views/{name}", catalog.get_view, "reader", answer="View"),
        Endpoint("GET", "/v1/views/{name}/plan", catalog.get_plan, "reader"),
        Endpoint(
            "POST",
            "/v1/sql",
            sql.run_statement,
            "reader",
            ("numbers",),
            media_types,
            "Object",
            "Statement",
            (formats.JSON, sql.SQL),
        ),
        Endpoint("GET", "/v1/{name}", catalog.get_table, "reader", answer="Table"),
        Endpoint(
            "GET",
            "/v1/{name}/rows",
            rows.get_page,
            "reader",
            (*_FRESHNESS_PARAMETERS, *_RANGE_PARAMETERS, *selection.PARAMETERS),
            formats.ROWS,
            "Page",
        ),
        Endpoint("POST", "/v1/{name}/rows", write.put, "writer", (), json_in, "Written", "Rows", arrow_in),
        Endpoint("PATCH", "/v1/{name}/rows", write.update, "writer", (), json_in, "Written", "Rows", arrow_in),
        Endpoint("DELETE", "/v1/{name}/rows", write.delete, "writer", (), json_in, "Written", "Keys", arrow_in),
        Endpoint("GET", row, rows.get_row, "reader", _FRESHNESS_PARAMETERS, formats.ROWS, "Row"),
        Endpoint("PATCH", row, write.update_row, "writer", (), json_in, "Written", "Row", json_in),
        Endpoint("DELETE", row, write.delete_row, "writer", (), json_in, "Written"),
        Endpoint(
            "GET", "/v1/{name}/changes", changes.subscribe, "reader", ("since", "level", "numbers"), streams, "Text"
        ),
    )


# The OpenAPI document, generated from the endpoints.


_TEXT = {"type": "string"}
_PARAMETERS: dict[str, tuple[dict[str, Any], str]] = {
    "after": (_TEXT, "A token: the state must have every write up to it. May not be older."),
    "level": (
        {"type": "string", "enum": ["any", "latest", "stale"]},
        "latest: every write that was finished before. stale: old rows of a suspended view, which else is refused.",
    ),
    "timeout": ({"type": "number", "minimum": 0, "maximum": 30}, "Seconds to wait for after= and level=."),
    "numbers": ({"type": "string", "enum": ["exact", "native"]}, "native: BIGINT and DECIMAL as JSON numbers."),
    "prefix": (
        {"type": "array", "items": _TEXT},
        "Values of the key's first columns, each as a parameter of its own.",
    ),
    "start": ({"type": "array", "items": _TEXT}, "The first key, included."),
    "stop": ({"type": "array", "items": _TEXT}, "The key behind the last one."),
    "limit": ({"type": "integer", "minimum": 1, "maximum": 10_000}, "Rows of a page."),
    "cursor": (_TEXT, "From the page before: the next page of the same state."),
    "where": (_TEXT, "A condition, as in SQL, or a JSON object of columns and their values (an array: one of them)."),
    "columns": ({"type": "array", "items": _TEXT}, "Only these columns, each as a parameter of its own."),
    "order_by": ({"type": "array", "items": _TEXT}, "By these columns, each maybe with DESC, instead of by key."),
    "since": (_TEXT, "A token or a position: only what follows. now: only what comes. Last-Event-ID goes before it."),
}
_COLUMN = {
    "type": "object",
    "required": ["name", "type", "nullable"],
    "properties": {"name": _TEXT, "type": _TEXT, "nullable": {"type": "boolean"}, "default": _TEXT},
}
_KEY_PART = {
    "type": "object",
    "required": ["column", "descending", "nulls_last"],
    "properties": {"column": _TEXT, "descending": {"type": "boolean"}, "nulls_last": {"type": "boolean"}},
}
_TABLE: dict[str, Any] = {
    "type": "object",
    "required": ["name", "kind", "columns", "key", "unique", "stored"],
    "properties": {
        "name": _TEXT,
        "kind": {"type": "string", "enum": ["table", "view", "index"]},
        "columns": {"type": "array", "items": _COLUMN},
        "key": {"type": "array", "items": _KEY_PART},
        "unique": {"type": "boolean"},
        "sql": _TEXT,
        "stored": {"type": "boolean", "description": "Whether rows can be asked for by key; so can a lazy view's."},
    },
}
_NUMBER_OR_NULL = {"type": ["number", "null"]}
_VIEW: dict[str, Any] = {
    "type": "object",
    "required": [*_TABLE["required"], "definition", "sql", "strategy", "suspended"],
    "properties": {
        **_TABLE["properties"],
        "definition": _TEXT,
        "strategy": _TEXT,
        "suspended": {"type": ["string", "null"]},
        "rows": _NUMBER_OR_NULL,
        "epoch": _NUMBER_OR_NULL,
        "lag_changes": _NUMBER_OR_NULL,
        "lag_seconds": _NUMBER_OR_NULL,
        "state_bytes": _NUMBER_OR_NULL,
    },
}
_SCHEMAS: dict[str, Any] = {
    "Object": {"type": "object"},
    "Text": _TEXT,
    "Row": {"type": "object", "additionalProperties": True},
    "Table": _TABLE,
    "View": _VIEW,
    "Tables": {"type": "object", "required": ["tables"], "properties": {"tables": {"type": "array", "items": _TABLE}}},
    "Views": {"type": "object", "required": ["views"], "properties": {"views": {"type": "array", "items": _VIEW}}},
    "Page": {
        "type": "object",
        "required": ["rows", "next", "epoch", "token"],
        "properties": {
            "rows": {"type": "array", "items": {"type": "object"}},
            "next": {"type": ["string", "null"]},
            "epoch": {"type": "integer"},
            "token": _TEXT,
            "suspended": {"type": "object", "description": "Of a suspended view: since, epoch, position, reason."},
        },
    },
    "Rows": {"oneOf": [{"type": "object"}, {"type": "array", "items": {"type": "object"}}]},
    "Keys": {"type": "array", "items": {}},
    "Written": {
        "type": "object",
        "required": ["token", "rows", "atomic"],
        "properties": {"token": _TEXT, "rows": {"type": "integer"}, "atomic": {"type": "boolean"}},
    },
    "Statement": {
        "type": "object",
        "required": ["sql"],
        "properties": {
            "sql": _TEXT,
            "parameters": {"type": "object", "description": "Values for the statement's open names (:name)."},
            "engine": {"type": "string", "enum": ["auto", "embedded", "spark"]},
            "stale": {"type": "boolean", "description": "Also read the old rows of suspended views."},
        },
        "additionalProperties": False,
    },
    "Problem": {
        "type": "object",
        "required": ["type", "title", "status", "code", "detail"],
        "properties": {
            "type": _TEXT,
            "title": _TEXT,
            "status": {"type": "integer"},
            "code": {"type": "string", "pattern": "^VK[0-9]{3}$"},
            "detail": _TEXT,
            "hint": _TEXT,
        },
    },
}


def build_document(endpoints: tuple[Endpoint, ...]) -> dict[str, Any]:
    """The whole document."""
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        paths.setdefault(endpoint.path.replace(":path", ""), {})[endpoint.method.lower()] = _operation(endpoint)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Viewkeeper",
            "version": __version__,
            "description": "Tables and materialized views over HTTP. Errors are RFC 9457 problems with stable codes.",
        },
        "paths": paths,
        "components": {
            "schemas": _SCHEMAS,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(endpoint: Endpoint) -> dict[str, Any]:
    path_parameters = [part.strip("{}").partition(":")[0] for part in endpoint.path.split("/") if part.startswith("{")]
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in path_parameters
    ]
    for name in endpoint.parameters:
        schema, text = _PARAMETERS[name]
        parameters.append({"name": name, "in": "query", "required": False, "schema": schema, "description": text})
    responses: dict[str, Any] = {"200": {"description": endpoint.summary, "content": _content(endpoint)}}
    if endpoint.role is not None and endpoint.method == "GET" and formats.ARROW in endpoint.media:
        responses["304"] = {"description": "Nothing has changed since the ETag in If-None-Match."}
    problem = {"content": {errors.MEDIA: {"schema": {"$ref": "#/components/schemas/Problem"}}}}
    for status in errors.STATUSES:
        responses[str(status)] = {"description": "A problem.", **problem}
    operation: dict[str, Any] = {
        "operationId": f"{endpoint.method.lower()}{endpoint.path.replace(':path', '')}",
        "summary": endpoint.summary,
        "parameters": parameters,
        "responses": responses,
        "security": [] if endpoint.role is None else [{"token": []}],
        "x-role": endpoint.role,
    }
    if endpoint.body is not None:
        schema = {"$ref": f"#/components/schemas/{endpoint.body}"}
        content = {m: {"schema": schema if m == formats.JSON else _TEXT} for m in endpoint.bodies}
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def _content(endpoint: Endpoint) -> dict[str, Any]:
    schema = {"$ref": f"#/components/schemas/{endpoint.answer}"}
    return {media: {"schema": schema if media == formats.JSON else _TEXT} for media in endpoint.media}
