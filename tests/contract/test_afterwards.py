"""What comes after publication never fails the batch: a fault at every step of it, for each store and state directory.

The report, the log, `status` and `doctor` say what failed while the published batch counts, and it is done as soon as
it can be. A state directory behind a URL is a real one of pyarrow's file systems; refusing is what is put before it.
"""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.contract.conftest import planned_shop
from tests.contract.planned import BOSSES, DEAR, check, fill, item

from viewkeeper import failpoints
from viewkeeper.commit import cleanup, compactor
from viewkeeper.database import Database
from viewkeeper.errors import PublicationUnknown, StoreError
from viewkeeper.resources import unlisted_files
from viewkeeper.resources.directory import StateDirectory
from viewkeeper.state import open_state

KINDS = ["lmdb", "rocksdb", "atomic rows only", "atomic rows only, state behind a URL"]
REAL = pytest.param("hbase", marks=[pytest.mark.hbase, pytest.mark.deep])
MANY = ["lmdb", *(pytest.param(kind, marks=pytest.mark.deep) for kind in KINDS[1:]), REAL]
"""For tests of many cases: all of them on every store in the deep profile only."""


@pytest.fixture(params=[*KINDS, REAL])
def shop(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    monkeypatch.setattr(cleanup, "_MIN_INTERVAL", 0.0)
    with planned_shop(request, tmp_path, monkeypatch) as db:
        fill(db, 30, "totals")
        yield db


def told(db: Database, why: str) -> None:
    """Status and doctor say that clean-up failed, and how."""
    afterwards = db.status().afterwards
    assert afterwards is not None
    assert why in afterwards
    [finding] = [f for f in db.doctor().findings if f.check == "clean-up"]
    assert not finding.ok
    assert why in finding.message


def clean(db: Database) -> None:
    assert db.status().afterwards is None
    assert all(f.check != "clean-up" for f in db.doctor().findings)


@pytest.mark.parametrize(
    "point",
    ["commit.4.after", "commit.5.merge", "commit.5.truncate", "commit.5.truncate.middle", "commit.5.collect"],
)
def test_a_step_after_publication_that_fails(shop: Database, point: str, caplog: pytest.LogCaptureFixture) -> None:
    if point == "commit.5.truncate.middle" and not shop._store.capabilities.before_images:
        pytest.skip("HBase cuts its own log")
    for step in range(3):
        shop.put("items", [item(step, 100 + step)])
        before = shop.status().epoch
        with failpoints.fail_at(point, errno.EIO), caplog.at_level(logging.WARNING, "viewkeeper"):
            report = shop.refresh()
        assert report.epoch == before + 1
        assert report.changes
        assert any("Input/output error" in failed for failed in report.afterwards)
        assert shop.status().epoch == before + 1
        check(shop)
        told(shop, "Input/output error")
    assert len([r for r in caplog.records if "after a published batch" in r.getMessage()]) == 1, "said once"
    shop.put("items", [item(1, 7)])
    assert shop.refresh().afterwards == ()
    check(shop)
    clean(shop)


def _refused(*_: Any, **__: Any) -> Any:
    raise StoreError("DELETE was refused.", hint="")


def test_state_whose_files_cannot_be_deleted(shop: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """As an S3 bucket does for which DELETE is not granted: from the first batch on, and when it is opened again."""
    with monkeypatch.context() as denied:
        denied.setattr(StateDirectory, "remove", _refused)
        denied.setattr(
            compactor, "MAX_UNMERGED_RUNS", 0
        )  # each batch waits for the merge before it, which leaves files
        for step in range(12):
            shop.put("items", [item(step, 50 + step)])
            before = shop.status().epoch
            report = shop.refresh()
            assert report.epoch == before + 1
            check(shop)
        told(shop, "DELETE was refused")
        shop._maintainer_ref.end()
        shop.put("items", [item(1, 7)])
        assert shop.refresh().changes
        shop.sql(f"CREATE MATERIALIZED VIEW dear AS {DEAR}")
        shop.sql("DROP MATERIALIZED VIEW dear")
        told(shop, "DELETE was refused")
    shop._acquire_maintainer().publisher.state.wait_for_collection()  # files are removed in the background
    shop.put("items", [item(2, 7)])
    assert shop.refresh().afterwards == ()
    check(shop)
    clean(shop)
    shop._acquire_maintainer().publisher.state.wait_for_collection()
    listed = (
        shop._acquire_maintainer().publisher.state.manifest.files()
        | shop._acquire_maintainer().publisher.compactor.files
    )
    assert set(StateDirectory(shop._store.state_path).list_names("b*.vkr")) <= listed


@pytest.mark.parametrize("shop", MANY, indirect=True)
def test_files_go_beside_what_comes_next_and_before_the_maintainer_ends(
    shop: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove, going, goes = StateDirectory.remove, threading.Event(), threading.Event()

    def slowly(directory: StateDirectory, name: str) -> None:
        if name.endswith(".vkr"):
            going.set()
            goes.wait(60)
        remove(directory, name)

    monkeypatch.setattr(StateDirectory, "remove", slowly)
    monkeypatch.setattr(
        compactor, "MAX_UNMERGED_RUNS", 0
    )  # each batch waits for the merge before it, which leaves files
    steps = 0
    while not going.is_set():
        shop.put("items", [item(steps, 50 + steps)])
        assert shop.refresh().afterwards == ()
        steps += 1
        assert steps < 60
    for step in range(3):  # these have the same garbage before them, which is on its way already
        shop.put("items", [item(step, 30 + step)])
        assert shop.refresh().afterwards == ()
        check(shop)
    publisher = shop._acquire_maintainer().publisher
    listed = publisher.state.manifest.files()
    assert listed < set(publisher.state.directory.list_names("b*.vkr"))
    ending = threading.Thread(target=shop._maintainer_ref.end)
    ending.start()
    ending.join(0.2)
    assert ending.is_alive()
    goes.set()
    ending.join(60)
    assert not ending.is_alive()
    there = set(publisher.state.directory.list_names("b*.vkr"))
    assert listed <= there
    assert shop.refresh().afterwards == ()
    check(shop)
    clean(shop)


def test_the_last_batch_before_the_end_tells_of_files_that_cannot_be_deleted(
    shop: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody comes after it who would."""
    maintainer = shop._acquire_maintainer()
    state = maintainer.publisher.state
    orphan = state.directory / "b1-dead.vkr"
    orphan.write_bytes(b"")
    with monkeypatch.context() as denied:
        denied.setattr(StateDirectory, "remove", _refused)
        maintainer.cleanup.after_batch((), force=True)
        shop._maintainer_ref.end()
        told(shop, "DELETE was refused")
        unlisted_files._cached_collector.cache_clear()  # another process knows nothing of it but the note
        shop._acquire_maintainer()
        told(shop, "DELETE was refused")
        shop._maintainer_ref.end()
    shop.refresh()
    shop._acquire_maintainer().publisher.state.wait_for_collection()
    assert not orphan.exists()


@pytest.mark.parametrize("shop", ["lmdb", "rocksdb"], indirect=True)
def test_a_file_that_goes_while_it_is_looked_at_is_no_damage(shop: Database) -> None:
    state = Path(shop._store.state_path)
    for place in (state.parent, state):
        place.chmod(0o755)
    (state / "b1-gone.vkr").symlink_to(state / "nothing")  # listed, and not there
    assert [f.message for f in shop.doctor().findings if f.check == "disk space"]
    clean(shop)


@pytest.mark.parametrize("shop", MANY, indirect=True)
@pytest.mark.parametrize("point", ["merge.write.before", "merge.write.after", "merge.adopted"])
def test_a_merge_that_fails_fails_no_batch(shop: Database, monkeypatch: pytest.MonkeyPatch, point: str) -> None:
    monkeypatch.setattr(compactor, "MAX_UNMERGED_RUNS", 0)  # each batch waits for the merge before it
    monkeypatch.setattr(compactor, "choose_merges", lambda rows: len(rows) if len(rows) > 1 else 0)
    with failpoints.fail_at(point, errno.ENOSPC):
        for step in range(4):
            shop.put("items", [item(step, 30 + step)])
            report = shop.refresh()
            assert report.changes
        assert any("merging" in failed for failed in report.afterwards)
        told(shop, "No space left")
        check(shop)
    for step in range(3):
        shop.put("items", [item(step, 60 + step)])
        shop.refresh()
    check(shop)
    clean(shop)


@pytest.mark.parametrize("shop", MANY, indirect=True)
def test_a_view_that_is_dropped_before_its_runs_are_merged(shop: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """The merge's thread opens them, later: nobody lists them any more, and nothing is damaged."""
    shop.sql(f"CREATE MATERIALIZED VIEW bosses AS {BOSSES}")
    monkeypatch.setattr(compactor, "choose_merges", lambda rows: len(rows) if len(rows) > 1 else 0)
    monkeypatch.setattr(open_state, "MAX_IN_MEMORY_ROWS", 0)  # as if every run was long
    opens, begun, dropped = compactor.run_parallel, threading.Event(), threading.Event()

    def opened(*given: Any) -> Any:
        begun.set()
        dropped.wait(60)
        return opens(*given)

    monkeypatch.setattr(compactor, "run_parallel", opened)
    for step in range(3):
        shop.put("items", [item(n, 30 + step) for n in range(30)])
        shop.refresh()
    assert begun.wait(60)
    shop.sql("DROP MATERIALIZED VIEW bosses")
    shop.put("items", [item(1, 50)])
    assert shop.refresh().afterwards == ()
    dropped.set()
    for step in range(3):
        shop.put("items", [item(step, 60 + step)])
        shop._acquire_maintainer().publisher.compactor._thread.submit(int).result(60)  # the merge has ended
        assert shop.refresh().afterwards == ()
    check(shop)
    clean(shop)


@pytest.mark.parametrize("shop", MANY, indirect=True)
@pytest.mark.parametrize("statement", ["create", "replace", "drop", "suspend", "drop table"])
@pytest.mark.parametrize("broken", ["drop_rows", "truncate", "put_note", "forget", "points"])
def test_a_statement_whose_clean_up_fails(
    shop: Database, monkeypatch: pytest.MonkeyPatch, statement: str, broken: str
) -> None:
    """The statement has happened, and whatever it left is cleaned up by the next batches, or the next maintainer."""
    if statement != "create":
        shop.sql(f"CREATE MATERIALIZED VIEW dear AS {DEAR}")
    if statement == "drop table":
        shop.sql("CREATE TABLE more (a INT, PRIMARY KEY (a))")
        shop.put("more", {"a": 1})
    text = {
        "create": f"CREATE MATERIALIZED VIEW dear AS {DEAR}",
        "replace": f"CREATE OR REPLACE MATERIALIZED VIEW dear AS {BOSSES}",
        "drop": "DROP MATERIALIZED VIEW dear",
        "suspend": "ALTER MATERIALIZED VIEW dear SUSPEND",
        "drop table": "DROP TABLE more",
    }[statement]
    table = shop._catalog().find("more" if statement == "drop table" else "dear")
    before = shop.status().epoch
    with monkeypatch.context() as fault:
        if broken == "forget":
            fault.setattr("viewkeeper.capture.partition_store.PartitionStore.delete_partitions", _refused)
        elif broken == "points":
            fault.setattr(failpoints, "hit", _after_publication(failpoints.hit))
        else:
            fault.setattr(shop._store, broken, _refused)
        shop.sql(text)
        assert shop.status().epoch == before + (statement != "drop table")
        found = shop._catalog().find("more" if statement == "drop table" else "dear")
        assert (found is None) == statement.startswith("drop")
        if broken == "drop_rows" and statement in ("replace", "drop", "drop table"):
            told(shop, "DELETE was refused")
            shop._maintainer_ref.end()
    shop.put("items", [item(3, 9)])
    assert shop.refresh().afterwards == ()
    check(shop)
    clean(shop)
    if table is not None and statement in ("replace", "drop", "drop table"):
        gone = table if statement == "drop table" else table.table  # type: ignore[union-attr]
        assert shop._store.count(gone) == 0  # type: ignore[arg-type]


def _after_publication(point: Callable[[str], None]) -> Callable[[str], None]:
    after = ("commit.4.after", "commit.5.", "view.", "mend.after")

    def failing(name: str) -> None:
        point(name)
        if name.startswith(after) and name != "view.planned":
            raise OSError(errno.EIO, "Input/output error")

    return failing


def test_a_commit_that_fails_after_it_has_happened_is_a_published_batch(
    shop: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = shop._store.commit

    def fails(*args: Any) -> None:
        commit(*args)
        raise StoreError("The answer was lost.")

    shop.put("items", [item(3, 9)])
    before = shop.status().epoch
    with monkeypatch.context() as fault:
        fault.setattr(shop._store, "commit", fails)
        report = shop.refresh()
    assert report.epoch == shop.status().epoch == before + 1
    assert any("The answer was lost" in failed for failed in report.afterwards)
    check(shop)
    shop.put("items", [item(4, 9)])
    assert shop.refresh().afterwards == ()
    check(shop)
    clean(shop)


@pytest.mark.parametrize("happens", [True, False])
def test_a_commit_of_which_nobody_knows_says_so_and_is_settled_by_the_next_batch(
    shop: Database, monkeypatch: pytest.MonkeyPatch, happens: bool
) -> None:
    maintainer = shop._acquire_maintainer()
    commit, published = shop._store.commit, shop._store.published_batch
    silent: list[bool] = []

    def fails(*args: Any) -> None:
        if happens:
            commit(*args)
        silent.append(True)
        raise StoreError("The answer was lost.")

    def asked() -> Any:
        if silent:
            raise StoreError("Nobody answers.")
        return published()

    shop.put("items", [item(3, 9)])
    before = maintainer.publisher.batch.number
    with monkeypatch.context() as fault:
        fault.setattr(shop._store, "commit", fails)
        fault.setattr(shop._store, "published_batch", asked)
        with pytest.raises(PublicationUnknown, match=r"not known.*The answer was lost.*Nobody answers"):
            shop.refresh()
    assert shop.status().epoch == before + happens
    shop.refresh()
    assert shop.status().epoch == before + 1
    check(shop)


def test_a_commit_that_did_not_happen_is_the_error_it_was(shop: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.put("items", [item(3, 9)])
    before = shop.status().epoch
    with monkeypatch.context() as fault:
        fault.setattr(shop._store, "commit", _refused)
        with pytest.raises(StoreError, match="DELETE was refused") as refused:
            shop.refresh()
    assert not isinstance(refused.value, PublicationUnknown)
    assert shop.status().epoch == before
    shop.refresh()
    check(shop)
