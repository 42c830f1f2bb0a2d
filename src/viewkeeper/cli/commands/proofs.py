"""`vk verify`, `vk bench`, `vk demo`: see for yourself."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from viewkeeper.cli.options import FORMATS, LANES, Conf, Lane, Master, Output, cluster, one_of, wrong

Scale = Annotated[float, typer.Option(min=0.001, help="TPC-H's scale factor: 1 is a gigabyte.")]
Data = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Where TPC-H's files are kept; a temporary directory if not given.")
]
Seed = Annotated[int, typer.Option(help="Of the random changes.")]
Views = Annotated[str | None, typer.Option(metavar="NUMBERS", help="TPC-H queries, such as 1,3,5. [all]")]


def verify(
    context: typer.Context,
    suite: Annotated[str, typer.Argument(help="tpch: the views' rows; consistency: what readers see meanwhile.")],
    scale: Scale = 0.01,
    batches: Annotated[int, typer.Option(min=0, help="tpch: batches of changes.")] = 5,
    seed: Seed = 1,
    lane: Lane = "auto",
    views: Views = None,
    seconds: Annotated[float, typer.Option(min=1, help="consistency: how long processes write and read.")] = 20,
    strategy: Annotated[str, typer.Option(help="consistency: the strategy of the views.")] = "IMB",
    kill: Annotated[bool, typer.Option("--kill", help="consistency: kill the maintainer now and then.")] = False,
    store: Annotated[
        str, typer.Option(help="lmdb, in a temporary directory, or hbase, that of vk hbase start.")
    ] = "lmdb",
    db: Annotated[str | None, typer.Option(metavar="URL", help="Instead of --store: a new database for it.")] = None,
    data: Data = None,
    master: Master = None,
    conf: Conf = None,
) -> None:
    """Prove that views are right.

    tpch: every view against Spark's own answer after every batch of changes. consistency: writers, readers and the
    maintainer as processes, and every state that anybody saw against those that were.

    The exit code is 1 at the first difference, which is printed.

    Example: vk verify tpch --scale 0.01 --batches 5 --seed 7
    """
    one_of(context, "suite", suite, ("tpch", "consistency"))
    one_of(context, "lane", lane, LANES)
    one_of(context, "store", store, ("lmdb", "hbase"))
    numbers = _numbers(context, views)
    with tempfile.TemporaryDirectory(prefix="vk-verify-") as scratch:
        url = db or (f"lmdb:{scratch}/db" if store == "lmdb" else _hbase_url(scratch))
        spark = cluster(master, conf)
        if suite == "tpch":
            _verify_tpch(url, spark, data, scale, batches, seed, lane, numbers)
        else:
            _verify_consistency(url, spark, scratch, seconds, seed, lane, strategy, kill)


def _verify_tpch(
    url: str, spark: Any, data: Path | None, scale: float, batches: int, seed: int, lane: str, numbers: tuple[int, ...]
) -> None:
    import viewkeeper
    from viewkeeper.cli.hush import hushed
    from viewkeeper.tpch.changes import generate
    from viewkeeper.tpch.verify import verify as run

    with _directory(data) as place:
        files = generate(scale, place)
        with viewkeeper.open(url, spark=spark) as database:
            with hushed():
                session = database._spark()
            found = run(
                database, files, session, batches=batches, seed=seed, lane=lane, numbers=numbers, say=typer.echo
            )
    if found:
        first = found[0]
        typer.echo(f"DIFFERENT: {first.view} after batch {first.batch}, {len(found)} rows", err=True)
        typer.echo(f"  key      {first.key}\n  expected {first.expected}\n  got      {first.got}", err=True)
        raise typer.Exit(1)
    typer.echo(f"{len(numbers)} views equal to Spark's answer after each of {batches} batches")


def _verify_consistency(
    url: str, spark: Any, scratch: str, seconds: float, seed: int, lane: str, strategy: str, kill: bool
) -> None:
    from viewkeeper.cli.hush import hushed
    from viewkeeper.verify.consistency import Plan, verify_consistency

    plan = Plan(seconds=seconds, seed=seed, lane=lane, strategy=strategy, kill=kill)
    with hushed():
        verdict = verify_consistency(url, spark, Path(scratch) / "journals", plan, typer.echo)
    checks = ", ".join(f"{count} {kind}" for kind, count in sorted(verdict.checked.items()))
    typer.echo(f"{verdict.writes} writes; checked: {checks}")
    if not verdict.holds:
        typer.echo(verdict.failures[0] if verdict.failures else "nothing was checked", err=True)
        raise typer.Exit(1)
    typer.echo("every state that was seen is a state that was")


def _hbase_url(scratch: str) -> str:
    """A namespace of its own in the HBase that `vk hbase start` has started."""
    import secrets

    from viewkeeper.cli.hbase import _DATA
    from viewkeeper.errors import StoreError
    from viewkeeper.store.hbase.server import Server

    seen = Server(os.environ.get("VIEWKEEPER_HBASE_DATA") or _DATA).status()
    if not seen.answers:
        raise StoreError("No HBase answers on this machine.", hint="Run: vk hbase start.")
    return f"hbase://{seen.host}:{seen.port}/verify_{secrets.token_hex(4)}?create=true&state={scratch}/state"


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
    """Time batches beside recomputing.

    Recomputing is the same views' queries in DuckDB, in the same run, on this machine.

    Example: vk bench --scale 0.1 --views 3 --sizes 10,1000
    """
    one_of(context, "output", output, FORMATS)
    numbers = _numbers(context, views)
    try:
        counts = [int(n) for n in sizes.split(",")]
    except ValueError:
        raise wrong(context, f"--sizes {sizes} is no list of numbers.") from None
    if min(counts) < 1:
        raise wrong(context, f"--sizes {sizes}: a batch changes at least 1 order.")
    from viewkeeper.cli.bench import bench as run
    from viewkeeper.cli.output import print_rows
    from viewkeeper.tpch.changes import generate

    with _directory(data) as place:
        table = run(generate(scale, place), numbers, counts, repeat, seed)
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

    TPC-H data and five of its queries, or a small shop that one can follow by eye.

    Example: vk demo shop --seconds 10
    """
    one_of(context, "demo", what, ("tpch", "shop"))
    from rich.console import Console

    console = Console(soft_wrap=True)
    if what == "shop":
        from viewkeeper.cli.demo import demo as run

        equal = run(console, url=keep, seconds=seconds, plain=plain)
    else:
        from viewkeeper.cli.demo_tpch import demo as run_tpch

        with _directory(data) as place:
            equal = run_tpch(console, place, url=keep, seconds=seconds, scale=scale, plain=plain)
    if not equal:
        raise typer.Exit(1)


def _numbers(context: typer.Context, views: str | None) -> tuple[int, ...]:
    try:
        numbers = tuple(dict.fromkeys(int(n) for n in views.split(","))) if views else tuple(range(1, 23))
    except ValueError:
        numbers = (0,)
    if not all(1 <= n <= 22 for n in numbers):
        raise wrong(context, f"--views {views}: TPC-H has the queries 1 to 22.")
    return numbers


@contextmanager
def _directory(path: Path | None) -> Iterator[Path]:
    if path is not None:
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="vk-tpch-") as made:
        yield Path(made)
