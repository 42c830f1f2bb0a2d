"""`vk load`, `vk put`, `vk delete`, `vk get`, `vk scan`: rows in and out."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from viewkeeper.cli import remote
from viewkeeper.cli.options import (
    FORMATS,
    REPORTS,
    Db,
    Name,
    Output,
    ReportOutput,
    Stale,
    TableName,
    one_of,
    open_database,
    open_reader,
    open_writer,
    wrong,
)
from viewkeeper.cli.remote import connected, is_remote

if TYPE_CHECKING:
    from viewkeeper.cli.load import Progress
    from viewkeeper.model.schema import Table
    from viewkeeper.store.contract.store import Store

Key = Annotated[list[str], typer.Argument(help="The value of each key column, in key order.")]


def load(
    context: typer.Context,
    table: TableName,
    files: Annotated[
        list[Path],
        typer.Argument(help="Parquet, CSV or TSV (with a header), JSON lines or an array, by their ending; also .gz."),
    ],
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
    delimiter: Annotated[
        str | None, typer.Option(metavar="CHARACTER", help="Parts the fields of CSV files. [, and a tab in .tsv]")
    ] = None,
    output: ReportOutput = "table",
) -> None:
    """Load files into a table, in one write.

    An interrupted load leaves nothing behind. Rows replace rows of the same key. Rows
    that do not fit the table go to a reject file, one JSON object a line; if none fits,
    that is an error.

    Example: vk load items items.csv --key item_id --db lmdb:./shop
    """
    one_of(context, "output", output, REPORTS)
    from viewkeeper.cli.input_files import form_of, inferred
    from viewkeeper.cli.load import load as run
    from viewkeeper.cli.load import made_for, reject_file
    from viewkeeper.cli.output import print_report

    for file in files:
        form_of(file, delimiter)
    if is_remote(db):
        with connected(db) as client, _progress(files, output) as progress:
            if key is not None:
                client.sql(inferred(table, files[0], tuple(k.strip() for k in key.split(",")), delimiter))
            target = client.shape(table)
            place = None if strict else rejects or reject_file(target)
            options: dict[str, Any] = {"rejects": place, "most": max_rejects, "chunk": chunk, "delimiter": delimiter}
            report = run(client, target, files, progress=progress, **options)
        print_report(report, output)
        return
    with open_database(db) as database:
        made: Any = nullcontext()
        if key is not None:
            if database._catalog().find(table) is not None:
                raise wrong(context, f"{table} is there already, with its own key: leave --key out.")
            columns = tuple(k.strip() for k in key.split(","))
            made = made_for(database, table, inferred(table, files[0], columns, delimiter))
        with made, _progress(files, output) as progress:
            target = database._writes.table(table, "load into")
            place = None if strict else rejects or reject_file(target)
            report = run(
                database,
                target,
                files,
                rejects=place,
                most=max_rejects,
                chunk=chunk,
                delimiter=delimiter,
                progress=progress,
            )
    print_report(report, output)


@contextmanager
def _progress(files: list[Path], output: str) -> Iterator[Progress]:
    """A bar on standard error, if that is a terminal."""
    if not sys.stderr.isatty() or output != "table":
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        total = sum(f.stat().st_size for f in files)
        task, done = bar.add_task("reading", total=total), 0

        def told(count: int) -> None:
            nonlocal done
            done = min(done + count, total)
            bar.update(task, completed=done, description="reading" if done < total else "writing")

        yield told


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
    given = [row for i, text in enumerate(texts, 1) if text.strip() for row in _objects(context, text, i)]
    if not given:
        raise wrong(context, "There are no rows.")
    if is_remote(db):
        remote.put(db, table, given)
        return
    with open_writer(db) as store:
        from viewkeeper.model.intake.json import typed_objects
        from viewkeeper.model.intake.rows import last_by_key, rows_table

        target = _base_table(store, table, "put into")
        rows_in = rows_table(target, typed_objects(target, given))
        typer.echo(_written(store, target, last_by_key(target, rows_in), None))


def _objects(context: typer.Context, text: str, number: int) -> list[dict[str, Any]]:
    """The rows of a JSON object, or of an array of them."""
    from viewkeeper.model.intake.json import loads

    try:
        found = loads(text)
    except (ValueError, RecursionError, ArithmeticError):
        found = None
    rows = found if isinstance(found, list) else [found]
    if not all(isinstance(row, dict) for row in rows):
        raise wrong(context, f"Row {number} is no JSON object: {text[:60]}")
    return rows


def _base_table(store: Store, name: str, verb: str) -> Table:
    from viewkeeper.errors import ReadOnly

    table = store.catalog().table(name)
    if table.is_view:
        raise ReadOnly(f"{name} is a materialized view; one cannot {verb} it.", hint="Write to its base tables.")
    return table


def _written(store: Store, table: Table, puts: Any, deletes: Any) -> str:
    """One write, and its token. None: no puts, or no deletes."""
    from viewkeeper.model.token import Token

    nothing = table.arrow.empty_table()
    keys = nothing.select([c.name for c in table.key_columns])
    written = store.write(table, nothing if puts is None else puts, keys if deletes is None else deletes)
    return str(Token(store.uuid, written.position, written.atomic))


def delete(table: TableName, key: Key, db: Db) -> None:
    """Delete the row with this key. The exit code is 1 if there is none.

    Example: vk delete items 1 --db lmdb:./shop
    """
    if is_remote(db):
        if not remote.delete(db, table, key):
            _absent(table, key)
        return
    with open_writer(db) as store:
        from viewkeeper.model.intake.rows import keys_table
        from viewkeeper.model.intake.text import key_values
        from viewkeeper.read.rows import get_row

        target = _base_table(store, table, "delete from")
        values = key_values(target, key)
        if get_row(store, target, values) is None:
            _absent(target.name, key)
        typer.echo(_written(store, target, None, keys_table(target, values)))


def get(
    context: typer.Context,
    name: Name,
    db: Db,
    key: Annotated[
        list[str] | None,
        typer.Argument(help="The value of each key column, in key order; none for a view of one row."),
    ] = None,
    stale: Stale = False,
    output: Output = "table",
) -> None:
    """The row with this key. The exit code is 1 if there is none.

    Example: vk get by_category toys --db lmdb:./shop
    """
    one_of(context, "output", output, FORMATS)
    if is_remote(db):
        if not remote.get(db, name, key or (), output, stale):
            _absent(name, key or ())
        return
    with open_reader(db) as store:
        import pyarrow as pa

        from viewkeeper.cli.output import print_rows
        from viewkeeper.model.intake.text import key_values
        from viewkeeper.read.rows import get_row

        table = _readable(store, name, stale)
        row = get_row(store, table, key_values(table, key or ()))
    if row is None:
        _absent(name, key or ())
    print_rows(table.outside, [pa.Table.from_pylist([row], table.outside)], output)


def scan(
    context: typer.Context,
    name: Name,
    db: Db,
    prefix: Annotated[list[str] | None, typer.Argument(help="Values of the first key columns.")] = None,
    limit: Annotated[int | None, typer.Option(min=0, help="At most so many rows.")] = None,
    stale: Stale = False,
    output: Output = "table",
) -> None:
    """Rows in key order, all or by a key's prefix.

    Example: vk scan order_lines --limit 10 --db lmdb:./shop
    """
    one_of(context, "output", output, FORMATS)
    if is_remote(db):
        remote.scan(db, name, prefix or (), limit, output, stale)
        return
    with open_reader(db) as store:
        import pyarrow as pa

        from viewkeeper.cli.output import print_rows
        from viewkeeper.model.encoding.keys import prefix_range
        from viewkeeper.model.intake.text import key_values
        from viewkeeper.read.rows import outside

        table = _readable(store, name, stale)
        low, high = prefix_range(table, key_values(table, prefix or (), whole=False))

        def batches() -> Iterator[pa.Table]:
            left = limit
            if not table.has_rows:
                from viewkeeper.read.lazy.evaluate import read_regenerated

                yield read_regenerated(store, name)[0].slice(0, limit)
                return
            for batch in store.scan(table, start=low, stop=high, limit=limit):
                rows = outside(table, pa.Table.from_batches([batch]))
                yield rows if left is None else rows.slice(0, left)
                left = None if left is None else max(0, left - rows.num_rows)

        print_rows(table.outside, batches(), output)


def _readable(store: Store, name: str, stale: bool) -> Table:
    """The table behind a name. Old rows of a suspended view are announced on standard error."""
    from viewkeeper.cli.output import say_suspended
    from viewkeeper.model.catalog.catalog import View
    from viewkeeper.read.suspension import refuse, told

    catalog = store.catalog()
    table, found = catalog.table(name), catalog.find(name)
    refuse(found, stale=stale)
    if isinstance(found, View) and found.suspended is not None:
        say_suspended({name: told(found.suspended)})
    return table


def _absent(name: str, key: Sequence[str]) -> None:
    typer.echo(f"{name} has no row{' with key ' if key else ''}{' '.join(key)}.", err=True)
    raise SystemExit(1)
