"""The command line without Spark: what it prints, and its exit codes."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from viewkeeper import __version__
from viewkeeper.cli.app import app
from viewkeeper.cli.commands import verify
from viewkeeper.model import types
from viewkeeper.store.registry import open_store
from viewkeeper.workloads.shop import Shop

Run = Callable[..., tuple[int, str, str]]


ITEMS = "CREATE TABLE items (shop STRING, id BIGINT, price DECIMAL(6,2), day DATE, PRIMARY KEY (shop, id))"


@pytest.fixture
def shop(vk: Run, tmp_path: Path) -> None:
    import viewkeeper

    assert vk("sql", ITEMS)[0] == 0
    with viewkeeper.open(f"lmdb:{tmp_path / 'shop'}") as db:
        db.put("items", [{"shop": s, "id": i, "price": "1.50", "day": "2024-02-29"} for s in "ab" for i in (7, 10)])


def test_version(vk: Run) -> None:
    assert vk("--version") == (0, f"viewkeeper {__version__}\n", "")


def commands() -> list[str]:
    return [str(c.callback.__name__) for c in app.registered_commands if c.callback is not None]


def test_every_command_of_the_issue_is_there() -> None:
    there = "audit backup bench delete demo doctor explain get init load put refresh restore run scan serve sql"
    there += " status verify watch"
    assert " ".join(sorted(commands())) == there


@pytest.mark.parametrize("name", commands())
def test_every_help_ends_with_an_example(vk: Run, name: str) -> None:
    code, out, _ = vk(name, "--help")
    assert code == 0
    assert out.splitlines()[-1].strip().startswith(f"Example: vk {name}")  # on one line, to be copied whole


def test_hbase_is_mounted(vk: Run) -> None:
    assert "start" in vk("hbase", "--help")[1]


def test_init_makes_a_database_once(vk: Run) -> None:
    assert "is ready" in vk("init")[1]
    vk("sql", ITEMS)
    assert vk("init")[1].endswith("is there already: 1 table, 0 views\n")


def test_commands_do_not_make_a_database_by_accident(vk: Run, tmp_path: Path) -> None:
    for arguments in (["put", "items", "{}"], ["refresh"], ["status"], ["get", "items", "1"], ["delete", "items", "1"]):
        code, _, err = vk(*arguments)
        assert code == 1, arguments
        assert err.startswith("error[VK501]"), arguments
    assert not (tmp_path / "shop").exists()


def test_sql_creates_and_shows(vk: Run, tmp_path: Path) -> None:
    assert vk("sql", ITEMS) == (0, "table items created\n", "")
    assert vk("sql", "SHOW TABLES") == (0, "items\n", "")
    assert vk("sql", "DESCRIBE items")[1].splitlines()[2].split() == ["id", "bigint", "False", "2"]
    script = tmp_path / "script.sql"
    script.write_text("-- two more\nCREATE TABLE t (a INT PRIMARY KEY); SHOW TABLES;")
    assert vk("sql", "-f", str(script)) == (0, "table t created\nitems\nt\n", "")
    several = "INSERT INTO t VALUES (1); SELECT a FROM t; DROP TABLE t; DROP TABLE IF EXISTS t"
    told = "1 inserted\na\n1\n(1 row)\ntable t dropped\nthere is no table t\n"
    assert vk("sql", several) == (0, told, "")
    code, out, err = vk("sql", "CREATE TABLE t (a INT PRIMARY KEY);\nSELECT b FROM t;\nDROP TABLE t")
    assert (code, out) == (1, "table t created\n")
    assert err.startswith("error[VK101]: Statement 2 (line 2): ")


def test_hints_name_the_way_of_the_command_line(vk: Run, tmp_path: Path) -> None:
    vk("sql", ITEMS)
    ranked = vk("sql", "SELECT rank() OVER (ORDER BY id) AS place FROM items", "--engine", "embedded")[2]
    assert "--engine spark" in ranked
    with closing(open_store(f"lmdb:{tmp_path / 'shop'}", "w")) as store:
        lease = store.acquire_lease()
        busy = vk("refresh")[2]
        lease.release()
    assert "error[VK601]" in busy
    assert "vk run --standby" in busy
    assert "mode=" not in ranked + busy


def test_words_are_printed_as_they_are_and_rows_as_rows(vk: Run) -> None:
    vk("sql", "CREATE TABLE t (id INT, name STRING, PRIMARY KEY (id))")
    vk("sql", "INSERT INTO t VALUES (1, 'a'), (2, NULL)")
    made = vk("sql", "/* how? */ SHOW CREATE TABLE t")[1]
    assert made == "CREATE TABLE `t` (\n  `id` INT NOT NULL,\n  `name` STRING,\n  PRIMARY KEY (`id`)\n)\n"
    assert vk("sql", "SELECT name FROM t ORDER BY id")[1] == "name\na\nNULL\n(2 rows)\n"
    assert json.loads(vk("sql", "SHOW CREATE TABLE t", "-o", "json")[1]) == {"statement": made.rstrip("\n")}


def test_of_many_tables_the_number_comes_first(vk: Run) -> None:
    for name in ("a", "b1", "b2"):
        vk("sql", f"CREATE TABLE {name} (k INT, PRIMARY KEY (k))")
    assert vk("sql", "SHOW TABLES LIKE 'b*'")[1].split() == ["b1", "b2"]
    listed = vk("status", "--limit", "2")[1]
    assert "tables: 3, of which the first 2" in listed
    assert "b2" not in listed
    assert "tables: 3\n" in vk("status", "--limit", "0")[1]
    assert "b2" in vk("status")[1]
    assert [t["name"] for t in json.loads(vk("status", "-o", "json", "--limit", "1")[1])["tables"]] == [
        "a",
        "b1",
        "b2",
    ]
    assert "views: none" in vk("status", "--views", "b*")[1]


def test_insert_upsert_and_delete(vk: Run) -> None:
    vk("sql", ITEMS)
    insert = "INSERT INTO items VALUES ('a', 1, 2.50, DATE '2024-01-31'), ('it\\'s', -2, NULL, NULL)"
    assert vk("sql", insert) == (0, "2 inserted\n", "")
    assert json.loads(vk("get", "items", "it's", "-o", "json", "--", "-2")[1])["price"] is None
    code, _, err = vk("sql", "INSERT INTO items (shop, id) VALUES ('b', 1), ('a', 1)")
    assert (code, "VK102" in err, "shop = a, id = 1" in err) == (1, True, True)
    assert vk("get", "items", "b", "1")[0] == 1  # nothing of the refused statement was written
    assert vk("sql", "UPSERT INTO items (id, shop, price) VALUES (+1, 'a', 9)")[1] == "1 put\n"
    assert json.loads(vk("get", "items", "a", "1", "-o", "json")[1]) == {
        "shop": "a",
        "id": 1,
        "price": "9.00",
        "day": None,
    }
    assert vk("sql", "UPDATE items SET price = price + 1, day = DATE '2024-01-01' WHERE id < 5")[1] == "2 updated\n"
    assert json.loads(vk("get", "items", "a", "1", "-o", "json")[1])["price"] == "10.00"
    assert vk("sql", "DELETE FROM items WHERE id IN (1, 5) AND shop = 'a'")[1] == "1 deleted\n"
    assert vk("get", "items", "a", "1")[0] == 1


@pytest.mark.parametrize(
    ("statement", "code", "names"),
    [
        ("INSERT INTO items VALUES ('a')", "VK301", "1 values, not 4"),
        ("INSERT INTO items (shop, id) VALUES ('a', 'b')", "VK201", "'b'"),
        ("INSERT INTO items (shop, id, SHOP) VALUES ('a', 1, 'b')", "VK301", "shop is there twice"),
        ("INSERT INTO items (shop, id) VALUES ('a', 1e3)", "VK201", "items.id: '1e3'"),
        ("INSERT INTO items (shop, bogus) VALUES ('a', 1)", "VK101", "'bogus'"),
        ("INSERT INTO items (shop, id) VALUES ('a', 1 + 1)", "VK301", "'+'"),
        ("INSERT INTO items (shop, id, price) VALUES ('a', 1, 1.005)", "VK201", "1.005"),
        ("DELETE FROM items", "VK301", "WHERE TRUE for all"),
        ("UPDATE items SET id = 1", "VK301", "part of the key"),
        ("UPDATE items SET bogus = 1", "VK101", "'bogus'"),
        ("UPDATE items SET price = WHERE id = 1", "VK301", "where a value should be"),
        ("UPDATE items SET price = 1000000", "VK201", "price"),
        ("  -- nothing", "VK301", "INSERT"),
        ("MERGE INTO items", "VK301", "UPSERT"),
    ],
)
@pytest.mark.usefixtures("shop")
def test_writes_that_cannot_be_are_refused(vk: Run, statement: str, code: str, names: str) -> None:
    exit_code, out, err = vk("sql", statement)
    assert (exit_code, out) == (1, "")
    assert err.startswith(f"error[{code}]")
    assert names in err
    assert len(vk("scan", "items", "-o", "json")[1].splitlines()) == 4


def test_texts_with_quotes_and_floats_without_digits(vk: Run) -> None:
    vk("sql", "CREATE TABLE t (a INT, b STRING, c DOUBLE, PRIMARY KEY (a))")
    vk("sql", "INSERT INTO t VALUES (1, 'it''s', 1234567.125), (2, '''', 'NaN'), (3, 'a', '-Infinity')")
    assert vk("scan", "t")[1].splitlines()[1:4] == ["1  it's  1234567.125", "2  '     nan", "3  a     -inf"]
    assert vk("sql", "INSERT INTO t VALUES (4, 'a' 'b', 1)")[0] == 1


def test_an_error_says_where_in_a_file_it_is(vk: Run, tmp_path: Path) -> None:
    script = tmp_path / "script.sql"
    script.write_text(
        "CREATE TABLE t (a INT PRIMARY KEY);\n-- and\nINSERT INTO t VALUES (1);\n\nINSERT INTO t\nVALUES (x);"
    )
    code, _, err = vk("sql", "-f", str(script))
    assert (code, err.count("\n")) == (1, 1)
    assert "Statement 3 (line 5): 'x' (line 6)" in err
    assert vk("get", "t", "1")[0] == 0


@pytest.mark.usefixtures("shop")
def test_get_reads_a_key_by_its_types(vk: Run) -> None:
    code, out, _ = vk("get", "items", "a", "7", "--output", "json")
    assert (code, json.loads(out)) == (0, {"shop": "a", "id": 7, "price": "1.50", "day": "2024-02-29"})
    assert vk("get", "items", "a", "8") == (1, "", "items has no row with key a 8.\n")


@pytest.mark.usefixtures("shop")
def test_scan_prints_rows_in_key_order(vk: Run) -> None:
    def keys(*arguments: str) -> list[tuple[str, int]]:
        lines = vk("scan", "items", *arguments, "-o", "json")[1].splitlines()
        return [(r["shop"], r["id"]) for r in map(json.loads, lines)]

    assert keys() == [("a", 7), ("a", 10), ("b", 7), ("b", 10)]
    assert keys("a") == [("a", 7), ("a", 10)]
    assert keys("b", "--limit", "1") == [("b", 7)]


@pytest.mark.usefixtures("shop")
def test_the_four_formats(vk: Run) -> None:
    assert vk("scan", "items", "a", "-o", "table")[1].splitlines() == [
        "shop  id  price  day",
        "a     7   1.50   2024-02-29",
        "a     10  1.50   2024-02-29",
        "(2 rows)",
    ]
    assert vk("scan", "items", "a", "-o", "csv")[1] == "shop,id,price,day\na,7,1.50,2024-02-29\na,10,1.50,2024-02-29\n"
    command = [sys.executable, "-m", "viewkeeper", "scan", "items", "a", "-o", "arrow"]
    found = subprocess.run(command, check=True, capture_output=True, timeout=60).stdout
    assert pa.ipc.open_stream(found).read_all()["id"].to_pylist() == [7, 10]


@pytest.mark.usefixtures("shop")
def test_csv_tells_null_from_empty_and_quotes_line_breaks(vk: Run) -> None:
    vk("sql", "CREATE TABLE t (a INT, b STRING, c STRING, PRIMARY KEY (a))")
    vk(
        "put",
        "t",
        '{"a": 1, "b": "", "c": null}',
        '{"a": 2, "b": "x,y", "c": "\\""}',
        '{"a": 3, "b": "x\\ny", "c": ""}',
    )
    assert vk("scan", "t", "-o", "csv")[1] == 'a,b,c\n1,"",\n2,"x,y",""""\n3,"x\ny",""\n'
    assert "x\\ny" in vk("scan", "t")[1]  # a table has a row a line


