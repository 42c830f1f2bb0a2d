"""The OpenAPI document says what there is, and no request made from it, however wrong, breaks the server."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families
from tests.integration.server.conftest import Running

from viewkeeper.server.routes import all_endpoints, build_document


def test_the_document_has_every_route(shared: Running) -> None:
    described = shared.http.get("/v1/openapi.json").json()
    routes = all_endpoints(_NoPulse())  # type: ignore[arg-type]
    assert described == json.loads(json.dumps(build_document(routes)))
    found = {(method.upper(), path) for path, methods in described["paths"].items() for method in methods}
    assert found == {(e.method, e.path.replace(":path", "")) for e in routes}
    for method, path in found:
        there = path.replace("/views/{name}", "/views/totals").replace("{name}", "items").replace("{key}", "1")
        answer = shared.http.request(method, there) if "changes" not in path and "events" not in path else None
        assert answer is None or answer.status_code not in (404, 405) or answer.json()["code"] == "VK105", path
    for path in ("/v1", "/v2/tables", "/v1/items/nothing", "/v1/items/rows/1/2/3"):
        assert 400 <= shared.http.get(path).status_code < 500, path


class _NoPulse:
    async def watch(self, serving: Any, asked: Any) -> Any:
        """The state of everything, and how it changes."""


TEXTS = st.text(max_size=30) | st.sampled_from(
    ["items", "totals", "1", "..", "~null", "", "%", "'; DROP TABLE items;--"]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
KINDS = st.sampled_from(
    [
        "application/json",
        "application/x-ndjson",
        "application/vnd.apache.arrow.stream",
        "application/sql",
        "text/plain",
        "",
    ]
)
ROWS = st.dictionaries(st.sampled_from(["item_id", "category", "price", "x"]), VALUES, max_size=4)


@st.composite
def requests(draw: Any) -> tuple[str, str, bytes, dict[str, str]]:
    """A request that is nearly right, or not at all."""
    name = draw(st.sampled_from(["items", "totals", "kinds", "nothing"]) | TEXTS)
    tail = draw(st.sampled_from(["rows", "rows/", "rows/1", "", "plan", "nothing"]))
    path = "/v1/" + draw(st.sampled_from([f"{quote(name, safe='')}/{tail}", f"views/{quote(name, safe='')}", "sql"]))
    if tail == "rows/":
        path += quote(draw(TEXTS), safe="")
    known = ["after", "level", "limit", "cursor", "prefix", "start", "stop", "numbers", "since", "timeout", "x"]
    pairs = draw(st.lists(st.tuples(st.sampled_from(known), TEXTS), max_size=3))
    query = "&".join(f"{key}={quote(value)}" for key, value in pairs)
    body = draw(
        st.binary(max_size=60) | (VALUES | ROWS | st.lists(ROWS, max_size=3)).map(lambda v: json.dumps(v).encode())
    )
    headers = {"content-type": draw(KINDS)}
    if draw(st.booleans()):
        headers["accept"] = draw(st.sampled_from(["text/csv", "image/png", "*/*;q=x", ",", "application/json;q=0"]))
    if draw(st.booleans()):
        headers["if-none-match"] = draw(st.sampled_from(["*", "W/", '"', "x"]))
    method = draw(st.sampled_from(["GET", "POST", "PATCH", "DELETE", "PUT", "HEAD"]))
    return method, f"{path}?{query}" if query else path, body, headers


def _is_fine(running: Running, method: str, path: str, body: bytes, headers: dict[str, str]) -> None:
    before = running.db._store.head()
    found = running.http.request(method, path, content=body, headers=headers)
    assert found.status_code < 500, (method, path, body, headers, found.text)
    if found.status_code >= 400 and method != "HEAD":
        assert found.headers["content-type"] == "application/problem+json"
        assert found.json()["code"].startswith("VK")
    if found.status_code >= 400:
        table = running.db._catalog().table("items")
        written = list(running.db._store.entries(table, ["item_id"], before, running.db._store.head()))
        assert written == [], (method, path, body)


@settings(max_examples=100, suppress_health_check=list(HealthCheck))
@given(requests())
def test_malformed_requests(shared: Running, request_: tuple[str, str, bytes, dict[str, str]]) -> None:
    _is_fine(shared, *request_)


@pytest.mark.deep
@settings(max_examples=1000, suppress_health_check=list(HealthCheck))
@given(requests())
def test_a_thousand_malformed_requests(shared: Running, request_: tuple[str, str, bytes, dict[str, str]]) -> None:
    _is_fine(shared, *request_)


def _from_the_document(shared: Running, examples: int) -> int:
    """Requests that schemathesis makes from the document, good ones and bad ones, checked against it."""
    import schemathesis
    from schemathesis.generation import GenerationMode

    described = shared.http.get("/v1/openapi.json").json()
    for path in ("/v1/events", "/v1/{name}/changes"):  # they do not end
        del described["paths"][path]
    schema = schemathesis.openapi.from_dict(described)
    checked = 0
    for operation in schema.get_all_operations():
        found = operation.ok()
        wrong = any(True for _ in found.iter_parameters()) or len(found.body) > 0
        mode = GenerationMode.NEGATIVE if wrong else GenerationMode.POSITIVE
        strategy = found.as_strategy(generation_mode=mode)

        @settings(max_examples=examples, suppress_health_check=list(HealthCheck), deadline=None, database=None)
        @given(strategy)
        def one(case: Any) -> None:
            nonlocal checked
            answer = case.call(base_url=shared.address, timeout=30)
            assert answer.status_code < 500, (case.method, case.path, answer.text)
            if answer.status_code >= 400 and case.method != "HEAD":
                assert answer.headers["content-type"] == ["application/problem+json"]
            checked += 1

        one()
    return checked


def test_requests_made_from_the_document(shared: Running) -> None:
    assert _from_the_document(shared, 2) >= 30


@pytest.mark.deep
def test_a_thousand_requests_made_from_the_document(shared: Running) -> None:
    assert _from_the_document(shared, 90) >= 1000


def test_metrics_are_prometheus_text(served: Running) -> None:
    served.http.get("/v1/items/rows/1")
    served.http.get("/v1/items/rows/x")
    token = served.put({"item_id": 1, "category": "c1", "price": 5})
    served.http.get("/v1/totals/rows", params={"after": token})
    served.db._maintainer.refresh()

    def found() -> dict[str, Any]:
        text = served.http.get("/metrics").text
        return {family.name: family for family in text_string_to_metric_families(text)}

    import time

    deadline = time.monotonic() + 60
    while not any(s.value >= 1 for s in found()["viewkeeper_batches"].samples if s.name.endswith("_total")):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    families = found()

    def value(name: str, **labels: str) -> float:
        samples = (s for family in families.values() for s in family.samples)
        return next(s.value for s in samples if s.name == name and s.labels == labels)

    assert value("viewkeeper_reads_total", kind="get") >= 1
    assert value("viewkeeper_reads_total", kind="scan") == 1
    assert value("viewkeeper_writes_total", kind="put") == 1
    assert value("viewkeeper_errors_total", code="VK201") == 1
    assert value("viewkeeper_view_lag_changes", view="totals") == 0
    assert value("viewkeeper_view_rows", view="totals") == 4
    assert value("viewkeeper_log_bytes") > 0
    assert value("viewkeeper_state_bytes") > 0
    assert value("viewkeeper_batch_stage_seconds_count", stage="rounds") >= 1
    assert value("viewkeeper_merges_total") >= 0
    assert value("viewkeeper_maintained") == 1
    for name, family in families.items():
        assert name.startswith("viewkeeper_")
        assert family.documentation
        if family.type == "counter":
            assert all(s.name.endswith(("_total", "_created")) for s in family.samples)
