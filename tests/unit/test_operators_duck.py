"""DuckDB inside a task: statements are prepared once and read whatever table is given."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import duckdb
import pyarrow as pa
import pytest

from viewkeeper.resources.memory import MemoryBudget
from viewkeeper.resources.prepared_statements import PreparedStatements


@pytest.fixture
def duck() -> Iterator[PreparedStatements]:
    with PreparedStatements(threads=1) as duck:
        yield duck


def test_the_same_statement_reads_the_table_of_each_call(duck: PreparedStatements) -> None:
    sql = "SELECT sum(x)::BIGINT AS s FROM t"
    assert [duck.run(sql, t=pa.table({"x": [1] * n}))["s"].to_pylist() for n in (1, 3, 2)] == [[1], [3], [2]]


def test_one_text_serves_inputs_of_different_types(duck: PreparedStatements) -> None:
    sql = "SELECT x FROM t"
    assert duck.run(sql, t=pa.table({"x": [1]}))["x"].type == pa.int64()
    assert duck.run(sql, t=pa.table({"x": ["a"]}))["x"].type == pa.string()
    assert duck.run(sql, t=pa.table({"x": [2]}))["x"].to_pylist() == [2]


def test_several_inputs_and_a_with_clause(duck: PreparedStatements) -> None:
    sql = "WITH c AS (SELECT x FROM a UNION ALL SELECT x FROM b) SELECT x FROM c ORDER BY x DESC"
    assert duck.run(sql, a=pa.table({"x": [1, 4]}), b=pa.table({"x": [3]}))["x"].to_pylist() == [4, 3, 1]


def test_results_have_one_chunk_and_stable_types(duck: PreparedStatements) -> None:
    table = pa.table({"x": pa.array(range(300_000), pa.int64()), "s": pa.array(["é"] * 300_000)})
    out = duck.run("SELECT sum(x) OVER () AS huge, s, x::DECIMAL(12,2) AS d, hash(x) AS h FROM t", t=table)
    assert out.schema.types == [pa.decimal128(38, 0), pa.string(), pa.decimal128(12, 2), pa.uint64()]
    assert {c.num_chunks for c in out.columns} == {1}


def test_an_empty_result_keeps_its_types(duck: PreparedStatements) -> None:
    out = duck.run("SELECT s FROM t WHERE FALSE", t=pa.table({"s": ["a"]}))
    assert out.num_rows == 0
    assert out.schema.types == [pa.string()]


def test_errors_of_duckdb_come_through_and_leave_it_usable(duck: PreparedStatements) -> None:
    sql = "SELECT CAST(s AS INTEGER) AS i FROM t"
    with pytest.raises(duckdb.ConversionException):
        duck.run(sql, t=pa.table({"s": ["x"]}))
    with pytest.raises(duckdb.ParserException):
        duck.run("SELEC 1", t=pa.table({"s": ["x"]}))
    with pytest.raises(duckdb.BinderException):
        duck.run("SELECT missing FROM t", t=pa.table({"s": ["x"]}))
    assert duck.run(sql, t=pa.table({"s": ["7"]}))["i"].to_pylist() == [7]


def test_setup_defines_what_statements_use() -> None:
    with PreparedStatements(lambda con: con.execute("CREATE MACRO twice(x) AS x * 2").fetchall()) as duck:
        assert duck.run("SELECT twice(x) AS y FROM t", t=pa.table({"x": [21]}))["y"].to_pylist() == [42]


def test_forgotten_statements_are_prepared_again() -> None:
    with PreparedStatements(threads=1, max_statements=2) as duck:
        for _ in range(3):
            for n in range(5):
                assert duck.run(f"SELECT x + {n} AS y FROM t", t=pa.table({"x": [1]}))["y"].to_pylist() == [1 + n]


def test_statements_over_inputs_that_look_alike_read_the_same_slots() -> None:
    rows = pa.table({"x": [1]})
    with PreparedStatements(threads=1, max_statements=2) as duck:
        for n in range(5):
            assert duck.run(f"SELECT a.x + b.x + {n} AS y FROM a, b", a=rows, b=pa.table({"x": [n]})).num_rows == 1
        assert len(duck._input_slots) == 2, "two of one schema in one statement"
        for n in range(2):
            duck.run(f"SELECT x || '{n}' AS y FROM t", t=pa.table({"x": ["a"]}))
        assert [schema.types for schema, _ in duck._input_slots] == [[pa.string()]], "nobody reads the others any more"
        with pytest.raises(duckdb.BinderException):
            duck.run("SELECT missing FROM t", t=pa.table({"z": [1]}))
        assert len(duck._input_slots) == 1


def test_how_many_statements_are_kept_follows_from_the_memory() -> None:
    with (
        PreparedStatements(threads=1, memory=MemoryBudget(64 << 20)) as small,
        PreparedStatements(threads=1, memory=MemoryBudget(8 << 30)) as large,
    ):
        assert small._max_statements == 1024
        assert large._max_statements == 8192


def test_an_input_is_not_held_after_the_call(duck: PreparedStatements) -> None:
    before = pa.total_allocated_bytes()
    duck.run("SELECT count(*) AS n FROM t", t=pa.table({"x": pa.array(range(1_000_000), pa.int64())}))
    assert pa.total_allocated_bytes() - before < 1_000_000


def test_threads_take_turns(duck: PreparedStatements) -> None:
    barrier = threading.Barrier(4)

    def work(n: int) -> list[int]:
        barrier.wait()
        found = []
        for i in range(20):
            found += duck.run("SELECT x FROM t", t=pa.table({"x": [n * 100 + i]}))["x"].to_pylist()
        return found

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, range(4))) == [[n * 100 + i for i in range(20)] for n in range(4)]


def test_closing_twice_is_fine() -> None:
    duck = PreparedStatements(threads=1)
    duck.close()
    duck.close()
    with pytest.raises(duckdb.ConnectionException):
        duck.run("SELECT 1 AS x")


def test_an_interruption_is_none_of_the_rows_errors(duck: PreparedStatements) -> None:
    timer = threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT))

    def run() -> None:
        timer.start()  # in here: a slow machine is interrupted before the statement, and not outside of the test
        duck.run("SELECT sum(a.range % b.range) AS s FROM range(3000000) a, range(1, 3000000) b")

    with pytest.raises(KeyboardInterrupt):
        run()
    timer.join()
    assert duck.run("SELECT 1 AS one")["one"].to_pylist() == [1]
