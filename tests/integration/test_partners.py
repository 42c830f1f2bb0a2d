"""A batch that other processes take part in is the batch, whatever becomes of them."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.partners import always

from viewkeeper.runtime.cost_model import ONE_THREAD, SEVERAL_PROCESSES, SEVERAL_THREADS
from viewkeeper.runtime.local import scheduler as local_scheduler
from viewkeeper.runtime.processes import pool, scheduler

VIEWS = {
    "by_category": "SELECT category, count(*) AS n, sum(price) AS total FROM items GROUP BY category",
    "dear": "SELECT category, max(price) AS most, min(price) AS least FROM items GROUP BY category",
    "sold": "SELECT i.category, sum(s.pieces * i.price) AS s FROM sales s JOIN items i ON s.item = i.id GROUP BY 1",
    "first": "SELECT * FROM (SELECT id, price, rank() OVER (ORDER BY price DESC, id) AS r FROM items) WHERE r <= 3",
    "unsold": "SELECT id FROM items i WHERE NOT EXISTS (SELECT 1 FROM sales s WHERE s.item = i.id)",
    "pairs": "SELECT a.id AS x, b.id AS y FROM items a JOIN items b ON a.category = b.category AND a.id < b.id",
}


def made(db: Any) -> Any:
    db.sql("CREATE TABLE items (id BIGINT, category STRING, price DECIMAL(12,2), PRIMARY KEY (id))")
    db.sql("CREATE TABLE sales (id BIGINT, item BIGINT, pieces INT, PRIMARY KEY (id))")
    db.create_views(VIEWS)
    return db


@pytest.fixture
def shop(make_db: Callable[..., Any], spark: Any) -> Any:
    return made(make_db("shop", spark=spark))


def change(db: Any, number: int) -> None:
    """A batch's changes: puts of new and of old rows, and deletes."""
    kinds = ["toys", "books", None, "food"]
    rows = [
        {"id": i, "category": kinds[(i + number) % 4], "price": Decimal(i * 7 % 50) / 4}
        for i in range(number, 20 + number)
    ]
    db.put("items", rows)
    db.put("sales", [{"id": i, "item": (i * number) % 25, "pieces": i % 5} for i in range(number * 3, number * 3 + 9)])
    db.delete("items", [number * 2])


def everything(db: Any) -> dict[str, list[str]]:
    return {view: sorted(map(repr, db.read(view).to_pylist())) for view in VIEWS}


def partner_of(db: Any) -> psutil.Process:
    [each] = db._acquire_maintainer().executor.local_executor._process_scheduler._processes._processes
    assert each.warm_tokens
    return psutil.Process(each._process.pid)


@pytest.mark.spark
@pytest.mark.parametrize("processes", [2, 3])
def test_batches_with_partners_are_those_without(
    shop: Any, make_db: Callable[..., Any], spark: Any, monkeypatch: pytest.MonkeyPatch, processes: int
) -> None:
    other = made(make_db("other", spark=spark, threads=1))
    for number in range(1, 4):
        change(other, number)
        other.refresh("driver")
    expected = everything(other)
    ran = always(monkeypatch, processes)
    for number in range(1, 4):
        change(shop, number)
        shop.refresh("driver")
    assert ran == [SEVERAL_PROCESSES] * 3
    assert everything(shop) == expected
    # What partners have written is the state that the next batches go on with, whoever runs them.
    monkeypatch.undo()
    for db in (shop, other):
        change(db, 4)
        db.refresh("driver")
    assert everything(shop) == everything(other)
    assert shop.audit(*VIEWS).is_right


