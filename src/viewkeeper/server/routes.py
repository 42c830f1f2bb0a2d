"""Every endpoint: its path, who may use it, its parameters. The router and the OpenAPI document are made of this."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from viewkeeper.server import asking, changes, formats, intake, looking, metrics, reading, selected, writing
from viewkeeper.server.asked import Asked, Reply
from viewkeeper.server.pulse import Pulse
from viewkeeper.server.serving import Serving

Run = Callable[[Serving, Asked], Awaitable[Reply]]


@dataclass(frozen=True)
class Endpoint:
    """`role` None: anybody. `answer`, `body`: names of schemas in the OpenAPI document."""

    method: str
    path: str
    run: Run
    role: str | None
    parameters: tuple[str, ...] = ()
    media: tuple[str, ...] = (formats.JSON,)
    answer: str = "Object"
    body: str | None = None
    bodies: tuple[str, ...] = ()

    @property
    def summary(self) -> str:
        return (self.run.__doc__ or "").strip().splitlines()[0]


_LEVELS = ("after", "level", "timeout", "numbers")
_RANGE = ("prefix", "start", "stop", "limit", "cursor")


def endpoints(pulse: Pulse) -> tuple[Endpoint, ...]:
    """In the order in which paths are tried."""
    arrow_in, json_in = intake.BODIES, (formats.JSON,)
    row = "/v1/{name}/rows/{key:path}"
    streams = (formats.EVENTS, formats.ARROW)
    answers = (*formats.ROWS, formats.EVENTS)
    return (
        Endpoint("GET", "/healthz", looking.healthy, None),
        Endpoint("GET", "/readyz", looking.ready, None),
        Endpoint("GET", "/metrics", looking.measured, "reader", media=(metrics.MEDIA,), answer="Text"),
        Endpoint("GET", "/v1/openapi.json", looking.described, None),
        Endpoint("GET", "/v1/status", looking.status, "reader"),
        Endpoint("GET", "/v1/events", pulse.watch, "reader", media=(formats.EVENTS,), answer="Text"),
        Endpoint("GET", "/v1/tables", looking.tables, "reader", answer="Tables"),
        Endpoint("GET", "/v1/views", looking.views, "reader", answer="Views"),
        Endpoint("GET", "/v1/views/{name}", looking.view, "reader", answer="View"),
        Endpoint("GET", "/v1/views/{name}/plan", looking.plan, "reader"),
        Endpoint(
            "POST",
            "/v1/sql",
            asking.statement,
            "reader",
            ("numbers",),
            answers,
            "Object",
            "Statement",
            (formats.JSON, asking.SQL),
        ),
        Endpoint("GET", "/v1/{name}", looking.table, "reader", answer="Table"),
        Endpoint(
            "GET", "/v1/{name}/rows", reading.page, "reader", (*_LEVELS, *_RANGE, *selected.NAMES), formats.ROWS, "Page"
        ),
        Endpoint("POST", "/v1/{name}/rows", writing.put, "writer", (), json_in, "Written", "Rows", arrow_in),
        Endpoint("PATCH", "/v1/{name}/rows", writing.update, "writer", (), json_in, "Written", "Rows", arrow_in),
        Endpoint("DELETE", "/v1/{name}/rows", writing.delete, "writer", (), json_in, "Written", "Keys", arrow_in),
        Endpoint("GET", row, reading.one, "reader", _LEVELS, formats.ROWS, "Row"),
        Endpoint("PATCH", row, writing.update_one, "writer", (), json_in, "Written", "Row", json_in),
        Endpoint("DELETE", row, writing.delete_one, "writer", (), json_in, "Written"),
        Endpoint(
            "GET", "/v1/{name}/changes", changes.subscribe, "reader", ("since", "level", "numbers"), streams, "Text"
        ),
    )
