"""`vk refresh`, `vk run`, `vk watch`, `vk status`, `vk explain`: the views and their maintenance."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from viewkeeper.cli import remote
from viewkeeper.cli.options import (
    LANES,
    REPORT_FORMATS,
    Budget,
    Conf,
    Db,
    Lane,
    LocalDb,
    Master,
    Name,
    ReportOutput,
    Stale,
    ViewName,
    check_choice,
    open_database,
    open_reader,
    spark_session,
    usage_error,
)


def refresh(
    context: typer.Context,
    db: LocalDb,
    lane: Lane = "auto",
    output: ReportOutput = "table",
    suspend: Annotated[
        bool, typer.Option(help="A view that a row breaks is suspended and the others go on, or nothing is published.")
    ] = True,
    memory: Budget = None,
    master: Master = None,
    conf: Conf = None,
) -> None:
    """Bring every view up to date in one batch.

    If a row breaks a view, only that view is suspended and the others go on; both are named, and the exit code is 1.
    With --no-suspend it is an error and nothing is published.

    Example: vk refresh --db lmdb:./shop
    """
    check_choice(context, "lane", lane, LANES)
    check_choice(context, "output", output, REPORT_FORMATS)
    from viewkeeper.cli.output import print_report
    from viewkeeper.cli.progress import quiet_jvm

    with open_database(db, spark=spark_session(master, conf), memory=memory) as database:
        with quiet_jvm():
            report = database.refresh(lane, suspend=suspend)
        print_report(report, output)
    if report.suspended:
        raise typer.Exit(1)


def run(
    context: typer.Context,
    db: LocalDb,
    lane: Lane = "auto",
    max_delay: Annotated[float, typer.Option(min=0, help="Seconds for which a change may wait, about.")] = 0.05,
    max_changes: Annotated[int, typer.Option(min=1, help="Rows of a batch, about.")] = 50_000,
    priority: Annotated[str, typer.Option(help="Who goes first under load: writers, balanced or views.")] = "balanced",
    standby: Annotated[
        bool, typer.Option("--standby", help="Wait while another process maintains, and take over when it ends.")
    ] = False,
    seconds: Annotated[float | None, typer.Option(min=0, help="Stop by itself after so long.")] = None,
    audit_every: Annotated[
        float | None, typer.Option(min=1, metavar="SECONDS", help="Compare the views with Spark so often.")
    ] = None,
    output: ReportOutput = "table",
    memory: Budget = None,
    master: Master = None,
    conf: Conf = None,
) -> None:
    """Keep every view fresh, until Ctrl-C.

    Prints a line for each batch. SIGTERM ends it as well. Other processes read, write, create, alter and drop
    meanwhile; this process runs their definitions.

    Example: vk run --db lmdb:./shop
    """
    check_choice(context, "lane", lane, LANES)
    check_choice(context, "output", output, REPORT_FORMATS)
    check_choice(context, "priority", priority, ("writers", "balanced", "views"))
    from viewkeeper.cli.run_loop import run as keep_fresh

    with open_database(db, spark=spark_session(master, conf), memory=memory) as database:
        keep_fresh(
            database,
            output,
            seconds,
            lane=lane,
            max_delay=max_delay,
            max_changes=max_changes,
            priority=priority,
            standby=standby,
            audit_every=audit_every,
        )


def watch(
    context: typer.Context,
    name: Name,
    db: Db,
    since: Annotated[str | None, typer.Option(metavar="TOKEN", help="Only what follows this token.")] = None,
    changes: Annotated[int | None, typer.Option(min=1, help="Stop after so many changed rows.")] = None,
    timeout: Annotated[float | None, typer.Option(min=0, help="Stop when nothing came for so many seconds.")] = None,
    stale: Stale = False,
    output: ReportOutput = "table",
) -> None:
    """Print a view's changes as they are committed.

    First its current rows, then every committed change, until Ctrl-C. As JSON
    each line has kind (row, insert, update, delete), before, after, and the token to continue from;
    suspended, when the view is no longer maintained, has reason and since; after reset come rows
    that replace all before them.

    Example: vk watch by_category --db lmdb:./shop
    """
    check_choice(context, "output", output, REPORT_FORMATS)
    from viewkeeper.cli.run_loop import watch as follow

    if remote.is_remote(db):
        with remote.open_client(db) as client:
            follow(client.subscribe(name, since, timeout=timeout, stale=stale), changes, output)
        return
    with open_reader(db) as store:
        from viewkeeper.read.subscribe import subscribe

        follow(subscribe(store, name, since, timeout=timeout, stale=stale), changes, output)


def status(
    context: typer.Context,
    db: Db,
    output: ReportOutput = "table",
    watch: Annotated[bool, typer.Option("--watch", help="Look again every second, until Ctrl-C.")] = False,
    views: Annotated[
        str | None, typer.Option("--views", metavar="PATTERN", help="Only views called so; * or % stands for anything.")
    ] = None,
    limit: Annotated[int, typer.Option(min=0, help="Views and tables that are listed; JSON has all.")] = 50,
) -> None:
    """Views, batch, lag and bytes of state.

    Example: vk status --views 'sales_*' --db lmdb:./shop
    """
    check_choice(context, "output", output, REPORT_FORMATS)
    from viewkeeper.cli.output import print_report

    if remote.is_remote(db):
        remote.status(db, output, watch, views, limit)
        return
    with open_reader(db) as store:
        from viewkeeper.read.status import database_status, filter_views

        while True:
            now = filter_views(database_status(store, store.catalog()), views)
            if watch and output == "table":
                typer.echo("\x1b[2J\x1b[H", nl=False)  # clear the screen, cursor to its top
            print_report(now, output, limit)
            if not watch:
                return
            time.sleep(1)


def explain(
    context: typer.Context,
    view: ViewName,
    db: Db,
    output_format: Annotated[
        str, typer.Option("--format", metavar="FORMAT", help="text, json, mermaid or svg.")
    ] = "text",
    out: Annotated[Path | None, typer.Option("--out", help="A file to write instead of standard output.")] = None,
) -> None:
    """How a view is maintained, as text or as a diagram.

    Operators, rounds, keys, state and what it shares with other views.

    Example: vk explain by_category --format svg --out by_category.svg --db lmdb:./shop
    """
    check_choice(context, "format", output_format, ("text", "json", "mermaid", "svg"))
    if remote.is_remote(db):
        if output_format not in ("text", "svg"):
            raise usage_error(context, "A server gives a plan as text or svg.")
        with remote.open_client(db) as client:
            plan = client.explain(view)
        text = str(plan) if output_format == "text" else plan.svg
    else:
        with open_reader(db) as store:
            text = _explain_stored(store, view, output_format)
    if out is None:
        typer.echo(text)
    else:
        out.write_text(text + "\n", encoding="utf-8")


def _explain_stored(store: Any, view: str, output_format: str) -> str:
    from viewkeeper.explain.view import explain_view

    if output_format == "text":
        return explain_view(store, store.catalog(), view)
    from viewkeeper.explain import render
    from viewkeeper.explain.diagram import view_diagram

    diagram = view_diagram(store, store.catalog(), view)
    return {"json": render.to_json, "mermaid": render.to_mermaid, "svg": render.to_svg}[output_format](diagram)
