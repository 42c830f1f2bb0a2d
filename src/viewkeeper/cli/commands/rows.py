"""`vk load`, `vk put`, `vk delete`, `vk get`, `vk scan`: rows in and out."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from viewkeeper.cli.options import (
    FORMATS,
    Db,
    Name,
    Output,
    TableName,
    one_of,
    open_database,
    open_reader,
    wrong,
)

if TYPE_CHECKING:
    from viewkeeper.cli.load import Progress

Key = Annotated[list[str], typer.Argument(help="The value of each key column, in key order.")]


def load(
    context: typer.Context,
    table: TableName,
    files: Annotated[list[Path], typer.Argument(help="Parquet, CSV (with a header) or JSON lines, by their ending.")],
    db: Db,
    key: Annotated[
        str | None, typer.Option(metavar="COLUMNS", help="Create the table from the first file, with this key.")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="A bad row is an error, and nothing is written.")] = False,
    rejects: Annotated[Path | None, typer.Option(help="Where bad rows go, with reasons. [TABLE.rejects.jsonl]")] = None,
    max_rejects: Annotated[int, typer.Option(min=0, help="More bad rows than this are an error.")] = 1000,
    chunk: Annotated[
        int | None, typer.Option(min=1, help="Write every so many rows, for files that do not fit into memory.")
    ] = None,
    output: Output = "table",
) -> None:
    """Load files into a table, in one write.

    An interrupted load leaves nothing behind. Rows replace rows of the same key. Rows
    that do not fit the table go to a reject file, one JSON object a line.

    Example: vk load items items.csv --key item_id --db lmdb:./shop
    """
    one_of(context, "output", output, FORMATS)
    from viewkeeper.cli.files import inferred, kind_of
    from viewkeeper.cli.load import load as run
    from viewkeeper.cli.output import print_report

    for file in files:
        kind_of(file)
    with open_database(db) as database:
        if key is not None and database._catalog().find(table) is None:
            database.sql(inferred(table, files[0], tuple(k.strip() for k in key.split(","))))
        target = database._base_table(table, "load into")
        place = None if strict else rejects or Path(f"{target.name}.rejects.jsonl")
        with _progress(files, output) as progress:
            report = run(database, target, files, rejects=place, most=max_rejects, chunk=chunk, progress=progress)
    print_report(report, output)


@contextmanager
def _progress(files: list[Path], output: str) -> Iterator[Progress]:
    """A bar on standard error, if that is a terminal."""
    if not sys.stderr.isatty() or output != "table":
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("reading"), BarColumn(), DownloadColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=sum(f.stat().st_size for f in files))
        yield lambda count: bar.advance(task, count)


def put(
    context: typer.Context,
    table: TableName,
    db: Db,
    rows: Annotated[
        list[str] | None, typer.Argument(help="Rows as JSON objects; none or -: from standard input.")
    ] = None,
) -> None:
    """Insert rows or replace them, as JSON.

    A row of the same key is replaced whole. All rows of a call are one write. Prints
    the write's token, by which a reader can ask for a state that has it.

    Example: vk put items '{"item_id": 1, "category": "toys", "price": "9.99"}' --db lmdb:./shop
    """
    texts = rows if rows and rows != ["-"] else sys.stdin.read().splitlines()
    given = [_object(context, text, i) for i, text in enumerate(texts, 1) if text.strip()]
    if not given:
        raise wrong(context, "There are no rows.")
    with open_database(db) as database:
        typer.echo(str(database.put(table, given)))


def _object(context: typer.Context, text: str, number: int) -> dict[str, Any]:
    from decimal import Decimal

    try:
        row = json.loads(text, parse_float=Decimal)
    except ValueError:
        row = None
    if not isinstance(row, dict):
        raise wrong(context, f"Row {number} is no JSON object: {text[:60]}")
    return row


def delete(table: TableName, key: Key, db: Db) -> None:
    """Delete the row with this key. The exit code is 1 if there is none.

    Example: vk delete items 1 --db lmdb:./shop
    """
    from viewkeeper.cli.output import key_values

    with open_database(db) as database:
        target = database._base_table(table, "delete from")
        values = key_values(target, key)
        if database.get(table, values) is None:
            _absent(target.name, key)
        typer.echo(str(database.delete(table, values)))


def get(context: typer.Context, name: Name, key: Key, db: Db, output: Output = "table") -> None:
    """The row with this key. The exit code is 1 if there is none.

    Example: vk get by_category toys --db lmdb:./shop
    """
    one_of(context, "output", output, FORMATS)
    with open_reader(db) as store:
        import pyarrow as pa

        from viewkeeper.cli.output import key_values, print_rows
        from viewkeeper.read.reader import get_row

        table = store.catalog().table(name)
        row = get_row(store, table, key_values(table, key))
    if row is None:
        _absent(name, key)
    print_rows(table.outside, [pa.Table.from_pylist([row], table.outside)], output)


def scan(
    context: typer.Context,
    name: Name,
    db: Db,
    prefix: Annotated[list[str] | None, typer.Argument(help="Values of the first key columns.")] = None,
    limit: Annotated[int | None, typer.Option(min=0, help="At most so many rows.")] = None,
    output: Output = "table",
) -> None:
    """Rows in key order, all or by a key's prefix.

    Example: vk scan order_lines --limit 10 --db lmdb:./shop
    """
    one_of(context, "output", output, FORMATS)
    with open_reader(db) as store:
        import pyarrow as pa

        from viewkeeper.cli.output import key_values, print_rows
        from viewkeeper.model.keys import prefix_range
        from viewkeeper.read.reader import outside

        table = store.catalog().table(name)
        low, high = prefix_range(table, key_values(table, prefix or (), whole=False))

        def batches() -> Iterator[pa.Table]:
            left = limit
            if not table.is_stored:
                from viewkeeper.read.regenerate import read_regenerated

                yield read_regenerated(store, name)[0].slice(0, limit)
                return
            for batch in store.scan(table, start=low, stop=high, limit=limit):
                rows = outside(table, pa.Table.from_batches([batch]))
                yield rows if left is None else rows.slice(0, left)
                left = None if left is None else max(0, left - rows.num_rows)

        print_rows(table.outside, batches(), output)


def _absent(name: str, key: list[str]) -> None:
    typer.echo(f"{name} has no row with key {' '.join(key)}.", err=True)
    raise SystemExit(1)
