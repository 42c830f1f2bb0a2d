"""Answers as gzip, for clients that take them so: the same answer, in fewer bytes."""

from __future__ import annotations

import gzip
from collections.abc import Iterator

import httpx
import pytest
from tests.contract import planned
from tests.integration.server.conftest import Running, filled, started

import viewkeeper as vk
from viewkeeper.server.http.request import accepts_gzip

PAGE = "/v1/items/rows?limit=2000"
SELECT = "SELECT * FROM items ORDER BY item_id"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    place = tmp_path_factory.mktemp("packing") / "db"
    with pytest.MonkeyPatch.context() as patch:
        planned.install(patch.setattr)
        with vk.open(f"lmdb:{place}") as db:
            filled(db, 2_000)
        yield from started(f"lmdb:{place}", maintain=True)


def get(running: Running, path: str, **headers: str) -> httpx.Response:
    return running.http.get(path, headers={name.replace("_", "-"): value for name, value in headers.items()})


def raw(running: Running, path: str, **headers: str) -> bytes:
    """The bytes of an answer as they came."""
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    with running.http.stream("GET", path, headers=given) as found:
        return b"".join(found.iter_raw())


def test_pages_and_streams(running: Running) -> None:
    for media in ("application/json", "application/x-ndjson", "text/csv"):
        plain = get(running, PAGE, accept=media, accept_encoding="identity")
        packed = get(running, PAGE, accept=media, accept_encoding="gzip")
        assert "content-encoding" not in plain.headers
        assert packed.headers["content-encoding"] == "gzip"
        assert packed.content == plain.content
        assert "accept-encoding" in packed.headers["vary"]
        assert "accept-encoding" in plain.headers["vary"]
        sent = raw(running, PAGE, accept=media, accept_encoding="gzip")
        assert len(sent) == int(packed.headers["content-length"]) < len(plain.content) / 2
        assert gzip.decompress(sent) == plain.content
        answers = []
        for how in ("identity", "gzip"):
            given = {"content-type": "application/sql", "accept": media, "accept-encoding": how}
            answers.append(running.http.post("/v1/sql", content=SELECT, headers=given))
        assert [found.headers.get("content-encoding") for found in answers] == [None, "gzip"]
        assert answers[0].content == answers[1].content
    head = running.http.head(PAGE, headers={"accept-encoding": "gzip"})
    assert head.headers["content-encoding"] == "gzip"
    assert int(head.headers["content-length"]) == len(raw(running, PAGE, accept_encoding="gzip"))


def test_what_is_sent_as_it_is(running: Running) -> None:
    arrow = "application/vnd.apache.arrow.stream"
    assert "content-encoding" not in get(running, PAGE, accept=arrow, accept_encoding="gzip").headers
    for path in ("/v1/items/rows/1", "/v1/items/rows?limit=2", "/v1/nothing/rows"):
        assert "content-encoding" not in get(running, path, accept_encoding="gzip").headers, path
    with running.http.stream("GET", "/v1/totals/changes", headers={"accept-encoding": "gzip"}) as events:
        assert "content-encoding" not in events.headers
        assert next(events.iter_text()).startswith("retry:")
    for given in ("", "br", "gzip;q=0", "gzip; q=0.000, *", "*;q=0", "identity"):
        assert "content-encoding" not in get(running, PAGE, accept_encoding=given).headers, given


def test_tags_of_packed_answers(running: Running) -> None:
    plain = get(running, PAGE, accept_encoding="identity").headers["etag"]
    packed = get(running, PAGE, accept_encoding="gzip").headers["etag"]
    assert packed == f"W/{plain}"
    for tag in (plain, packed):
        assert get(running, PAGE, accept_encoding="gzip", if_none_match=tag).status_code == 304
    script = get(running, "/page/app.js", accept_encoding="gzip")
    assert script.headers["content-encoding"] == "gzip"
    assert script.content == get(running, "/page/app.js", accept_encoding="identity").content
    again = get(running, "/page/app.js", if_none_match=script.headers["etag"])
    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ("gzip", True),
        ("GZIP;q=0.1, br", True),
        ("br, *", True),
        ("x-gzip", True),
        ("*;q=1, gzip;q=0", False),
        ("gzip;q=0.0", False),
        ("deflate", False),
        (";;,,=", False),
    ],
)
def test_who_takes_gzip(given: str, taken: bool) -> None:
    assert accepts_gzip(given) is taken
