"""`vk audit`, `vk doctor`, `vk backup`, `vk restore`: correctness of the views, health and safety of the database."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from viewkeeper.cli.options import (
    REPORT_FORMATS,
    Budget,
    Conf,
    LocalDb,
    Master,
    ReportOutput,
    check_choice,
    open_database,
    open_reader,
    spark_session,
)


def audit(
    context: typer.Context,
    db: LocalDb,
    views: Annotated[list[str] | None, typer.Argument(metavar="[VIEW]...", help="All views if none is named.")] = None,
    sample: Annotated[int | None, typer.Option(min=1, help="Compare about so many keys of each view.")] = None,
    repair: Annotated[
        bool, typer.Option("--repair", help="Make views that differ anew; only rows that differ are written.")
    ] = False,
    output: ReportOutput = "table",
    memory: Budget = None,
    master: Master = None,
    conf: Conf = None,
) -> None:
    """Compare views with their queries.

    Spark recomputes each view's SQL over the tables at one published batch. The first keys that differ are printed,
    with the row of the query and the row of the view.

    The exit code is 1 if a view differs and was not repaired, or could not be compared; the advice for each such view
    is printed.

    Example: vk audit by_category --sample 1000 --db lmdb:./shop
    """
    check_choice(context, "output", output, REPORT_FORMATS)
    from viewkeeper.cli.output import json_line
    from viewkeeper.cli.progress import quiet_jvm

    with open_database(db, spark=spark_session(master, conf), memory=memory) as database, quiet_jvm():
        report = database.audit(*(views or ()), sample=sample, repair=repair)
    if output == "json":
        typer.echo(json_line(report.to_json()))
    else:
        _print_audit(report)
    if not report.is_right:
        raise typer.Exit(1)


def _print_audit(report: Any) -> None:
    from viewkeeper.cli.output import align_rows, value_text

    def row(values: Any) -> str:
        return "no row" if values is None else "  ".join(f"{k} {value_text(v)}" for k, v in values.items())

    def outcome(view: Any) -> str:
        if view.repaired or (view.is_wrong and view.remaining is not None):
            return "repaired" if view.repaired else "NOT repaired"
        return str(view.skipped or ("FAILED" if view.failed else ""))

    rows: list[list[Any]] = [["view", "rows", "differences", ""]]
    rows += [[v.view, v.rows, v.differences, outcome(v)] for v in report.views]
    typer.echo("\n".join(align_rows(rows)))
    for view in report.views:
        for found in view.examples:
            typer.echo(
                f"{view.view}: expected {row(found.expected)}\n{' ' * len(view.view)}  found    {row(found.found)}"
            )
    typer.echo(f"batch {report.epoch}, {report.seconds:.1f} s")
    for view in report.views:
        if view.is_wrong:
            typer.echo(f"{view.view}: {view.advice}", err=True)


def doctor(context: typer.Context, db: LocalDb, output: ReportOutput = "table") -> None:
    """Look for damage and trouble ahead.

    Formats, versions, checksums of every record, log entry and state file, orphaned files, log retention, disk space,
    permissions, suspended views and the last audit, with advice for each problem. It changes nothing.

    The exit code is 1 if something is wrong.

    Example: vk doctor --db lmdb:./shop
    """
    check_choice(context, "output", output, REPORT_FORMATS)
    from viewkeeper.cli.output import align_rows, json_line

    with open_reader(db) as store:
        from viewkeeper.read.audit.doctor import examine

        report = examine(store)
    if output == "json":
        typer.echo(json_line(report.to_json()))
    else:
        lines = align_rows([["ok" if f.ok else "WRONG", f.check, f.message] for f in report.findings])
        for finding, line in zip(report.findings, lines, strict=True):
            typer.echo(line)
            if finding.advice:
                typer.echo(f"       → {finding.advice}")
    if not report.healthy:
        raise typer.Exit(1)


def backup(
    db: LocalDb,
    directory: Annotated[Path, typer.Argument(help="Where the copy goes: a directory that is not there yet.")],
) -> None:
    """Copy the database while writers and the maintainer go on.

    The copy is the database as it was at one moment, views and their state included. It is a complete database: it can
    be opened, read and audited in place. An interrupted backup leaves nothing.

    Example: vk backup ./shop-monday --db lmdb:./shop
    """
    from viewkeeper.commit.backup import back_up

    with open_reader(db) as store, _show_copy_progress("backing up") as progress:
        size = back_up(store, directory, progress)
    typer.echo(f"{directory}: {size / 1e6:.1f} MB")


def restore(db: LocalDb, directory: Annotated[Path, typer.Argument(help="What vk backup made.")]) -> None:
    """Restore a backup to a new database.

    The new database has an identity of its own: it refuses tokens and subscriptions of the database that was backed up.

    Example: vk restore ./shop-monday --db lmdb:./shop-again
    """
    from viewkeeper.commit.backup import restore as run

    with _show_copy_progress("restoring") as progress:
        size = run(directory, db, progress)
    typer.echo(f"{db}: {size / 1e6:.1f} MB")


@contextmanager
def _show_copy_progress(label: str) -> Iterator[Callable[[int], None]]:
    """Show the copied bytes on standard error, if it is a terminal."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import DownloadColumn, Progress, SpinnerColumn, TextColumn, TransferSpeedColumn

    columns = (SpinnerColumn(), TextColumn(label), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=None)
        yield lambda count: bar.advance(task, count)
