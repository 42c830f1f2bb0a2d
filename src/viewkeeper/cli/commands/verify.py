"""`vk verify`, `vk bench`, `vk demo`: verification, measurement and demonstration."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from viewkeeper.verify.benchmark_check import Benchmark

from viewkeeper.cli.options import FORMATS, LANES, Conf, Lane, Master, Output, check_choice, spark_session, usage_error

_MAX_SHOWN_ROWS = 10
"""Maximum number of differing rows that are printed for a view."""

Scale = Annotated[float, typer.Option(min=0.001, help="The scale factor: 1 is a gigabyte.")]
Data = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Where the files are kept; a temporary directory if not given.")
]
Seed = Annotated[int, typer.Option(help="Of the random changes.")]
Views = Annotated[str | None, typer.Option(metavar="NUMBERS", help="Queries, such as 1,3,5 or q1,q3,q5. [all]")]


def verify(
    context: typer.Context,
    suite: Annotated[
        str, typer.Argument(help="tpch, tpcds: the views' rows; consistency: what readers see meanwhile.")
    ],
    scale: Scale = 0.01,
    batches: Annotated[int, typer.Option(min=0, help="tpch, tpcds: batches of changes.")] = 5,
    seed: Seed = 1,
    lane: Lane = "auto",
    views: Views = None,
    seconds: Annotated[float, typer.Option(min=1, help="consistency: how long processes write and read.")] = 20,
    strategy: Annotated[str, typer.Option(help="consistency: the strategy of the views.")] = "IMB",
    kill: Annotated[bool, typer.Option("--kill", help="consistency: kill the maintainer now and then.")] = False,
    store: Annotated[
        str, typer.Option(help="lmdb or rocksdb, in a temporary directory, or hbase, that of vk hbase start.")
    ] = "lmdb",
    db: Annotated[str | None, typer.Option(metavar="URL", help="Instead of --store: a new database for it.")] = None,
    data: Data = None,
    master: Master = None,
    conf: Conf = None,
) -> None:
    """Check that views are right.

    tpch, tpcds: every view is compared with Spark's own result after every batch of changes: TPC-H's 22 queries, or
    TPC-DS's 99 (103 views) with changes on all of its 24 tables; its generator is fetched with Maven the first time.
    consistency: writers, readers and the maintainer run as processes, and every state that a process saw is compared
    with the states that existed.

    The exit code is 1 at the first batch after which views differ; their rows are printed.

    Example: vk verify tpch --scale 0.01 --batches 5 --seed 7
    """
    check_choice(context, "suite", suite, ("tpch", "tpcds", "consistency"))
    check_choice(context, "lane", lane, LANES)
    check_choice(context, "store", store, ("lmdb", "rocksdb", "hbase"))
    numbers = _query_numbers(context, views, suite)
    with tempfile.TemporaryDirectory(prefix="vk-verify-") as scratch:
        url = db or _scratch_url(store, scratch)
        spark = spark_session(master, conf)
        if suite == "consistency":
            _verify_consistency(url, spark, scratch, seconds, seed, lane, strategy, kill)
        else:
            _verify_views(suite, url, spark, data, scale, batches, seed, lane, numbers)


def _verify_views(
    suite: str,
    url: str,
    spark: Any,
    data: Path | None,
    scale: float,
    batches: int,
    seed: int,
    lane: str,
    numbers: tuple[str, ...],
) -> None:
    import viewkeeper
    from viewkeeper.cli.progress import quiet_jvm
    from viewkeeper.verify.benchmark_check import verify as run

    benchmark = _find_benchmark(suite)
    views = {f"q{number}": benchmark.views[f"q{number}"] for number in numbers}
    with _data_directory(data) as directory:
        files = benchmark.generate(scale, directory)
        with viewkeeper.open(url, spark=spark) as database:
            with quiet_jvm():
                session = database._spark()
            sizes = {"batches": batches, "seed": seed}
            found = run(database, files, session, benchmark, lane=lane, views=views, log=typer.echo, **sizes)
    for view in dict.fromkeys(difference.view for difference in found):
        view_differences = [difference for difference in found if difference.view == view]
        typer.echo(f"DIFFERENT: {view} after batch {view_differences[0].batch}, {len(view_differences)} rows", err=True)
        for difference in view_differences[:_MAX_SHOWN_ROWS]:
            typer.echo(
                f"  key      {difference.key}\n  expected {difference.expected}\n  got      {difference.actual}",
                err=True,
            )
        if len(view_differences) > _MAX_SHOWN_ROWS:
            typer.echo(f"  and {len(view_differences) - _MAX_SHOWN_ROWS} more", err=True)
    if found:
        raise typer.Exit(1)
    typer.echo(f"{len(views)} views equal to Spark's answer after each of {batches} batches")


def _find_benchmark(name: str) -> Benchmark:
    if name == "tpcds":
        from viewkeeper.workloads.tpcds.changes import TPCDS

        return TPCDS
    from viewkeeper.workloads.tpch.changes import TPCH

    return TPCH


def _verify_consistency(
    url: str, spark: Any, scratch: str, seconds: float, seed: int, lane: str, strategy: str, kill: bool
) -> None:
    from viewkeeper.cli.progress import quiet_jvm
    from viewkeeper.verify.consistency import ConsistencyRun, verify_consistency

    plan = ConsistencyRun(seconds=seconds, seed=seed, lane=lane, strategy=strategy, kill=kill)
    with quiet_jvm():
        verdict = verify_consistency(url, spark, Path(scratch) / "journals", plan, typer.echo)
    checks = ", ".join(f"{count} {kind}" for kind, count in sorted(verdict.check_counts.items()))
    typer.echo(f"{verdict.writes} writes; checked: {checks}")
    if not verdict.is_consistent:
        typer.echo(verdict.failures[0] if verdict.failures else "nothing was checked", err=True)
        raise typer.Exit(1)
    typer.echo("every state that was seen is a state that was")


def _scratch_url(store: str, scratch: str) -> str:
    """The URL of a new, empty database in a store of this scheme; a store outside of this package provides its own."""
    for point in entry_points(group="viewkeeper.scratch", name=store):
        return str(point.load()(scratch))
    return f"{store}:{scratch}/db"


def bench(
    context: typer.Context,
    scale: Scale = 0.01,
    views: Views = "1,3,5",
    sizes: Annotated[
        str,
        typer.Option(
            metavar="NUMBERS",
            help="Orders changed in a batch, with their lines: a third new, a third deleted, a third updated, at least "
            "one of each.",
        ),
    ] = "1,10,100",
    repeat: Annotated[int, typer.Option(min=1, help="Batches of each size; the median counts.")] = 5,
    seed: Seed = 1,
    data: Data = None,
    output: Output = "table",
) -> None:
    """Compare the time of batches with recomputation.

    Recomputation is the same views' queries in DuckDB, in the same run, on this machine.

    Example: vk bench --scale 0.1 --views 3 --sizes 10,1000
    """
    check_choice(context, "output", output, FORMATS)
    numbers = _query_numbers(context, views)
    try:
        counts = [int(n) for n in sizes.split(",")]
    except ValueError:
        raise usage_error(context, f"--sizes {sizes} is no list of numbers.") from None
    if min(counts) < 1:
        raise usage_error(context, f"--sizes {sizes}: a batch changes at least 1 order.")
    from viewkeeper.cli.bench import bench as run
    from viewkeeper.cli.output import print_rows
    from viewkeeper.workloads.tpch.changes import generate

    with _data_directory(data) as directory:
        table = run(generate(scale, directory), [int(n) for n in numbers], counts, repeat, seed)
    print_rows(table.schema, [table], output)


def demo(
    context: typer.Context,
    what: Annotated[str, typer.Argument(help="tpch: five analytical views; shop: a small shop.")] = "tpch",
    seconds: Annotated[float, typer.Option(min=0, help="How long changes are streamed.")] = 30,
    scale: Scale = 0.01,
    plain: Annotated[bool, typer.Option("--plain", help="Lines instead of a live screen.")] = False,
    keep: Annotated[str | None, typer.Option(metavar="URL", help="Keep it in this (new) database.")] = None,
    data: Data = None,
) -> None:
    """Live views on a live screen.

    TPC-H data and five of its queries, or a small shop whose changes are easy to follow.

    Example: vk demo shop --seconds 10
    """
    check_choice(context, "demo", what, ("tpch", "shop"))
    from rich.console import Console

    console = Console(soft_wrap=True)
    if what == "shop":
        from viewkeeper.cli.demo.shop import demo as run

        equal = run(console, url=keep, seconds=seconds, plain=plain)
    else:
        from viewkeeper.cli.demo.tpch import demo as run_tpch

        with _data_directory(data) as directory:
            equal = run_tpch(console, directory, url=keep, seconds=seconds, scale=scale, plain=plain)
    if not equal:
        raise typer.Exit(1)


def _query_numbers(context: typer.Context, views: str | None, suite: str = "tpch") -> tuple[str, ...]:
    """The requested queries, each once. 14 of TPC-DS is 14a and 14b."""
    from viewkeeper.workloads import tpcds, tpch

    all_numbers = tuple(tpcds.QUERIES) if suite == "tpcds" else tuple(str(n) for n in tpch.QUERIES)
    names = [name.strip().removeprefix("q") for name in views.split(",")] if views else all_numbers
    matches = [(name, [n for n in all_numbers if n == name or n in (f"{name}a", f"{name}b")]) for name in names]
    if any(not found for _, found in matches):
        title, last = ("TPC-DS", 99) if suite == "tpcds" else ("TPC-H", 22)
        raise usage_error(context, f"--views {views}: {title} has the queries 1 to {last}.")
    return tuple(dict.fromkeys(number for _, found in matches for number in found))


@contextmanager
def _data_directory(path: Path | None) -> Iterator[Path]:
    if path is not None:
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="vk-tpch-") as directory:
        yield Path(directory)