@pytest.mark.spark
def test_partners_come_by_themselves_when_batches_are_long(shop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are started after the second batch alike, rehearse, and are tried; the report says who ran a batch."""
    monkeypatch.setattr(local_scheduler, "_MIN_THREADED_OPERATORS", 1)
    monkeypatch.setattr(scheduler, "_MIN_OPERATOR_SECONDS", 0.0)
    told: list[str] = []
    deadline = time.monotonic() + 60
    while not (told and SEVERAL_PROCESSES in told[-1]) and time.monotonic() < deadline:
        change(shop, len(told) % 5 + 1)
        told.append(shop.refresh("driver").why)
        time.sleep(0.1)
    assert told[0] == f"it was asked for; run by {SEVERAL_THREADS}"
    assert told[-1] == f"it was asked for; run by {SEVERAL_PROCESSES}"
    assert shop.status().recent["lane"] == f"driver: {told[-1]}"
    assert shop.audit(*VIEWS).is_right


@pytest.mark.spark
def test_one_thread_is_no_process_more(
    make_db: Callable[..., Any], spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_scheduler, "_MIN_THREADED_OPERATORS", 1)
    monkeypatch.setattr(scheduler, "_MIN_OPERATOR_SECONDS", 0.0)
    shop = made(make_db("shop", spark=spark, threads=1))
    for number in range(1, 5):
        change(shop, number)
        shop.refresh("driver")
    assert shop._acquire_maintainer().executor.local_executor._process_scheduler._processes._processes == []


@pytest.mark.spark
def test_views_that_come_and_go_between_batches(shop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = always(monkeypatch)
    change(shop, 1)
    shop.refresh("driver")
    shop.sql("CREATE MATERIALIZED VIEW late AS SELECT category, avg(price) AS a FROM items GROUP BY category")
    shop.sql("DROP MATERIALIZED VIEW dear")
    change(shop, 2)
    shop.refresh("driver")
    change(shop, 3)
    shop.refresh("driver")
    assert ran == [SEVERAL_PROCESSES] * 3
    assert shop.audit(*(VIEWS.keys() - {"dear"}), "late").is_right


@pytest.mark.spark
@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM])
def test_a_partner_that_dies_costs_a_batch_nothing_but_time(
    shop: Any, monkeypatch: pytest.MonkeyPatch, ending: signal.Signals
) -> None:
    ran = always(monkeypatch)
    change(shop, 1)
    shop.refresh("driver")
    partner = partner_of(shop)
    partner.suspend()
    threading.Timer(1.0, lambda: (partner.send_signal(ending), partner.resume())).start()
    change(shop, 2)
    shop.refresh("driver")  # it is at work when it dies
    assert ran == [SEVERAL_PROCESSES, ONE_THREAD]
    change(shop, 3)
    shop.refresh("driver")  # by another one
    assert ran == [SEVERAL_PROCESSES, ONE_THREAD, SEVERAL_PROCESSES]
    assert shop.audit(*VIEWS).is_right


@pytest.mark.spark
def test_a_partner_that_does_not_answer_is_ended(shop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = always(monkeypatch)
    change(shop, 1)
    shop.refresh("driver")  # on a busy machine that takes it longer
    monkeypatch.setattr(pool, "_MIN_TIMEOUT", 0.5)
    partner = partner_of(shop)
    partner.suspend()
    change(shop, 2)
    shop.refresh("driver")
    assert ran == [SEVERAL_PROCESSES, ONE_THREAD]
    assert not partner.is_running()
    assert shop.audit(*VIEWS).is_right


@pytest.mark.spark
def test_an_answer_that_comes_late_is_nobodys(shop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is interrupted when work is on its way, or is answered what was not asked, goes on without partners."""
    ran = always(monkeypatch)
    given: list[Any] = []
    run = pool.ProcessPool.run
    monkeypatch.setattr(
        pool.ProcessPool, "run", lambda self, tasks, mine: (given.append(tasks), run(self, tasks, mine))[1]
    )
    change(shop, 1)
    shop.refresh("driver")
    scheduler_of = shop._acquire_maintainer().executor.local_executor._process_scheduler
    send = pool.send

    def interrupted(*args: Any) -> None:
        send(*args)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(pool, "send", interrupted)
        with pytest.raises(KeyboardInterrupt):
            scheduler_of._processes.warm_up(given[0])
    assert scheduler_of._processes._processes == []
    change(shop, 2)
    shop.refresh("driver")
    [each] = scheduler_of._processes._processes
    each.send(given[0][0]._replace(request=replace(given[0][0].request, number=99, is_warm_up=True)))
    each._request = None  # as if nobody knew of it
    change(shop, 3)
    shop.refresh("driver")
    assert ran == [SEVERAL_PROCESSES, SEVERAL_PROCESSES, ONE_THREAD]
    assert shop.audit(*VIEWS).is_right


@pytest.mark.spark
def test_a_program_that_cannot_be_started_is_done_without(shop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = always(monkeypatch)
    monkeypatch.setattr(pool, "_PROGRAM", "raise SystemExit(3)")
    for number in range(1, 6):
        change(shop, number)
        shop.refresh("driver")
    assert SEVERAL_PROCESSES not in ran
    assert shop.audit(*VIEWS).is_right


@pytest.mark.spark
def test_partners_that_always_fail_are_seldom_tried(shop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_scheduler, "_MIN_THREADED_OPERATORS", 1)
    monkeypatch.setattr(scheduler, "_MIN_OPERATOR_SECONDS", 0.0)
    broken = "from viewkeeper.runtime.processes import worker; worker._run_request = None; "
    monkeypatch.setattr(pool, "_PROGRAM", broken + pool._PROGRAM)
    tried: list[int] = []
    run = pool.ProcessPool.run
    monkeypatch.setattr(pool.ProcessPool, "run", lambda *args: (tried.append(1), run(*args))[1])
    for number in range(100):
        price = Decimal(number) / 4
        shop.put("items", [{"id": i, "category": "toys", "price": price + i % 7} for i in range(20)])
        shop.refresh("driver")
        if tried and len(tried) + 12 < number:
            break
        time.sleep(0.05)
    assert len(tried) == 1
    assert shop.audit(*VIEWS).is_right


@pytest.mark.spark
def test_a_view_that_fails_at_a_partner_is_suspended_alone(shop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = always(monkeypatch)
    for name in ("inverse", "opposite"):  # one for each
        sign = "" if name == "inverse" else "-"
        shop.sql(f"CREATE MATERIALIZED VIEW {name} AS SELECT category, sum({sign}1 / pieces) AS s "
                 "FROM sales JOIN items ON item = items.id GROUP BY category")  # fmt: skip
    change(shop, 1)
    report = shop.refresh("driver")
    assert set(report.suspended) == {"inverse", "opposite"}
    assert "sales" in str(report.suspended["inverse"])
    assert shop.audit(*VIEWS).is_right
    change(shop, 2)
    shop.refresh("driver")
    assert ran[-1] == SEVERAL_PROCESSES
    assert shop.audit(*VIEWS).is_right


@pytest.mark.spark
def test_state_that_a_partner_finds_damaged_is_mended(
    shop: Any, make_db: Callable[..., Any], spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    always(monkeypatch)
    for number in (1, 2):
        change(shop, number)
        shop.refresh("driver")
    state = Path(str(shop._acquire_maintainer().executor.state.directory))
    shop.close()
    for file in state.glob("b*.vkr"):
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 0xFF
        file.write_bytes(data)
    again = make_db("shop", spark=spark)
    change(again, 3)
    again.refresh("driver")
    assert again.audit(*VIEWS).is_right


@pytest.mark.spark
def test_partners_end_with_their_maintainer(shop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    always(monkeypatch)
    change(shop, 1)
    shop.refresh("driver")
    partner = partner_of(shop)
    assert partner.is_running()
    descriptors = len([*Path("/proc/self/fd").iterdir()])
    shop.close()
    assert not partner.is_running()
    assert len([*Path("/proc/self/fd").iterdir()]) < descriptors


@pytest.mark.spark
def test_a_maintainer_that_is_killed_leaves_no_partner_and_a_right_database(
    shop: Any, make_db: Callable[..., Any], spark: Any, tmp_path: Path
) -> None:
    shop.close()
    program = [sys.executable, "-c", _MAINTAINS, f"lmdb:{tmp_path / 'shop'}"]
    with subprocess.Popen(program, cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, text=True) as maintainer:
        assert maintainer.stdout is not None
        partner = psutil.Process(int(maintainer.stdout.readline()))
        time.sleep(0.4)
        maintainer.kill()
    partner.wait(60)
    again = make_db("shop", spark=spark)
    change(again, 5)
    again.refresh("driver")
    assert again.audit(*VIEWS).is_right


_MAINTAINS = """
import sys
import pytest
import viewkeeper
from tests.integration.test_partners import change, partner_of
from tests.partners import always

always(pytest.MonkeyPatch())
db = viewkeeper.open(sys.argv[1])
for number in range(1, 100_000):
    change(db, number % 7 + 1)
    db.refresh("driver")
    if number == 2:
        print(partner_of(db).pid, flush=True)
"""


@pytest.mark.spark
def test_files_that_were_removed_are_let_go_of(shop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A partner without work holds no space of files that merges have replaced."""
    sooner = "from viewkeeper.runtime.processes import worker; worker._POLL_INTERVAL = 0.2; "
    monkeypatch.setattr(pool, "_PROGRAM", sooner + pool._PROGRAM)
    always(monkeypatch)
    for number in range(1, 9):
        change(shop, number)
        shop.refresh("driver")
    deadline = time.monotonic() + 30
    held = [1]
    while held and time.monotonic() < deadline:
        time.sleep(0.2)
        maps = Path(f"/proc/{partner_of(shop).pid}/maps").read_text().splitlines()
        held = [line for line in maps if ".vkr" in line and line.endswith("(deleted)")]
    assert not held