def test_only_a_script_that_creates_makes_a_database(vk: Run, tmp_path: Path) -> None:
    assert vk("sql", "SHOW TABLES")[0] == 1
    assert vk("sql", "  ")[0] == 1
    assert not (tmp_path / "shop").exists()
    assert vk("sql", ITEMS)[0] == 0


@pytest.mark.usefixtures("shop")
def test_put_and_delete(vk: Run) -> None:
    code, token, _ = vk("put", "items", '{"shop": "z", "id": 1, "price": 2.25}')
    assert code == 0
    assert token.startswith("vk1:")
    assert json.loads(vk("get", "items", "z", "1", "-o", "json")[1])["price"] == "2.25"
    assert vk("delete", "items", "z", "1")[0] == 0
    assert vk("delete", "items", "z", "1") == (1, "", "items has no row with key z 1.\n")
    assert vk("put", "items", '[{"shop": "z", "id": 2}, {"shop": "z", "id": 3}]')[0] == 0
    assert len(vk("scan", "items", "z", "-o", "json")[1].splitlines()) == 2


@pytest.mark.usefixtures("shop")
def test_status_and_refresh_are_for_people_and_programs(vk: Run) -> None:
    code, out, _ = vk("status")
    assert code == 0
    assert ["items", "4"] in [line.split()[:2] for line in out.splitlines()]
    assert "views: none" in out
    status = json.loads(vk("status", "-o", "json")[1])
    assert [(t["name"], t["rows"]) for t in status["tables"]] == [("items", 4)]
    assert "changes: 0" in vk("refresh")[1].splitlines()
    assert json.loads(vk("refresh", "-o", "json")[1])["changes"] == 0


