"""How programs end that have a database open: with the exit code they chose, without a word, and nothing is lost."""

from __future__ import annotations

from typing import Any

from tests.contract import planned
from tests.contract.programs import run

import viewkeeper as vk


def test_a_program_need_not_leave_its_maintenance(settings: dict[str, Any]) -> None:
    code = """
        db.maintain().__enter__()
        for price in range(10):
            change(price)
        sys.exit(3)
    """
    assert run(code, settings) == (3, "", "")
    with vk.open(**settings) as db:
        assert db.status().maintainer is None, "the lease is given up"
        db.refresh()
        planned.check(db)


def test_a_program_may_end_within_a_statement_of_a_batch(settings: dict[str, Any]) -> None:
    """DuckDB reads nothing more for a statement, once its own hook at exit was called."""
    code = """
        from viewkeeper.resources import prepared_statements
        reading, at_once = threading.Event(), prepared_statements._InputSlot.__arrow_c_stream__
        def slowly(slot, schema=None):
            reading.set()
            time.sleep(0.05)
            return at_once(slot, schema)
        prepared_statements._InputSlot.__arrow_c_stream__ = slowly
        db.maintain().__enter__()
        change(7)
        assert reading.wait(60)
        sys.exit(3)
    """
    assert run(code, settings) == (3, "", "")
    with vk.open(**settings) as db:
        planned.check(db)
        assert db.get("totals", "a")["total"] == 7 * 334, "the batch was made"


def test_a_hook_from_before_the_maintenance_may_refresh(settings: dict[str, Any]) -> None:
    code = """
        def last():
            change(8)
            db.refresh()
            planned.check(db)
            print("refreshed")
        atexit.register(last)
        db.maintain().__enter__()
        change(7)
    """
    assert run(code, settings) == (0, "refreshed\n", "")
    with vk.open(**settings) as db:
        assert db.status().maintainer is None, "the lease is given up"


def test_a_program_need_not_close(settings: dict[str, Any]) -> None:
    code = """
        change(7)
        db.refresh()
        planned.check(db)
    """
    assert run(code, settings) == (0, "", "")


def test_a_handle_may_be_lost_just_before_the_end(settings: dict[str, Any]) -> None:
    code = """
        change(7)
        db.refresh()
        db = None
        sys.exit(3)
    """
    assert run(code, settings) == (3, "", "")


def test_the_last_batch_may_be_made_at_exit(settings: dict[str, Any]) -> None:
    code = """
        def last():
            change(8)
            print(len(db.refresh().views))
            planned.check(db)
        atexit.register(last)
    """
    assert run(code, settings) == (0, "2\n", "")


def test_a_thread_that_outlives_the_main_one_is_still_served(settings: dict[str, Any]) -> None:
    code = """
        maintenance = db.maintain()
        def later():
            threading.main_thread().join()
            for price in range(5):
                row = db.get("totals", "a", after=change(price), timeout=60)
            print(row["total"] == 4 * row["n"], maintenance.running, db.refresh().suspended)
        threading.Thread(target=later).start()
    """
    assert run(code, settings) == (0, "True True {}\n", "")
