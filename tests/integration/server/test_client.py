"""Clients: the same calls as on an open database, with the same answers and the same errors."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pexpect
import pyarrow as pa
import pytest
from tests.contract import planned
from tests.integration.server.conftest import Running

import viewkeeper as vk
from viewkeeper.cli import main
from viewkeeper.cli.shell import NameCompleter
from viewkeeper.errors import (
    BadStatement,
    BadValue,
    RowAbsent,
    StoreError,
    Timeout,
    Unauthorized,
    UnknownName,
    Unreachable,
)
from viewkeeper.server.auth import TokenFile

WIDE = """CREATE TABLE wide (k STRING, n INT, big BIGINT, price DECIMAL(20,4), raw BINARY, at TIMESTAMP,
          PRIMARY KEY (k, n))"""


def use(db: Any) -> list[Any]:
    """A program that does not know whether its database is open here or behind a server."""
    seen: list[Any] = []
    token = db.put("items", [{"item_id": 1, "category": "c1", "price": 100}, {"item_id": 70, "category": "n"}])
    seen.append(db.get("totals", "c1", after=token))
    seen.append(db.get("totals", "nothing"))
    token = db.update("items", 70, {"price": 5})
    seen.append(db.get("items", 70))
    token = db.delete("items", [70, 71]).merge(token)
    seen.append(db.get("items", 70))
    seen.append(list(db.scan("items", start=3, stop=6)))
    seen.append(list(db.scan("items", limit=2)))
    seen.append(list(db.scan("items", prefix=4)))
    seen.append(db.read("totals", vk.LATEST))
    seen.append(db.sql("SHOW TABLES").to_pylist())
    seen.append([(t.name, t.rows) for t in db.status().tables])
    for call, error in (
        (lambda: db.get("nothing", 1), UnknownName),
        (lambda: db.get("items", (1, 2)), BadValue),
        (lambda: db.put("items", {"item_id": 1.5}), BadValue),
        (lambda: db.put("items", {"item_id": 1, "colour": "x"}), BadValue),
        (lambda: db.update("items", 999, {"price": 1}), RowAbsent),
        (lambda: db.get("items", "7"), BadValue),
        (lambda: db.get("items", 7.0), BadValue),
        (lambda: db.get("items", True), BadValue),
        (lambda: db.get("items", 2**70), BadValue),
        (lambda: db.get("totals", 7), BadValue),
        (lambda: list(db.scan("items", prefix="7")), BadValue),
        (lambda: list(db.scan("items", start=1.5)), BadValue),
        (lambda: list(db.scan("items", prefix=1, stop=2)), BadValue),
        (lambda: list(db.scan("items", limit=-1)), BadValue),
        (lambda: list(db.scan("items", where={"price": "7"})), BadValue),
        (lambda: list(db.scan("items", where={"colour": "red"})), UnknownName),
        (lambda: list(db.scan("items", where="colour = 'red'")), UnknownName),
        (lambda: list(db.scan("items", where="price = ")), BadStatement),
        (lambda: db.sql("SELCT"), vk.ViewkeeperError),
    ):
        with pytest.raises(error) as raised:
            call()
        seen.append((raised.value.code, raised.value.message, raised.value.hint))
    return seen


def test_a_program_moves_by_changing_one_line(served: Running, make_db: Callable[..., Any]) -> None:
    from tests.integration.server.conftest import filled

    with make_db("near") as near, near.maintain():
        filled(near)
        expected = use(near)
    with vk.connect(served.address) as far:
        found = use(far)
    assert found == expected


def test_a_forked_child_cannot_use_its_parents_client(served: Running) -> None:
    with vk.connect(served.address) as client:
        changes = client.subscribe("totals", timeout=60)
        next(changes)
        scan = client.scan("items")
        first = next(scan)
        parent = os.getpid()
        if not (child := os.fork()):
            code = 1
            try:
                for call in (lambda: client.get("items", 1), client.views, lambda: next(changes)):
                    with pytest.raises(StoreError, match=f"by process {parent}, of which this one is a fork"):
                        call()
                scan.close()  # type: ignore[attr-defined]
                changes.close()  # type: ignore[attr-defined]
                client.close()
                with vk.connect(served.address) as mine:
                    assert mine.get("items", first["item_id"]) == first
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        token = client.put("items", {"item_id": 1, "category": "fork", "price": 1})
        assert client.get("totals", "fork", after=token)["n"] == 1  # type: ignore[index]
        assert "fork" in next(changes).rows["category"].to_pylist()
        assert len(list(scan)) == served.db.read("items").num_rows - 1


def shown(table: Any) -> tuple[Any, ...]:
    """All that one sees of a table or view."""
    return (
        table.name,
        table.schema,
        table.key,
        table.is_view,
        table.definition,
        repr(table),
        table._repr_html_(),
        list(table.scan(limit=2)),
    )


def test_an_index_of_a_server(start: Callable[..., Running], tmp_path: Path) -> None:
    with vk.open(f"lmdb:{tmp_path / 'db'}") as db:
        db.sql(planned.TABLES[0])
        db.sql("CREATE INDEX by_price ON items (price)")
    running = start()
    with vk.connect(running.address) as far:
        assert far.views() == []
        assert [shown(one) for one in far.indexes()] == [shown(one) for one in running.db.indexes()]
        assert shown(far.table("by_price")) == shown(running.db.table("by_price"))


def test_what_there_is(served: Running) -> None:
    with vk.connect(served.address) as far:
        assert [t.name for t in far.tables()] == [t.name for t in served.db.tables()]
        for mine, theirs in ((far.tables(), served.db.tables()), (far.views(), served.db.views())):
            assert [shown(one) for one in mine] == [shown(one) for one in theirs]
        assert shown(far.table("TOTALS")) == shown(served.db.table("totals"))
        assert far.table("items").get(3) == far.table("items").read().to_pylist()[3] == served.db.get("items", 3)
        assert (far.explain("totals"), far.explain("totals").svg) == ((near := served.db.explain("totals")), near.svg)
        with pytest.raises(UnknownName):
            far.table("nothing")
        assert far.sql("SELECT n FROM totals WHERE category = :c", engine="embedded", c="c1").rows == [{"n": 5}]
        with pytest.raises(BadValue, match="engine"):
            far.sql("SELECT 1", engine="abacus")
        assert {"totals", "items", "category", "n"} <= NameCompleter(far)._completion_names()
        now = far.status()
        assert now.views[0].sql == served.db.table("totals").definition
        assert now.tables[0].sql == served.db.table(now.tables[0].name).definition
    found = served.http.post(
        "/v1/sql", json={"sql": "SELECT price FROM items WHERE item_id = :k", "parameters": {"k": 3}}
    )
    assert found.json()["rows"] == [{"price": 3}]
    assert found.json()["columns"] == [{"name": "price", "type": "int"}]
    for wrong in ({"parameters": [1]}, {"parameters": {"k": [1]}}, {"params": {}}):
        assert served.http.post("/v1/sql", json={"sql": "SELECT 1", **wrong}).status_code == 400
    assert served.http.get("/v1/views/totals").json()["sql"] == served.db.table("totals").definition


def test_a_shell_on_a_server(served: Running, tmp_path: Path) -> None:
    env = {
        **os.environ,
        "VIEWKEEPER_DB": served.address,
        "XDG_STATE_HOME": str(tmp_path),
        "TERM": "xterm",
        "PROMPT_TOOLKIT_NO_CPR": "1",
        "NO_COLOR": "1",
    }
    arguments = ["-m", "viewkeeper", "sql"]
    child = pexpect.spawn(sys.executable, arguments, env=env, timeout=60, encoding="utf-8", dimensions=(40, 120))
    child.expect_exact(f"on {served.address}")
    child.expect("vk>")
    child.sendline("SELECT n FROM totals WHERE category = 'c1';")
    child.expect_exact("(1 row)")
    child.sendline("INSERT INTO items VALUES (900, 'c1', 1);")
    child.expect("1 inserted")
    child.sendline(r"\d")
    child.expect(r"tables +items, kinds")
    child.sendline("SELECT * FROM nothing;")
    child.expect(r"error\[VK101\]")
    child.sendline(r"\q")
    child.expect(pexpect.EOF)
    child.wait()
    assert child.exitstatus == 0


def test_values_are_exact(start: Callable[..., Running], tmp_path: Path) -> None:
    with vk.open(f"lmdb:{tmp_path / 'db'}") as db:
        db.sql(WIDE)
    running = start()
    rows = [
        {"k": key, "n": n, "big": 2**62 + n, "price": Decimal("1234567890123456.7891"), "raw": b"\x00\xff"}
        for n, key in enumerate(["a/b", "..", "~null", "", "ü ?#%", "~"])
    ]
    with vk.connect(running.address) as client:
        client.put("wide", pa.Table.from_pylist(rows))
        for row in rows:
            assert client.get("wide", (row["k"], row["n"])) == {**row, "at": None}
            assert [r["n"] for r in client.scan("wide", prefix=row["k"])] == [row["n"]]
            client.update("wide", (row["k"], row["n"]), {"raw": b"new"})
        assert client.read("wide").equals(running.db.read("wide"))
        # A column that came since is found when it is needed.
        running.db.sql("ALTER TABLE wide ADD COLUMN more STRING")
        client.put("wide", {"k": "x", "n": 1, "more": "yes"})
        assert client.get("wide", ("x", 1))["more"] == "yes"  # type: ignore[index]


def test_columns_that_are_not_named_have_their_defaults(start: Callable[..., Running], tmp_path: Path) -> None:
    """Also where the client got to know the table before it had them."""
    columns = "k INT, colour STRING DEFAULT 'red', size INT NOT NULL DEFAULT 7, PRIMARY KEY (k)"
    with vk.open(f"lmdb:{tmp_path / 'db'}") as db:
        db.sql(f"CREATE TABLE t ({columns})")
    running = start()
    given: list[Any] = [
        {"k": 1},
        [{"k": 2, "colour": None}, {"k": 3, "size": 9}],
        pa.table({"K": [4]}),
        pa.table({"k": pa.array([5], pa.int8()), "size": pa.array([1], pa.int64())}),
    ]

    async def later(address: str) -> None:
        async with vk.connect_async(address) as db:
            await db.put("t", {"k": 7})
            await db.put("t", pa.table({"k": [8]}))

    with vk.connect(running.address) as client:
        for rows in given:
            client.put("t", rows)
        running.db.sql("ALTER TABLE t ALTER COLUMN colour SET DEFAULT 'blue'")
        client.put("t", {"k": 6})
        asyncio.run(later(running.address))
        found = [tuple(row.values()) for row in client.scan("t")]
        for wrong in (pa.table({"k": [9], "hue": ["red"]}), pa.table({"colour": ["red"]}), {"colour": "red"}, [{}]):
            with pytest.raises(BadValue) as far:
                client.put("t", wrong)
            with pytest.raises(BadValue) as near:
                running.db.put("t", wrong)
            assert (far.value.message, far.value.hint) == (near.value.message, near.value.hint)
    reds = [(1, "red", 7), (2, None, 7), (3, "red", 9), (4, "red", 7), (5, "red", 1)]
    assert found == [*reds, (6, "blue", 7), (7, "blue", 7), (8, "blue", 7)]


def test_long_reads_are_of_one_state(
    shop: None, start: Callable[..., Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    from viewkeeper.client import protocol

    monkeypatch.setattr(protocol, "PAGE_ROWS", 7)
    running = start()
    with vk.connect(running.address) as client:
        seen = []
        for row in client.scan("items"):
            seen.append(row["item_id"])
            running.db.put("items", {"item_id": 100 + len(seen), "category": "later"})
        assert seen == list(range(20))
        assert client.read("items").num_rows == 40
        assert [r["item_id"] for r in client.scan("items", limit=9)] == list(range(9))


def test_subscriptions(served: Running) -> None:
    with vk.connect(served.address) as client:
        deltas = client.subscribe("totals", timeout=20)
        first = next(deltas)
        assert (first.kind, first.rows.num_rows) == ("rows", 4)
        client.put("items", {"item_id": 1, "category": "c1", "price": 500})
        change = next(deltas)
        (one,) = change.changes()
        assert (one.kind, one.after["n"]) == ("update", 5)  # type: ignore[index]
        deltas.close()  # type: ignore[attr-defined]
        client.put("items", {"item_id": 1, "category": "c1", "price": 501})
        resumed = client.subscribe("totals", change.token, timeout=20, progress=0.1)
        after = next(d for d in resumed if d.kind == "changes")
        assert [c.after["total"] - one.after["total"] for c in after.changes()] == [1]  # type: ignore[index]
        assert next(resumed).kind == "progress"
        assert list(client.subscribe("totals", after.token, timeout=0.3)) == []
        with pytest.raises(UnknownName):
            next(client.subscribe("nothing"))


def test_a_subscription_outlives_its_server(shop: None, start: Callable[..., Running]) -> None:
    running = start(maintain=True)
    port = int(running.address.rpartition(":")[2])
    seen: list[Any] = []
    with vk.connect(running.address) as client:
        deltas = client.subscribe("totals", timeout=60)
        next(deltas)
        running.put({"item_id": 1, "category": "c1", "price": 1000})
        seen.append(next(deltas))
        running.stop()
        again = start(maintain=True, port=port)
        again.put({"item_id": 1, "category": "c1", "price": 2000})
        seen.append(next(deltas))
    totals = [next(iter(d.changes())).after["total"] for d in seen]  # type: ignore[index]
    assert totals[1] - totals[0] == 1000


def test_for_asyncio(served: Running) -> None:
    async def run() -> None:
        async with vk.connect_async(served.address) as db:
            token = await db.put("items", [{"item_id": 1, "category": "c1", "price": 100}])
            assert (await db.get("totals", "c1", after=token))["n"] == 5  # type: ignore[index]
            assert await db.get("items", 999) is None
            assert [r["item_id"] async for r in db.scan("items", start=3, stop=5)] == [3, 4]
            assert (await db.read("items")).num_rows == 20
            assert (await db.sql("SHOW VIEWS")).to_pylist() == [{"name": "totals"}]
            assert (await db.status()).views[0].name == "totals"
            deltas = db.subscribe("totals")
            assert (await anext(deltas)).kind == "rows"
            await db.update("items", 1, {"price": 101})
            assert (await anext(deltas)).kind == "changes"
            await db.delete("items", 1)
            assert (await anext(deltas)).kind == "changes"
            await deltas.aclose()  # type: ignore[attr-defined]
            token = await db.put("items", {"item_id": 1, "category": "c1", "price": 102})
            await db.get("totals", "c1", after=token)
            marked = db.subscribe("totals", timeout=20, progress=0.1)
            assert (await anext(marked)).kind == "rows"
            mark = await anext(marked)
            assert mark.kind == "progress"
            assert [d async for d in db.subscribe("totals", mark.token, timeout=0.3)] == []
            with pytest.raises(UnknownName):
                await anext(db.subscribe("nothing"))
            assert await db.indexes() == []
            many = await asyncio.gather(*(db.get("items", i) for i in range(2, 12)))
            assert [row["item_id"] for row in many if row] == list(range(2, 12))
            with pytest.raises(UnknownName):
                await db.get("nothing", 1)

    asyncio.run(run())


def test_what_goes_wrong_on_the_way(shop: None, start: Callable[..., Running], tmp_path: Path) -> None:
    token = TokenFile(tmp_path / "tokens").create("reader")
    with vk.open(f"lmdb:{tmp_path / 'db'}") as db:
        db.sql(f"CREATE MATERIALIZED VIEW bosses AS {planned.BOSSES}")  # of two tables: it waits for its batch
    running = start(tokens=str(tmp_path / "tokens"))
    with vk.connect(running.address, token=token) as client:
        assert client.get("items", 1) is not None
        with pytest.raises(vk.ViewkeeperError, match="needs the role writer"):
            client.put("items", {"item_id": 1})
        running.db.put("items", {"item_id": 1, "category": "z"})
        with pytest.raises(Timeout):
            client.read("bosses", vk.LATEST)
        latest = client.get("totals", "z", vk.LATEST)
        assert latest is not None
        assert latest["n"] == 1
    with vk.connect(running.address) as client, pytest.raises(Unauthorized):
        client.get("items", 1)
    with vk.connect("http://127.0.0.1:9", retry=0.1) as client, pytest.raises(Unreachable):
        client.get("items", 1)
    with pytest.raises(BadValue):
        vk.connect("lmdb:./shop")


def test_commands_on_a_server(
    served: Running, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VIEWKEEPER_DB", served.address)

    def vk_(*arguments: str) -> str:
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        out = capsys.readouterr()
        assert not ended.value.code, out.err
        return out.out

    assert vk_("put", "items", '{"item_id": 1, "category": "c1", "price": 9}').startswith("vk1:")
    assert "c1" in vk_("get", "items", "1")
    assert vk_("scan", "items", "--limit", "2", "-o", "json").count("\n") == 2
    assert vk_("scan", "items", "3", "-o", "csv").splitlines()[1] == "3,c3,3"
    assert "items" in vk_("sql", "SHOW TABLES; SHOW VIEWS")
    assert vk_("sql", "UPSERT INTO items VALUES (80, 'x', 1)") == "1 put\n"
    file = tmp_path / "more.csv"
    file.write_text("item_id,category,price\n81,x,1\n82,x,wrong\n")
    monkeypatch.chdir(tmp_path)
    assert "rejected: 1" in vk_("load", "items", str(file))
    assert vk_("load", "people", str(file), "--key", "item_id").startswith("table: people")
    assert vk_("delete", "items", "81").startswith("vk1:")
    assert '"name": "totals"' in vk_("status", "-o", "json")
    assert "totals" in vk_("explain", "totals")
    assert vk_("explain", "totals", "--format", "svg").startswith("<svg")
    for local in (["backup", str(tmp_path / "copy")], ["refresh"], ["doctor"]):
        with pytest.raises(SystemExit):
            main(local)
        assert "works on the database itself, not through a server" in capsys.readouterr().err
    watched = threading.Event()

    def write() -> None:
        price = 77
        while not watched.wait(0.2):  # what comes before it watches is among its first rows
            served.put({"item_id": 1, "category": "c1", "price": price})
            price += 1

    writing = threading.Thread(target=write)
    writing.start()
    try:
        assert '"kind": "update"' in vk_("watch", "totals", "--changes", "1", "-o", "json")
    finally:
        watched.set()
        writing.join()
    with pytest.raises(SystemExit):
        main(["get", "items", "999"])
    assert "has no row" in capsys.readouterr().err


def test_a_script_makes_views_in_one_batch_and_says_where_it_fails(
    served: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = served.db.status().epoch
    script = tmp_path / "views.sql"
    views = (
        f"CREATE MATERIALIZED VIEW dear AS {planned.DEAR};\n-- a word;\nCREATE MATERIALIZED VIEW b AS {planned.BOSSES};"
    )
    script.write_text(f"SHOW TABLES;\n\n{views}\nSELECT count(*) AS n FROM items;\n")
    with pytest.raises(SystemExit) as ended:
        main(["sql", "-f", str(script), "--db", served.address])
    assert ended.value.code == 0
    out = capsys.readouterr().out.split()
    assert " ".join(out).startswith("items kinds 2 views (dear, b) created n 20")
    assert served.db.status().epoch == before + 1
    script.write_text(f"SHOW TABLES;\n\n{views}\n")
    with pytest.raises(SystemExit):
        main(["sql", "-f", str(script), "--db", served.address])
    assert "Statement 2 (line 3): The name 'dear' is in use." in capsys.readouterr().err


SEVERAL = (
    "DELETE FROM items WHERE item_id = 1; SHOW TABLES; SELECT count(*) AS n FROM items; UPDATE items SET price = 0"
)
TOLD = [("1 deleted", []), ("", [{"name": "items"}, {"name": "kinds"}]), ("", [{"n": 19}]), ("19 updated", [])]


def test_several_statements_run_and_are_reported_alike_everywhere(served: Running) -> None:
    """By a client, by the database itself and over plain HTTP: what each of them did, and which one failed."""
    with vk.connect(served.address) as far:
        row = far.get("items", 1)
        for db in (far, served.db):
            found = db.sql(SEVERAL)
            assert [(one.done, one.rows) for one in found.each] == TOLD
            assert found.done == "19 updated"
            db.put("items", row)
            with pytest.raises(vk.ViewkeeperError) as failed:
                db.sql("SHOW TABLES;\nUPSERT INTO items VALUES (:k, 'x', 1);\nDROP TABLE nothing", k=500)
            assert failed.value.code == "VK101"
            assert failed.value.message.startswith("Statement 3 (line 3): ")
            assert failed.value.message.endswith("The statements before it have run.")
            db.delete("items", 500)
    plain = served.http.post("/v1/sql", json={"sql": SEVERAL}).json()["statements"]
    assert [(one.get("done", ""), one.get("rows", [])) for one in plain][::3] == [TOLD[0], TOLD[3]]
    assert plain[2]["rows"] == [{"n": "19"}]
    streamed = served.http.post("/v1/sql", json={"sql": "SHOW TABLES; SHOW VIEWS"}, headers={"accept": "text/csv"})
    assert streamed.status_code == 406