@pytest.mark.usefixtures("shop")
def test_run_and_watch_end_when_told(vk: Run) -> None:
    assert "keeping 0 views" in vk("run", "--seconds", "0.3")[1]
    lines = [json.loads(line) for line in vk("watch", "items", "--timeout", "0.1", "-o", "json")[1].splitlines()]
    assert [line["kind"] for line in lines] == ["row"] * 4
    vk("put", "items", '{"shop": "a", "id": 7, "price": 3}')
    (change,) = vk("watch", "items", "--timeout", "0.1", "--since", lines[0]["token"])[1].splitlines()
    assert change.startswith("~ shop a  id 7  price 1.50 → 3.00")


def test_the_log_has_two_forms(vk: Run) -> None:
    assert vk("--log", "xml", "status")[::2] == (2, "vk: There is no log 'xml': text, json. See vk --help.\n")


# -- load --------------------------------------------------------------------------------------------------------------


def test_load_infers_a_table_and_reads_csv_json_and_parquet(vk: Run, tmp_path: Path) -> None:
    vk("init")
    (tmp_path / "a.csv").write_text("id,name,price,day\n1,one,1.5,2024-01-31\n2,,,\n")
    code, out, err = vk("load", "things", str(tmp_path / "a.csv"), "--key", "id", "-o", "json")
    assert (code, json.loads(out)["rows"], err) == (0, 2, "")
    assert ["name", "string", "True", "NULL"] in [x.split() for x in vk("sql", "DESCRIBE things")[1].splitlines()]
    (tmp_path / "b.jsonl").write_text('{"id": 3, "name": "three", "day": "2024-02-29"}\n')
    rows = pa.table({"id": pa.array([4], pa.int64()), "name": ["four"]})
    pq.write_table(rows, tmp_path / "c.parquet")
    assert vk("load", "things", str(tmp_path / "b.jsonl"), str(tmp_path / "c.parquet"))[0] == 0
    found = [json.loads(line) for line in vk("scan", "things", "-o", "json")[1].splitlines()]
    assert [(r["id"], r["name"]) for r in found] == [(1, "one"), (2, None), (3, "three"), (4, "four")]


