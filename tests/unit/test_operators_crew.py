"""Threads with a DuckDB each."""

from __future__ import annotations

import sys

import pyarrow as pa
import pytest

from viewkeeper.resources import duckdb_pool as crew_
from viewkeeper.resources.duckdb_pool import DuckDBPool
from viewkeeper.resources.memory import MemoryBudget
from viewkeeper.resources.prepared_statements import PreparedStatements


def test_pieces_of_work_come_back_in_their_order_and_all_learn_their_statements() -> None:
    crew = DuckDBPool(2, MemoryBudget(1 << 30), lambda _: None)
    rows = pa.table({"a": [1, 2]})

    def piece(duck: PreparedStatements, number: int) -> int:
        return int(duck.run(f"SELECT sum(a) + {number} AS s FROM input", input=rows)["s"][0].as_py())

    assert crew.map(piece, range(20)) == [3 + n for n in range(20)]
    assert crew._threads is not None
    crew._threads.submit(lambda: None).result()
    assert [len(duck._statements) for duck in crew.use_all()] == [20, 20]
    crew.close()


def test_no_more_is_learnt_than_is_kept() -> None:
    with PreparedStatements() as wise, PreparedStatements(max_statements=2) as forgetful:
        for n in range(3):
            wise.run(f"SELECT {n} AS n")
        forgetful.copy_statements(wise)
        assert not forgetful._statements


def test_an_error_of_a_piece_is_raised() -> None:
    crew = DuckDBPool(2, MemoryBudget(1 << 30), lambda _: None)

    def fail(_: PreparedStatements, number: int) -> int:
        return 1 // number

    with pytest.raises(ZeroDivisionError):
        crew.map(fail, [1, 0, 1])
    crew.close()


def test_turns_are_short_while_several_work_and_as_they_were_afterwards() -> None:
    usual = sys.getswitchinterval()
    crew = DuckDBPool(2, MemoryBudget(1 << 30), lambda _: None)
    seen: list[float] = []

    def look(_: PreparedStatements) -> None:
        with crew_.short_gil_switch_interval():  # another crew of this process
            pass
        seen.append(sys.getswitchinterval())

    def fail(_: PreparedStatements) -> None:
        raise ValueError

    crew.run_on_each(look)
    assert seen == pytest.approx([crew_._GIL_SWITCH_INTERVAL] * 2)
    with pytest.raises(ValueError):
        crew.run_on_each(fail)
    assert sys.getswitchinterval() == usual
    crew.close()


@pytest.mark.parametrize("size", [1, 2])
def test_work_beside_the_callers(size: int) -> None:
    crew = DuckDBPool(size, MemoryBudget(1 << 30), lambda _: None)
    assert crew.run_in_background(lambda: 7)() == 7
    with pytest.raises(ZeroDivisionError):
        crew.run_in_background(lambda: 1 // 0)()
    crew.close()
