"""Fixtures that all tests share. No JVM starts unless a test asks for `spark`; such tests are marked so by it."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# One small JVM and UTC, before anything starts either: the machine is shared, and a laptop's zone must not matter.
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
os.environ["TZ"] = os.environ.get("VK_TZ", "UTC")
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # Spark's workers need this environment

# A shell lets what it runs in the background ignore Ctrl-C, and what that runs, too; there are tests that send it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_SLOW = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much)
settings.register_profile("ci", max_examples=60, deadline=None, derandomize=True, suppress_health_check=_SLOW)
settings.register_profile("deep", max_examples=2_000, deadline=None, suppress_health_check=_SLOW)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

ODD_SESSION = {
    "spark.sql.session.timeZone": "Asia/Tokyo",
    "spark.sql.ansi.enabled": "false",
    "spark.sql.caseSensitive": "true",
    "spark.sql.legacy.timeParserPolicy": "LEGACY",
    "spark.sql.timestampType": "TIMESTAMP_NTZ",
    "spark.sql.decimalOperations.allowPrecisionLoss": "false",
    "spark.sql.groupByOrdinal": "false",
    "spark.sql.orderByOrdinal": "false",
    "spark.sql.groupByAliases": "false",
    "spark.sql.parser.quotedRegexColumnNames": "true",
    "spark.sql.parser.escapedStringLiterals": "true",
    "spark.sql.ansi.doubleQuotedIdentifiers": "true",
    "spark.sql.legacy.literal.pickMinimumPrecision": "false",
    "spark.sql.legacy.sizeOfNull": "true",
    "spark.sql.legacy.followThreeValuedLogicInArrayExists": "false",
    "spark.sql.legacy.castComplexTypesToString.enabled": "true",
    "spark.sql.mapKeyDedupPolicy": "LAST_WIN",
    "spark.sql.optimizer.maxIterations": "90",
}
"""A caller's own settings that mean something else; with VK_SESSION=odd the whole run has them in its context."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test that uses `spark` or `hbase` is marked so, and `-m "not spark and not hbase"` leaves the JVMs out.

    Of several workers one gets all that need HBase, since it is started once; the others' tests stay with their file.
    """
    for item in items:
        uses = getattr(item, "fixturenames", ())
        for server in ("spark", "hbase"):
            if server in uses:
                item.add_marker(server)
        on_hbase = item.get_closest_marker("hbase") is not None
        item.add_marker(pytest.mark.xdist_group("hbase" if on_hbase else item.path.as_posix()))


@pytest.fixture(scope="session")
def hbase(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One HBase for the whole run: that of VK_HBASE (a data directory of `vk hbase start`), else one of its own.

    One that ran before the tests still runs after them. Where HBase cannot be had its tests are skipped with the
    reason, but in CI that is a failure.
    """
    from viewkeeper.errors import MissingDependency
    from viewkeeper_hbase.devserver.server import Server

    server = Server(os.environ.get("VK_HBASE") or tmp_path_factory.mktemp("hbase"))
    ran = server.status().hbase
    try:
        import thriftpy2  # noqa: F401

        server.start(timeout=240)
    except (MissingDependency, ImportError) as missing:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(missing))
    yield server
    if not ran:
        server.stop()


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """One quiet local session for the whole run: two cores, and a task that dies is retried."""
    from pyspark.sql import SparkSession

    from viewkeeper.plan.catalyst import jvm

    session = (
        SparkSession.builder.master("local[2,4]")
        .appName("viewkeeper-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "1g")
        .config(map=jvm.SMALL_HEAP)
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.ansi.enabled", "true")
        .config(map=ODD_SESSION if os.environ.get("VK_SESSION") == "odd" else {})
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture(autouse=True)
def _active(request: pytest.FixtureRequest) -> None:
    """A test finds the session of the run active, whichever the test before has made and left so."""
    if "spark" in request.fixturenames:
        from pyspark.sql import SparkSession

        session = request.getfixturevalue("spark")
        SparkSession._activeSession = session
        session._jvm.SparkSession.setActiveSession(session._jsparkSession)


@pytest.fixture
def make_db(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Opens databases in the test's own directory, by name, and closes them at the end: `make_db("shop", mode="r")`."""
    import viewkeeper

    opened: list[Any] = []

    def make(name: str = "db", **options: Any) -> Any:
        db = viewkeeper.open(f"lmdb:{tmp_path / name}", **options)
        opened.append(db)
        return db

    yield make
    for db in reversed(opened):
        db.close()


@pytest.fixture
def db(make_db: Callable[..., Any]) -> Any:
    """An empty LMDB database."""
    return make_db()


@pytest.fixture
def vk(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, str, str]]:
    """Runs `vk` on a database of the test's own: exit code, output, errors."""
    from viewkeeper.cli import main

    monkeypatch.setenv("VIEWKEEPER_DB", f"lmdb:{tmp_path / 'shop'}")

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as exit_:
            main(list(arguments))
        printed = capsys.readouterr()
        assert isinstance(exit_.value.code, int)
        return exit_.value.code, printed.out, printed.err

    return run
