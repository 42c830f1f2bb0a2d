"""A suspended view looks suspended on every way to read it; what it shows after RESUME, DROP and CREATE OR REPLACE.

The view `totals` has one state per category. It is suspended at a batch that had six items, and three come after it.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from queue import Queue
from typing import Any

import httpx
import pyarrow as pa
import pytest
from tests.contract import planned
from tests.contract.planned import TOTALS, item

import viewkeeper as vk
from viewkeeper.cli import main
from viewkeeper.errors import Suspended, UnknownName, ViewkeeperError
from viewkeeper.read.suspension import SUSPENDED_METADATA
from viewkeeper.server.context import Settings
from viewkeeper.server.process import serve

OLD = [{"category": c, "n": 2, "total": 10} for c in "abc"]
NEW = [{"category": c, "n": 3, "total": 15} for c in "abc"]


@dataclass
class Place:
    """A database that is open here, and served: all ways lead to it."""

    url: str
    db: Any
    address: str
    client: Any
    http: httpx.Client
    capsys: pytest.CaptureFixture[str]

    def cli(self, *words: str, db: str = "") -> list[dict[str, Any]]:
        with pytest.raises(SystemExit) as ended:
            main([*words, "--output", "json", "--db", db or self.url])
        out, err = self.capsys.readouterr()
        if ended.value.code:
            raise _said(err)
        return [json.loads(line) for line in out.splitlines() if line.strip()]

    def asked(self, path: str, **params: Any) -> Any:
        answer = self.http.get(path, params=params)
        if answer.status_code >= 400:
            found = answer.json()
            assert answer.status_code == {"VK605": 409, "VK101": 404}[found["code"]]
            raise _error(found["code"], found["detail"])
        return answer


def _said(line: str) -> ViewkeeperError:
    code = line.split("[")[1].split("]")[0] if "[" in line else ""
    return _error(code, line)


def _error(code: str, text: str) -> ViewkeeperError:
    return {"VK605": Suspended, "VK101": UnknownName}.get(code, ViewkeeperError)(text)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Place]:
    planned.install(monkeypatch.setattr)
    url = f"lmdb:{tmp_path / 'db'}"
    with vk.open(url) as db:
        planned.tables(db)
        db.put("items", [item(n) for n in range(6)])
        db.sql(f"CREATE MATERIALIZED VIEW totals AS {TOTALS}")
        told: Queue[Any] = Queue()
        server = vk.open(url)
        how = {"on_ready": lambda address, stop: told.put((address, stop))}
        thread = threading.Thread(target=serve, args=(server, Settings(port=0)), kwargs=how, daemon=True)
        thread.start()
        address, stop = told.get(timeout=30)
        try:
            with vk.connect(address) as client, httpx.Client(base_url=address, timeout=30) as http:
                yield Place(url, db, address, client, http, capsys)
        finally:
            stop()
            thread.join(30)
            server.close()


def suspend(place: Place) -> None:
    place.db.sql("ALTER MATERIALIZED VIEW totals SUSPEND")
    place.db.put("items", [item(n) for n in range(6, 9)])
    place.db.refresh()


def _rows(deltas: Iterator[Any]) -> list[dict[str, Any]]:
    [delta] = islice(deltas, 1)
    assert delta.kind == "rows"
    found: list[dict[str, Any]] = delta.rows.drop_columns(["_w"]).to_pylist()
    return found


def _level(stale: bool) -> Any:
    return vk.STALE if stale else vk.ANY


def _snapshot(place: Place, stale: bool, read: Callable[[Any], Any]) -> Any:
    with place.db.snapshot(mixed=stale) as snapshot:
        return read(snapshot)


def _spark_rows(place: Place, stale: bool) -> list[dict[str, Any]]:
    source, schema = _source(place, stale)
    reader = source.reader(schema)
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    found: list[dict[str, Any]] = pa.Table.from_batches(batches).to_pylist()
    return found


def _spark_changes(place: Place, stale: bool) -> list[dict[str, Any]]:
    source, schema = _source(place, stale, changes="true")
    reader = source.streamReader(schema)
    start = reader.initialOffset()
    end = reader.latestOffset(start, None)
    batches = [batch for part in reader.partitions(start, end) for batch in reader.read(part)]
    found: list[dict[str, Any]] = pa.Table.from_batches(batches).drop_columns(["_w"]).to_pylist()
    return found


def _source(place: Place, stale: bool, **more: str) -> tuple[Any, Any]:
    from pyspark.sql.types import LongType, StringType, StructField, StructType

    from viewkeeper.spark.source import ViewkeeperSource

    names = {"category": StringType(), "n": LongType(), "total": LongType()}
    names |= {"_w": LongType()} if more else {}
    schema = StructType([StructField(name, kind) for name, kind in names.items()])
    return ViewkeeperSource({"db": place.url, "table": "totals", "stale": str(stale), **more}), schema


Way = Callable[[Place, bool], list[dict[str, Any]]]
QUERY = "SELECT category, n, total FROM totals ORDER BY category"
JOINED = "SELECT t.category, t.n, t.total FROM totals t JOIN items i ON i.item_id = t.n ORDER BY t.category"
WAYS: dict[str, Way] = {
    "get": lambda p, stale: [p.db.get("totals", c, _level(stale)) for c in "abc"],
    "scan": lambda p, stale: list(p.db.scan("totals", level=_level(stale))),
    "scan some": lambda p, stale: list(p.db.scan("totals", level=_level(stale), where="n > 0")),
    "read": lambda p, stale: p.db.read("totals", _level(stale)).to_pylist(),
    "read some": lambda p, stale: p.db.read("totals", _level(stale), order_by="category").to_pylist(),
    "handle": lambda p, stale: p.db.table("totals").read(level=_level(stale)).to_pylist(),
    "sql": lambda p, stale: p.db.sql(QUERY, stale=stale).rows,
    "sql of two": lambda p, stale: p.db.sql(JOINED, stale=stale).rows,
    "snapshot get": lambda p, stale: _snapshot(p, stale, lambda s: [s.get("totals", c) for c in "abc"]),
    "snapshot scan": lambda p, stale: _snapshot(p, stale, lambda s: list(s.scan("totals"))),
    "snapshot read": lambda p, stale: _snapshot(p, stale, lambda s: s.read("totals").to_pylist()),
    "subscribe": lambda p, stale: _rows(p.db.subscribe("totals", timeout=0, stale=stale)),
    "client get": lambda p, stale: [p.client.get("totals", c, _level(stale)) for c in "abc"],
    "client scan": lambda p, stale: list(p.client.scan("totals", level=_level(stale))),
    "client read": lambda p, stale: p.client.read("totals", _level(stale)).to_pylist(),
    "client sql": lambda p, stale: p.client.sql(QUERY, stale=stale).rows,
    "client subscribe": lambda p, stale: _rows(p.client.subscribe("totals", stale=stale)),
    "http row": lambda p, stale: [
        p.asked(f"/v1/totals/rows/{c}", numbers="native", **_stale(stale)).json() for c in "abc"
    ],
    "http row, plainly": lambda p, stale: [p.asked(f"/v1/totals/rows/{c}", **_stale(stale)).json() for c in "abc"],
    "http page": lambda p, stale: p.asked("/v1/totals/rows", numbers="native", **_stale(stale)).json()["rows"],
    "vk get": lambda p, stale: [row for c in "abc" for row in p.cli("get", "totals", c, *_flag(stale))],
    "vk scan": lambda p, stale: p.cli("scan", "totals", *_flag(stale)),
    "vk sql": lambda p, stale: p.cli("sql", QUERY, *_flag(stale)),
    "vk watch": lambda p, stale: [
        line["after"] for line in p.cli("watch", "totals", "--timeout", "0", *_flag(stale)) if line["kind"] == "row"
    ],
    "vk scan of a server": lambda p, stale: p.cli("scan", "totals", *_flag(stale), db=p.address),
    "vk sql of a server": lambda p, stale: p.cli("sql", QUERY, *_flag(stale), db=p.address),
    "spark.read": _spark_rows,
    "spark.readStream": _spark_changes,
}


def _stale(stale: bool) -> dict[str, str]:
    return {"level": "stale"} if stale else {}


def _flag(stale: bool) -> tuple[str, ...]:
    return ("--stale",) if stale else ()


def read(place: Place, way: str, stale: bool = False) -> list[dict[str, Any]]:
    return [{k: v if k == "category" else int(v) for k, v in row.items()} for row in WAYS[way](place, stale)]


def test_every_way_refuses_a_suspended_view_or_marks_its_old_rows(place: Place) -> None:
    for way in WAYS:
        assert read(place, way) == OLD, way
    suspend(place)
    for way in WAYS:
        with pytest.raises(Suspended, match=r"suspended since \d{4}-.*suspended by hand"):
            read(place, way)
        assert read(place, way, stale=True) == OLD, way
    place.db.sql("ALTER MATERIALIZED VIEW totals RESUME")
    for way in WAYS:
        assert read(place, way) == NEW, way
        assert read(place, way, stale=True) == NEW, way
    place.db.sql(f"CREATE OR REPLACE MATERIALIZED VIEW totals AS {TOTALS}")
    for way in WAYS:
        assert read(place, way) == NEW, way
    place.db.sql("DROP MATERIALIZED VIEW totals")
    for way in WAYS:
        for stale in (False, True):
            with pytest.raises(UnknownName):
                read(place, way, stale)


def test_levels_and_tokens_beyond_the_suspension_are_refused(place: Place) -> None:
    before = place.db.token("totals")
    suspend(place)
    token = place.db.put("items", item(9))
    for level, after in ((vk.LATEST, None), (vk.STALE, token), (vk.ANY, before)):
        with pytest.raises(Suspended):
            place.db.read("totals", level, after=after)
        with pytest.raises(Suspended):
            place.client.read("totals", level, after=after)
    assert place.db.read("totals", vk.STALE, after=before).to_pylist() == OLD


def test_an_answer_carries_the_position_that_its_rows_stand_for(place: Place) -> None:
    at = place.db.token("totals")
    epoch = place.db.status().epoch
    suspend(place)
    assert place.db.token("totals") == place.client.token("totals") == at
    assert place.db.token().position > at.position
    page = place.asked("/v1/totals/rows", level="stale")
    assert (page.json()["token"], page.json()["epoch"]) == (str(at), epoch)
    assert (page.headers["viewkeeper-token"], page.headers["viewkeeper-epoch"]) == (str(at), str(epoch))
    since = page.headers["viewkeeper-suspended"]
    about = {"since": since, "epoch": epoch, "position": at.position, "reason": "suspended by hand"}
    assert page.json()["suspended"] == about
    row = place.asked("/v1/totals/rows/a", level="stale")
    assert (row.headers["viewkeeper-token"], row.headers["viewkeeper-suspended"]) == (str(at), since)
    for rows in (
        place.db.read("totals", vk.STALE),
        place.client.read("totals", vk.STALE),
        place.db.sql(QUERY, stale=True).to_arrow(),
        place.client.sql(QUERY, stale=True).to_arrow(),
        place.db.sql(JOINED, stale=True).to_arrow(),
    ):
        assert json.loads(rows.schema.metadata[SUSPENDED_METADATA]) == {"totals": about}
    answer = place.http.post("/v1/sql", json={"sql": QUERY, "stale": True}, headers={"accept": "application/json"})
    assert answer.json()["suspended"] == {"totals": about}
    with place.db.snapshot(mixed=True) as snapshot:
        assert snapshot.span("totals") == (at.position, at.position)
        assert SUSPENDED_METADATA in snapshot.read("totals").schema.metadata
    with pytest.raises(SystemExit):
        main(["scan", "totals", "--stale", "--db", place.url])
    assert "totals is suspended since" in place.capsys.readouterr().err


def test_pages_of_one_state_go_on_when_the_view_is_suspended_between_them(place: Place) -> None:
    first = place.asked("/v1/totals/rows", limit=2, numbers="native").json()
    suspend(place)
    second = place.asked("/v1/totals/rows", limit=2, numbers="native", cursor=first["next"]).json()
    assert first["rows"] + second["rows"] == OLD


class Followed:
    """Deltas of a subscription, taken by a thread as they come."""

    def __init__(self, deltas: Iterator[Any]) -> None:
        self._found: Queue[Any] = Queue()
        self._deltas = deltas
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        try:
            for delta in self._deltas:
                self._found.put(delta)
        except Exception as error:
            self._found.put(error)

    def next(self) -> Any:
        return self._found.get(timeout=30)


FOLLOWED: dict[str, Callable[..., Iterator[Any]]] = {
    "database": lambda p, **given: p.db.subscribe("totals", **given),
    "client": lambda p, **given: p.client.subscribe("totals", **given),
}


@pytest.mark.parametrize("by", FOLLOWED)
def test_a_subscription_hears_of_the_suspension_and_goes_on_after_it(place: Place, by: str) -> None:
    followed = Followed(FOLLOWED[by](place))
    rows = followed.next()
    assert rows.kind == "rows"
    place.db.sql("ALTER MATERIALIZED VIEW totals SUSPEND")
    told = followed.next()
    assert (told.kind, told.rows.num_rows) == ("suspended", 0)
    assert told.suspended.reason == "suspended by hand"
    place.db.put("items", [item(n) for n in range(6, 9)])
    place.db.refresh()
    late = Followed(FOLLOWED[by](place, since=told.token))  # a client that comes back is told too
    assert late.next().kind == "suspended"
    old = Followed(FOLLOWED[by](place, stale=True))
    assert [old.next().kind, old.next().kind] == ["rows", "suspended"]
    place.db.sql("ALTER MATERIALIZED VIEW totals RESUME")
    for one in (followed, late, old):
        changes = one.next()
        assert changes.kind == "changes"
        assert [(c.before, c.after) for c in changes.changes()] == list(zip(OLD, NEW, strict=True))
    place.db.sql("DROP MATERIALIZED VIEW totals")
    assert isinstance(followed.next(), UnknownName)


@pytest.mark.parametrize("by", FOLLOWED)
def test_a_subscription_to_a_view_that_is_not_stored_is_reset_after_it(place: Place, by: str) -> None:
    place.db.sql("DROP MATERIALIZED VIEW totals")
    place.db.sql(f"CREATE MATERIALIZED VIEW totals WITH (store = none) AS {TOTALS}")
    followed = Followed(FOLLOWED[by](place))
    assert followed.next().kind == "rows"
    suspend(place)
    assert followed.next().kind == "suspended"
    with pytest.raises(Suspended, match="not stored"):
        place.db.read("totals", vk.STALE)
    place.db.sql("ALTER MATERIALIZED VIEW totals RESUME")
    assert followed.next().kind == "reset"
    rows = followed.next()
    assert rows.kind == "rows"
    assert sorted(rows.rows.drop_columns(["_w"]).to_pylist(), key=lambda r: r["category"]) == NEW
    place.db.put("items", item(9))
    place.db.refresh()
    assert followed.next().kind == "changes"


def test_events_of_the_server_name_the_reason(place: Place) -> None:
    with place.http.stream("GET", "/v1/totals/changes", params={"since": "now"}) as stream:
        lines = stream.iter_lines()
        next(lines)
        place.db.sql("ALTER MATERIALIZED VIEW totals SUSPEND")
        found = next(line for line in lines if line.startswith("event: ") and "progress" not in line)
        assert found == "event: suspended"
        data = next(line for line in lines if line.startswith("data: "))
        assert json.loads(data[6:])["reason"] == "suspended by hand"


@pytest.mark.parametrize("how", ["count", "list"])
def test_ready_says_how_far_behind_suspended_views_are(place: Place, how: str) -> None:
    suspend(place)
    told: Queue[Any] = Queue()
    server = vk.open(place.url, mode="r")
    settings = Settings(port=0, max_lag=0.0, suspended=how)
    ready = {"on_ready": lambda address, stop: told.put((address, stop))}
    thread = threading.Thread(target=serve, args=(server, settings), kwargs=ready, daemon=True)
    thread.start()
    address, stop = told.get(timeout=30)
    try:
        deadline = time.monotonic() + 30
        found = httpx.get(f"{address}/readyz")
        while how == "count" and found.status_code == 200 and time.monotonic() < deadline:
            found = httpx.get(f"{address}/readyz")  # a write of this moment is no time old
        if how == "count":
            assert found.status_code == 503
            assert "totals (suspended)" in found.json()["detail"]
        else:
            assert found.json()["status"] == "ready"
            assert list(found.json()["suspended"]) == ["totals"]
    finally:
        stop()
        thread.join(30)
        with suppress(ViewkeeperError):
            server.close()


def test_a_reader_that_works_a_view_out_by_itself_refuses_it_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process maintains: LATEST of a view of one table is its batch and what waits in the log."""
    planned.install(monkeypatch.setattr)
    url = f"lmdb:{tmp_path / 'db'}"
    with vk.open(url) as db:
        planned.fill(db, 6, "totals")
    with vk.open(url) as writer:
        writer.put("items", item(6))
    with vk.open(url, mode="r") as reader:
        assert reader.get("totals", "a", vk.LATEST) == NEW[0]
        with vk.open(url) as writer:
            writer.sql("ALTER MATERIALIZED VIEW totals SUSPEND")
        for level in (vk.LATEST, vk.ANY):
            for read in (reader.read, reader.scan, lambda name, level: reader.get(name, "a", level)):
                with pytest.raises(Suspended):
                    read("totals", level=level)
        assert reader.read("totals", vk.STALE).to_pylist() == OLD