LOAD = "CREATE TABLE t (a INT, b STRING, c DECIMAL(6,2), PRIMARY KEY (a))"


def test_load_tells_a_wrong_type_from_the_schema_of_a_file(vk: Run, tmp_path: Path) -> None:
    """One error that names the column, not one for each of the rows; without a reject file."""
    vk("init")
    vk("sql", LOAD)
    for name, values in {"floats": pa.array([1.5] * 2000), "none": pa.array([], pa.float64())}.items():
        file = tmp_path / f"{name}.parquet"
        pq.write_table(pa.table({"a": pa.array(range(len(values)), pa.int32()), "c": values}), file)
        code, _, err = vk("load", "t", str(file), "--max-rejects", "5000")
        if name == "floats":
            assert code == 1
            assert f"{file}: the column c has the type double, which does not fit t.c, a DECIMAL(6,2)." in err
            assert "Nothing was written." in err
    assert list(tmp_path.glob("*.rejects*")) == []
    text = pa.table({"a": pa.array(["1", "x"]), "c": ["1.25", "2"]})
    pq.write_table(text, tmp_path / "text.parquet")
    assert vk("load", "t", str(tmp_path / "text.parquet"), "--rejects", str(tmp_path / "bad"), "-o", "json")[0] == 0
    assert len((tmp_path / "bad").read_text().splitlines()) == 1


