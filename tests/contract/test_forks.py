"""A fork of a process that has a database open: what it inherited refuses, what it opens works, its parent goes on."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from typing import Any

from tests.contract.programs import ROOT, run


def test_what_a_child_inherits_refuses_every_call(settings: dict[str, Any]) -> None:
    code = """
        db.refresh()
        maintenance = db.maintain()
        snapshot, handle = db.snapshot(), db.table("totals")
        scan, later, changes = db.scan("items"), snapshot.scan("items"), db.subscribe("totals")
        first = [next(scan), next(later)]
        next(changes)

        def calls():
            for work in (
                lambda: db.get("items", 1), lambda: db.read("totals"), lambda: list(db.scan("items")),
                lambda: db.put("items", planned.item(1)), lambda: db.delete("items", 1),
                lambda: db.update("items", 1, {"price": 3}), lambda: db.sql("SHOW TABLES"), lambda: db.refresh(),
                lambda: db.maintain(), lambda: db.audit(), lambda: db.status(), lambda: db.views(), lambda: db.token(),
                lambda: db.snapshot(), lambda: db.subscribe("totals"), lambda: db.drop_views(["totals"]),
                lambda: snapshot.get("items", 1), lambda: snapshot.read("totals"), lambda: handle.get("a"),
                lambda: maintenance.wait(), lambda: maintenance.running, lambda: list(scan), lambda: list(later),
                lambda: next(changes),
            ):
                refused(work)
            maintenance.stop()
            snapshot.close()
            db.close()
            with db:
                pass

        assert in_child(calls) == 5
        before = [*first, *later]
        assert len([*scan]) == 999 and len(before) == 1001
        assert db.get("totals", "a", after=change(3))["total"] == 3 * 334
        assert next(changes).rows.num_rows and maintenance.running
        snapshot.close()
        db.close()
    """
    assert run(code, settings) == (0, "", "")


def test_what_a_child_closes_is_still_the_parents(settings: dict[str, Any]) -> None:
    """On LMDB: the places among its readers, without which pages under a scan are used again."""
    code = """
        db.refresh()
        snapshot = db.snapshot()
        rows = list(snapshot.scan("items"))
        scans = [snapshot.scan("items"), db.scan("items")]
        found = [[next(scan)] for scan in scans]

        def close():
            for one in (*scans, snapshot, db):
                one.close()

        assert in_child(close) == 5
        for price in range(20):
            change(100 + price)
        for some, scan in zip(found[: 1 if "state" in settings else 2], scans):
            assert [*some, *scan] == rows
        if settings["url"].startswith("lmdb"):
            assert list(snapshot.scan("items")) == rows
        snapshot.close()
        assert db.refresh().views
        planned.check(db)
        db.close()
    """
    assert run(code, settings) == (0, "", "")


def test_a_child_opens_the_database_for_itself(settings: dict[str, Any]) -> None:
    """RocksDB has one writer, and takes the child for its parent: there it reads."""
    code = """
        db.refresh()
        out, into = os.pipe()

        def work():
            mode = "r" if settings["url"].startswith("rocksdb") else "w"
            with vk.open(**settings, mode=mode) as mine:
                assert mine.get("totals", "a")["total"] == 5 * 334
                if mode == "w":
                    mine.put("items", [planned.item(n, 6) for n in range(1000)])
                    try:
                        mine.refresh()
                        raise AssertionError("the parent maintains")
                    except MaintainerBusy:
                        pass
                os.write(into, b"x")
                until = time.monotonic() + 30
                while mode == "w" and mine.status().maintainer is not None:
                    assert time.monotonic() < until
                    time.sleep(0.01)
                if mode == "w":
                    mine.refresh()
                    planned.check(mine)
                    with mine.maintain():
                        token = mine.put("items", [planned.item(n, 7) for n in range(1000)])
                        assert mine.get("totals", "a", after=token)["total"] == 7 * 334

        def close():
            os.read(out, 1)
            db.close()

        closing = threading.Thread(target=close)
        closing.start()
        assert in_child(work) == 5
        closing.join()
    """
    assert run(code, settings) == (0, "", "")


def test_a_child_that_ends_as_programs_do_has_its_exit_code(settings: dict[str, Any]) -> None:
    code = """
        db.maintain().__enter__()
        change(4)
        db.get("totals", "a", after=change(3))
        print(in_child(lambda: refused(db.refresh), end=sys.exit))
        db.refresh()
        planned.check(db)
    """
    ended, said, _ = run(code, settings)
    assert (ended, said) == (0, "5\n")


def test_a_child_of_a_busy_process_waits_for_none_of_its_locks(settings: dict[str, Any]) -> None:
    code = """
        done = threading.Event()
        def read():
            while not done.is_set():
                with db.snapshot() as snapshot:
                    list(snapshot.scan("totals"))
        def write():
            price = 0
            while not done.is_set():
                price += 1
                change(price)
        def work():
            refused(db.refresh)
            db.close()
            if settings["url"].startswith("rocksdb"):
                return  # a lock that another thread holds inside of RocksDB at the fork is held in the child for ever
            with vk.open(**settings, mode="r") as mine:
                assert mine.get("totals", "a")["n"] == 334
        with db.maintain():
            threads = [threading.Thread(target=work) for work in (read, write)]
            for thread in threads:
                thread.start()
            codes = {in_child(work) for _ in range(8)}
            done.set()
            for thread in threads:
                thread.join()
        assert codes == {5}, codes
        db.refresh()
        planned.check(db)
    """
    assert run(code, settings) == (0, "", "")


def test_multiprocessing_that_forks_says_what_is_wrong(settings: dict[str, Any]) -> None:
    code = """
        db.refresh()
        child = multiprocessing.get_context("fork").Process(target=db.get, args=("items", 1))
        child.start()
        child.join()
        print(child.exitcode)
        db.refresh()
        db.close()
    """
    ended, said, errors = run(code, settings)
    assert (ended, said) == (0, "1\n")
    assert "[VK503] The database" in errors
    assert "Open the database again in this process." in errors


def test_a_child_collects_no_garbage_of_its_parent() -> None:
    """A DuckDB that is ended in a child joins threads that are none, and crashes."""
    code = """
        import gc, os, sys
        from viewkeeper.resources.prepared_statements import PreparedStatements

        gc.disable()
        duck = PreparedStatements(threads=4)
        duck.run("SELECT sum(range) FROM range(30_000_000)")
        duck.itself = duck
        del duck
        child = os.fork()
        if not child:
            gc.collect()
            os._exit(5)
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], cwd=ROOT, timeout=120)
    assert done.returncode == 5
