"""Common options of the commands, and the ways to open a database.

    open_database   the whole engine, for commands that maintain or run SQL
    open_writer     the store only, for commands that write rows (init, put, delete)
    open_reader     the store and the read layer only, for commands that answer at once (get, scan, status, explain)

A command that needs no engine starts in a fraction of a second, because the planner and Spark are not imported for it,
nor pandas, which pyarrow would otherwise import.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from typer._click.exceptions import UsageError

if TYPE_CHECKING:
    from viewkeeper.store.contract.store import Store

_STORES = "lmdb:PATH, rocksdb:PATH, hbase://HOST:PORT/NAMESPACE"
Db = Annotated[
    str,
    typer.Option("--db", envvar="VIEWKEEPER_DB", metavar="URL", help=f"{_STORES}, or a server: http://HOST:PORT."),
]
LocalDb = Annotated[str, typer.Option("--db", envvar="VIEWKEEPER_DB", metavar="URL", help=f"{_STORES}.")]
"""The option of commands that need the database itself, not a server."""
Name = Annotated[str, typer.Argument(help="A table or a view.")]
ViewName = Annotated[str, typer.Argument(metavar="VIEW", help="A materialized view.")]
TableName = Annotated[str, typer.Argument(metavar="TABLE", help="A base table.")]
Lane = Annotated[str, typer.Option(help="Where the work is done: auto, driver or spark.")]
_SUBMIT_VARIABLE = "PYSPARK_GATEWAY_PORT"
"""Environment variable in which `spark-submit` names its JVM to the program that it runs."""
Master = Annotated[str | None, typer.Option(metavar="URL", help="A Spark master to run on, such as spark://host:7077.")]
Conf = Annotated[
    list[str] | None, typer.Option("--conf", metavar="NAME=VALUE", help="A Spark setting; may be repeated.")
]
Budget = Annotated[
    str | None,
    typer.Option(
        "--memory", envvar="VIEWKEEPER_MEMORY", metavar="SIZE", help="What it may take, such as 2GB; then it spills."
    ),
]
Output = Annotated[
    str, typer.Option("--output", "-o", metavar="FORMAT", help="table, json (an object a line), csv or arrow.")
]

ReportOutput = Annotated[
    str, typer.Option("--output", "-o", metavar="FORMAT", help="table, or json (an object a line).")
]

Stale = Annotated[bool, typer.Option("--stale", help="Of a suspended view its old rows, which else is an error.")]

FORMATS = ("table", "json", "csv", "arrow")
REPORT_FORMATS = FORMATS[:2]
"""The formats of commands that print a report instead of rows."""
LANES = ("auto", "driver", "spark")


def check_choice(context: typer.Context, option: str, value: str, allowed: tuple[str, ...]) -> str:
    """The value, or a usage error that lists the allowed values."""
    if value not in allowed:
        raise UsageError(f"There is no {option} {value!r}: {', '.join(allowed)}.", cast(Any, context))
    return value


def usage_error(context: typer.Context, message: str) -> UsageError:
    """The error of a wrong call, to be raised: one line and exit code 2."""
    return UsageError(message, cast(Any, context))


def open_database(url: str, *, create: bool = False, spark: Any = None, memory: str | None = None) -> Any:
    """Open the database for writing. It must exist, unless the command may create it."""
    import viewkeeper
    from viewkeeper.cli.progress import show_load_progress

    if not create:
        with open_reader(url):
            pass
    return viewkeeper.open(url, spark=spark, memory=memory, progress=show_load_progress)


@contextmanager
def open_writer(url: str, *, create: bool = False) -> Iterator[Store]:
    """Open the database's store for writing. It must exist, unless the command may create it."""
    if not create:
        with open_reader(url):
            pass
    with _opened_store(url, "w") as store:
        yield store


@contextmanager
def open_reader(url: str) -> Iterator[Store]:
    """Open the database's store for reading."""
    with _opened_store(url, "r") as store:
        yield store


@contextmanager
def _opened_store(url: str, mode: str) -> Iterator[Store]:
    from viewkeeper.store.registry import open_store

    store = open_store(url, mode)
    try:
        yield store
    finally:
        store.close()


class _PandasBlocker(MetaPathFinder):
    """An import finder that hides pandas."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> None:
        if name == "pandas":
            raise ImportError(name)


def without_pandas() -> None:
    """Make pyarrow look for pandas now and find none: otherwise its first list of values imports pandas, for 0.3 s.

    Only for a process that runs one command which creates no frames.
    """
    import pyarrow

    finder = _PandasBlocker()
    sys.meta_path.insert(0, finder)
    try:
        pyarrow.array([None])
    finally:
        sys.meta_path.remove(finder)


def spark_session(master: str | None, settings: list[str] | None) -> Any:
    """The session for `--master` and `--conf`; None: a local session, started when it is needed.

    A command that `spark-submit` runs is a Spark application already, and uses its session.
    """
    from viewkeeper.cli.progress import warn_if_no_executors

    if _SUBMIT_VARIABLE in os.environ and master is None and not settings:
        from pyspark.sql import SparkSession

        spark = SparkSession.builder.appName("viewkeeper").getOrCreate()
        warn_if_no_executors(spark)
        return spark
    if master is None and not settings:
        return None
    from viewkeeper.errors import BadValue
    from viewkeeper.spark import session

    pairs = [setting.partition("=") for setting in settings or ()]
    if bad := [name for name, equals, _ in pairs if not equals or not name]:
        raise BadValue(f"--conf {bad[0]} is no setting.", hint="Write it as --conf name=value.")
    spark = session(master, {name: value for name, _, value in pairs})
    warn_if_no_executors(spark)
    return spark