def test_load_reads_what_is_packed_tabbed_or_in_an_array(vk: Run, tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("id\tname\n1\tx,y\n")
    (tmp_path / "b.csv").write_text("id;name\n2;'z\n")
    (tmp_path / "c.csv.gz").write_bytes(gzip.compress(b"id,name\n3,packed\n"))
    (tmp_path / "d.json").write_text('\n [{"id": 4, "name": "array"},\n {"id": 5}]')
    (tmp_path / "e.json.gz").write_bytes(gzip.compress(b'{"id": 6, "name": "line"}\n'))
    vk("init")
    assert vk("load", "things", str(tmp_path / "a.tsv"), "--key", "id")[0] == 0
    assert vk("load", "things", str(tmp_path / "b.csv"), "--delimiter", ";")[0] == 0
    files = [str(tmp_path / name) for name in ("c.csv.gz", "d.json", "e.json.gz")]
    assert vk("load", "things", *files)[::2] == (0, "")
    found = [json.loads(line) for line in vk("scan", "things", "-o", "json")[1].splitlines()]
    names = ["x,y", "'z", "packed", "array", None, "line"]
    assert found == [{"id": n, "name": name} for n, name in enumerate(names, 1)]


@pytest.mark.parametrize(
    ("content", "options", "words"),
    [
        ("id,name\n1,a\n", ["--key", "id"], "leave --key out"),
        ("id,name,ID\n1,a,2\n", [], "twice"),
        ("id,name\n1,a\n", ["--delimiter", "ab"], "One character"),
    ],
)
def test_load_refuses_what_it_cannot_mean(
    vk: Run, tmp_path: Path, content: str, options: list[str], words: str
) -> None:
    (tmp_path / "a.csv").write_text("id,name\n")
    vk("sql", "CREATE TABLE things (id INT, name STRING, PRIMARY KEY (id))")
    (tmp_path / "b.csv").write_text(content)
    code, _, err = vk("load", "things", str(tmp_path / "b.csv"), *options)
    assert code > 0
    assert words in err
    assert vk("scan", "things")[1].splitlines()[-1] == "(0 rows)"


def test_a_second_load_keeps_the_first_ones_rejects(vk: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    vk("sql", "CREATE TABLE things (id INT, PRIMARY KEY (id))")
    for name in ("a", "b"):
        Path(f"{name}.csv").write_text(f"id\n{name}\n1\n")
        assert vk("load", "things", f"{name}.csv")[0] == 0
    assert [p.name for p in sorted(Path().glob("*.jsonl"))] == ["things.rejects.2.jsonl", "things.rejects.jsonl"]


@pytest.mark.parametrize("options", [[], ["-o", "json"], ["--chunk", "1"]])
def test_a_load_of_which_no_row_fits_is_an_error(vk: Run, tmp_path: Path, options: list[str]) -> None:
    vk("sql", LOAD)
    (tmp_path / "t.csv").write_text("a,b,c\neins,x,1\nzwei,y,2\n")
    rejects = tmp_path / "bad.jsonl"
    code, out, err = vk("load", "t", str(tmp_path / "t.csv"), "--rejects", str(rejects), *options)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith("error[VK201]: Of 2 rows none fits t; the first: t.a: 'eins' is no INT value. Nothing was")
    assert len(rejects.read_text().splitlines()) == 2
    (tmp_path / "none.csv").write_text("a,b,c\n")
    assert vk("load", "t", str(tmp_path / "none.csv"))[0] == 0, "a file without rows has none that does not fit"


def test_load_puts_bad_rows_into_a_reject_file(vk: Run, tmp_path: Path) -> None:
    vk("sql", LOAD)
    (tmp_path / "t.csv").write_text("a,b,c\n1,x,1.25\nzwei,y,1\n3,too,many,fields\n4,z,1.234\n,k,1\n6,ok,6\n")
    (tmp_path / "t.jsonl").write_text('{"a": 7}\nnothing\n{"a": 8, "zz": 1}\n{"a": 9, "b": 5}\n[1]\n{"a": "10"}\n')
    rejects = tmp_path / "bad.jsonl"
    files = [str(tmp_path / "t.csv"), str(tmp_path / "t.jsonl")]
    code, out, _ = vk("load", "t", *files, "--rejects", str(rejects), "-o", "json")
    assert code == 0
    assert json.loads(out) == {"table": "t", "rows": 4, "rejected": 8, "reject_file": str(rejects)}
    bad = [json.loads(line) for line in rejects.read_text().splitlines()]
    told = {(Path(b["file"]).name, b["row"]): b["reason"] for b in bad}
    assert told == {
        ("t.csv", 2): "t.a: 'zwei' is no INT value.",
        ("t.csv", 3): "4 fields, the header has 3.",
        ("t.csv", 4): "t.c: '1.234' is no DECIMAL(6,2) value.",
        ("t.csv", 5): "t.a: NULL or missing, but the column is NOT NULL.",
        ("t.jsonl", 2): "This is no JSON.",
        ("t.jsonl", 3): "There is no column zz.",
        ("t.jsonl", 4): "b is a ubigint, not a string.",
        ("t.jsonl", 5): "This is no JSON object.",
    }


def test_strict_load_writes_all_or_nothing(vk: Run, tmp_path: Path) -> None:
    vk("sql", LOAD)
    (tmp_path / "t.csv").write_text("a,b,c\n1,x,1.25\n2,y,nine\n")
    code, _, err = vk("load", "t", str(tmp_path / "t.csv"), "--strict")
    assert (code, "row 2" in err, "'nine'" in err) == (1, True, True)
    assert vk("scan", "t", "-o", "json")[1] == ""
    assert not list(tmp_path.glob("*.jsonl"))


def test_too_many_bad_rows_are_an_error(vk: Run, tmp_path: Path) -> None:
    vk("sql", LOAD)
    (tmp_path / "t.csv").write_text("a,b,c\n" + "x,y,z\n" * 20 + "1,x,1\n")
    code, _, err = vk("load", "t", str(tmp_path / "t.csv"), "--max-rejects", "5")
    assert (code, "more than 5 rows" in err) == (1, True)
    assert vk("scan", "t", "-o", "json")[1] == ""


def test_load_names_what_is_wrong_with_a_file(vk: Run, tmp_path: Path) -> None:
    vk("sql", LOAD)
    (tmp_path / "t.csv").write_text("a,bogus\n1,2\n")
    (tmp_path / "u.csv").write_text("b\n1\n")
    (tmp_path / "v.xlsx").write_text("")
    for name, says in (("t.csv", "bogus"), ("u.csv", "part of the key"), ("v.xlsx", ".xlsx"), ("w.csv", "no file")):
        code, _, err = vk("load", "t", str(tmp_path / name))
        assert code == 1
        assert says in err


def test_an_interrupted_load_leaves_nothing(vk: Run, tmp_path: Path) -> None:
    import viewkeeper
    from viewkeeper.cli.load import load

    vk("sql", LOAD)
    (tmp_path / "t.csv").write_text("a,b,c\n1,x,1.25\n")
    (tmp_path / "u.csv").write_text("a,b,c\n2,x,1.25\n")
    read = 0

    def interrupt(count: int) -> None:
        nonlocal read
        read += 1
        if read == 2:
            raise KeyboardInterrupt

    with viewkeeper.open(f"lmdb:{tmp_path / 'shop'}") as db, pytest.raises(KeyboardInterrupt):
        load(db, db._writes.table("t", "load"), [tmp_path / "t.csv", tmp_path / "u.csv"], progress=interrupt)
    assert vk("scan", "t", "-o", "json")[1] == ""


@pytest.mark.parametrize("bad", [KeyboardInterrupt(), ValueError("unforeseen")])
def test_a_table_made_for_a_load_goes_with_it(
    vk: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bad: BaseException
) -> None:
    import viewkeeper
    from viewkeeper.cli.load import create_for_load, load

    vk("init")
    (tmp_path / "t.csv").write_text("a,b\n1,x\n")

    def stop(*_: object) -> None:
        raise bad

    create = "CREATE TABLE t (a INT, b STRING, PRIMARY KEY (a))"
    with viewkeeper.open(f"lmdb:{tmp_path / 'shop'}") as db:
        monkeypatch.setattr(db, "put", stop)
        with pytest.raises(type(bad)), create_for_load(db, "t", create):
            load(db, db._writes.table("t", "load"), [tmp_path / "t.csv"])
    assert vk("sql", "SHOW TABLES")[1] == "(none)\n"


def test_a_file_that_is_empty_or_half_bad_makes_a_table_or_says_why(vk: Run, tmp_path: Path) -> None:
    vk("init")
    (tmp_path / "t.jsonl").write_text('{"a": 1}\nnothing\n{"a": 2}\n')
    (tmp_path / "empty.jsonl").write_text("")
    rejects = str(tmp_path / "bad.jsonl")
    report = json.loads(vk("load", "t", str(tmp_path / "t.jsonl"), "--key", "a", "--rejects", rejects, "-o", "json")[1])
    assert (report["rows"], report["rejected"]) == (2, 1)
    assert json.loads(vk("load", "t", str(tmp_path / "empty.jsonl"), "-o", "json")[1])["rows"] == 0
    code, _, err = vk("load", "u", str(tmp_path / "empty.jsonl"), "--key", "a")
    assert (code, "is empty" in err) == (1, True)


def test_where_bad_rows_cannot_go_nothing_is_written(vk: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vk("sql", LOAD)
    (tmp_path / "t.csv").write_text("a,b,c\n1,x,1.25\nzwei,y,1\n")
    code, _, err = vk("load", "t", str(tmp_path / "t.csv"), "--rejects", str(tmp_path / "no" / "where"))
    assert (code, err.count("\n"), "Nothing was written" in err) == (1, 1, True)
    assert vk("scan", "t", "-o", "json")[1] == ""
    monkeypatch.chdir(tmp_path)
    vk("sql", "CREATE TABLE `a/b` (a INT, b STRING, c DECIMAL(6,2), PRIMARY KEY (a))")
    assert json.loads(vk("load", "a/b", "t.csv", "-o", "json")[1])["reject_file"] == "a_b.rejects.jsonl"


def test_progress_counts_the_bytes_of_the_file(tmp_path: Path) -> None:
    from viewkeeper.cli.input_files import read_pieces
    from viewkeeper.model.schema import Column, KeyPart, Table

    table = Table(1, "t", (Column("a", types.BIGINT, nullable=False), Column("b", types.STRING)), (KeyPart("a"),))
    for name, text in (
        ("t.csv", "a,b\n" + "".join(f"{i},{i}\n" for i in range(9))),
        ("t.jsonl", '{"a": 1, "b": "some text"}\n' * 9),
    ):
        (tmp_path / name).write_text(text)
        read: list[int] = []
        assert sum(piece.rows.num_rows for piece in read_pieces(table, tmp_path / name, read.append)) == 9
        assert sum(read) == len(text)
    pq.write_table(pa.table({"a": range(70_000)}), tmp_path / "t.parquet")
    read = []
    assert len(list(read_pieces(table, tmp_path / "t.parquet", read.append))) > 1
    assert sum(read) == (tmp_path / "t.parquet").stat().st_size


@pytest.mark.usefixtures("shop")
def test_what_cannot_be_written_is_one_line() -> None:
    command = [sys.executable, "-m", "viewkeeper", "scan", "items"]
    with Path("/dev/full").open("w") as full:
        failed = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert (failed.returncode, failed.stderr.count("\n")) == (1, 1)
    assert "No space left" in failed.stderr


@pytest.mark.usefixtures("shop")
def test_ctrl_c_is_130(vk: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("time.sleep", interrupt)
    code, out, err = vk("status", "--watch", "-o", "json")
    assert (code, len(out.splitlines())) == (130, 1)
    assert "Traceback" not in err


# -- errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("shop")
@pytest.mark.parametrize(
    ("arguments", "code", "names"),
    [
        (["get", "nothing", "1"], "VK101", "'nothing'"),
        (["get", "items", "a"], "VK201", "2 column(s)"),
        (["get", "items", "a", "seven"], "VK201", "'seven'"),
        (["sql", "CREATE TABLE items (a INT PRIMARY KEY)"], "VK102", "'items'"),
        (["sql", "CREATE TABLE x (a INT)"], "VK301", "PRIMARY KEY"),
        (["sql", "CREATE TABLE x (a BLOB PRIMARY KEY)"], "VK302", "BLOB"),
        (["sql", "SELEC 1"], "VK301", "SELECT"),
        (["explain", "items"], "VK101", "'items'"),
        (["explain", "items", "--format", "svg"], "VK101", "'items'"),
        (["watch", "nothing"], "VK101", "'nothing'"),
        (["watch", "items", "--since", "x"], "VK602", "token"),
        (["scan", "items", "--db", "nowhere:x"], "VK201", "nowhere"),
    ],
)
def test_an_error_is_one_line_with_code_and_hint(vk: Run, arguments: list[str], code: str, names: str) -> None:
    exit_code, out, err = vk(*arguments)
    assert (exit_code, out) == (1, "")
    assert err.startswith(f"error[{code}")
    assert err.count("\n") == 1
    assert names in err


@pytest.mark.parametrize(
    "arguments",
    [
        ["bogus"],
        ["get"],
        ["get", "items", "-1"],
        ["sql"],
        ["sql", "SHOW TABLES", "-f", "x"],
        ["sql", "-f", "no-such-file.sql"],
        ["sql", "SHOW TABLES", "-o", "xml"],
        ["load", "items"],
        ["put", "items", "[1]"],
        ["delete", "items"],
        ["scan", "items", "--limit", "-1"],
        ["scan", "items", "--limit", "x"],
        ["refresh", "--lane", "fast"],
        ["run", "--priority", "mine"],
        ["watch"],
        ["status", "-o", "csv"],
        ["load", "items", "x.csv", "-o", "csv"],
        ["explain", "v", "--format", "png"],
        ["verify", "tpcc"],
        ["verify", "tpcds", "--views", "100"],
        ["verify", "tpch", "--store", "redis"],
        ["verify", "tpch", "--views", "23"],
        ["bench", "--sizes", "x"],
        ["bench", "--sizes", "0"],
        ["bench", "--sizes", "10,-5"],
        ["demo", "--colour"],
        ["demo", "moon"],
    ],
)
def test_a_wrong_call_is_one_line_and_code_2(vk: Run, tmp_path: Path, arguments: list[str]) -> None:
    exit_code, out, err = vk(*arguments)
    assert (exit_code, out) == (2, "")
    assert err.count("\n") == 1
    assert "--help" in err
    assert not (tmp_path / "shop").exists()


@pytest.mark.usefixtures("shop")
def test_commands_that_read_or_put_import_neither_spark_nor_pandas(tmp_path: Path) -> None:
    """What keeps them quick, whatever the machine's load."""
    put = ["put", "items", '{"shop": "c", "id": 1}']
    for arguments in (["get", "items", "a", "7"], ["scan", "items"], ["status"], put, ["delete", "items", "c", "1"]):
        code = (
            "import sys; from viewkeeper.cli import main\n"
            f"sys.argv = ['vk', *{arguments!r}]\n"
            "try: main()\n"
            "except SystemExit as done: assert not done.code\n"
            "slow = {'pyspark', 'pandas', 'duckdb'} & set(sys.modules); assert not slow, slow"
        )
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=60)


@pytest.mark.usefixtures("shop")
def test_a_demo_is_kept_in_a_new_database_only(vk: Run, tmp_path: Path) -> None:
    code, _, err = vk("demo", "shop", "--keep", f"lmdb:{tmp_path / 'shop'}")
    assert (code, err.count("\n")) == (1, 1)
    assert "--keep needs a new database" in err
    assert "orders" not in vk("sql", "SHOW TABLES")[1]


def test_a_query_that_is_named_twice_counts_once(vk: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(verify, "_verify_views", lambda *given: asked.append(given[-1]))
    assert vk("verify", "tpch", "--views", "3,1,3,1")[0] == 0
    assert vk("verify", "tpcds", "--views", "q3,14,q39b,14a")[0] == 0
    assert asked == [("3", "1"), ("3", "14a", "14b", "39b")]


def test_the_demo_shop_tells_each_change_it_makes() -> None:
    class Recorder:
        calls: list[str]

        def __init__(self) -> None:
            self.calls = []

        def __getattr__(self, name: str) -> Callable[..., None]:
            return lambda *_: self.calls.append(name)

    db = Recorder()
    shop = Shop(db)
    shop.open()
    assert db.calls == ["sql"] * 3 + ["put"] * 3
    told = [shop.change() for _ in range(200)]
    assert db.calls[6:].count("delete") == sum("cancelled" in line for line in told) > 0
    assert db.calls[6:].count("update") == sum("price of" in line for line in told) > 0
    assert len(db.calls) == 206
