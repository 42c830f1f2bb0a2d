"""`vk refresh`, `vk status`, `vk explain`: the views and their maintenance."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from viewkeeper.cli.options import (
    FORMATS,
    LANES,
    Conf,
    Db,
    Lane,
    Master,
    Output,
    ViewName,
    cluster,
    one_of,
    open_database,
    open_reader,
)


def refresh(
    context: typer.Context,
    db: Db,
    lane: Lane = "auto",
    output: Output = "table",
    master: Master = None,
    conf: Conf = None,
) -> None:
    """Bring every view up to date in one batch.

    Example: vk refresh --db lmdb:./shop
    """
    one_of(context, "lane", lane, LANES)
    one_of(context, "output", output, FORMATS[:2])
    from viewkeeper.cli.hush import hushed
    from viewkeeper.cli.output import print_report

    with open_database(db, spark=cluster(master, conf)) as database:
        with hushed():
            report = database.refresh(lane)
        print_report(report, output)


def status(
    context: typer.Context,
    db: Db,
    output: Output = "table",
    watch: Annotated[bool, typer.Option("--watch", help="Look again every second, until Ctrl-C.")] = False,
) -> None:
    """Views, batch, lag and bytes of state.

    Example: vk status --db lmdb:./shop
    """
    one_of(context, "output", output, FORMATS[:2])
    from viewkeeper.cli.output import print_report

    with open_reader(db) as store:
        from viewkeeper.read.status import database_status

        while True:
            now = database_status(store, store.catalog())
            if watch and output == "table":
                typer.clear()
            print_report(now, output)
            if not watch:
                return
            time.sleep(1)


def explain(
    context: typer.Context,
    view: ViewName,
    db: Db,
    form: Annotated[str, typer.Option("--format", metavar="FORMAT", help="text, json, mermaid or svg.")] = "text",
    out: Annotated[Path | None, typer.Option("--out", help="A file to write instead of standard output.")] = None,
) -> None:
    """How a view is kept fresh: operators, rounds, keys, state and what it shares; also as a picture.

    Example: vk explain by_category --format svg --out by_category.svg --db lmdb:./shop
    """
    one_of(context, "format", form, ("text", "json", "mermaid", "svg"))
    with open_reader(db) as store:
        text = _explained(store, view, form)
    if out is None:
        typer.echo(text)
    else:
        out.write_text(text + "\n", encoding="utf-8")


def _explained(store: Any, view: str, form: str) -> str:
    from viewkeeper.read.status import explain_view

    if form == "text":
        return explain_view(store, store.catalog(), view)
    from viewkeeper.plan import drawing
    from viewkeeper.read.picture import picture_view

    picture = picture_view(store, store.catalog(), view)
    return {"json": drawing.to_json, "mermaid": drawing.to_mermaid, "svg": drawing.to_svg}[form](picture)
