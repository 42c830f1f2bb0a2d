"""`vk load`, `vk put`, `vk delete`, `vk get`, `vk scan`: writes and reads of rows."""

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
    REPORT_FORMATS,
    Db,
    Name,
    Output,
    ReportOutput,
    Stale,
    TableName,
    check_choice,
    open_database,
    open_reader,
    open_writer,
    usage_error,
)
from viewkeeper.cli.remote import is_remote, open_client

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
    check_choice(context, "output", output, REPORT_FORMATS)
    from viewkeeper.cli.input_files import detect_format, infer_create_table
    from viewkeeper.cli.load import create_for_load, default_reject_file
    from viewkeeper.cli.load import load as run
    from viewkeeper.cli.output import print_report

    for file in files:
        detect_format(file, delimiter)
    if is_remote(db):
        with open_client(db) as client, _show_progress(files, output) as progress:
            if key is not None:
                client.sql(infer_create_table(table, files[0], tuple(k.strip() for k in key.split(",")), delimiter))
            target = client.shape(table)
            reject_file = None if strict else rejects or default_reject_file(target)
            options: dict[str, Any] = {
                "rejects": reject_file,
                "max_rejects": max_rejects,
                "chunk": chunk,
                "delimiter": delimiter,
            }
            report = run(client, target, files, progress=progress, **options)
        print_report(report, output)
        return
    with open_database(db) as database:
        creation: Any = nullcontext()
        if key is not None:
            if database._catalog().find(table) is not None:
                raise usage_error(context, f"{table} is there already, with its own key: leave --key out.")
            columns = tuple(k.strip() for k in key.split(","))
            creation = create_for_load(database, table, infer_create_table(table, files[0], columns, delimiter))
        with creation, _show_progress(files, output) as progress:
            target = database._writes.table(table, "load into")
            reject_file = None if strict else rejects or default_reject_file(target)
            report = run(
                database,
                target,
                files,
                rejects=reject_file,
                max_rejects=max_rejects,
                chunk=chunk,
                delimiter=delimiter,
                progress=progress,
            )
    print_report(report, output)


@contextmanager
def _show_progress(files: list[Path], output: str) -> Iterator[Progress]:
    """Show a progress bar on standard error, if it is a terminal."""
    if not sys.stderr.isatty() or output != "table":
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        total = sum(f.stat().st_size for f in files)
        task, done = bar.add_task("reading", total=total), 0

        def advance(count: int) -> None:
            nonlocal done
            done = min(done + count, total)
            bar.update(task, completed=done, description="reading" if done < total else "writing")

        yield advance


def put(
    context: typer.Context,
    table: TableName,
    db: Db,
    rows: Annotated[
        list[str] | None, typer.Argument(help="Rows as JSON objects; none or -: from standard input.")
    ] = None,
) -> None:
    """Insert rows or replace them, as JSON.

    A row with the same key is replaced as a whole. All rows of a call are one write. Prints
    the write's token, with which a reader can request a state that contains it.

    Example: vk put items '{"item_id": 1, "category": "toys", "price": "9.99"}' --db lmdb:./shop
    """
    texts = rows if rows and rows != ["-"] else sys.stdin.read().splitlines()
    objects = [row for i, text in enumerate(texts, 1) if text.strip() for row in _parse_objects(context, text, i)]
    if not objects:
        raise usage_error(context, "There are no rows.")
    if is_remote(db):
        remote.put(db, table, objects)
        return
    with open_writer(db) as store:
        from viewkeeper.model.intake.json import convert_objects
        from viewkeeper.model.intake.rows import last_by_key, rows_table

        target = _base_table(store, table, "put into")
        rows_in = rows_table(target, convert_objects(target, objects))
        typer.echo(_write_rows(store, target, last_by_key(target, rows_in), None))


def _parse_objects(context: typer.Context, text: str, number: int) -> list[dict[str, Any]]:
    """The rows of a JSON object, or of an array of objects."""
    from viewkeeper.model.intake.json import parse_json

    try:
        found = parse_json(text)
    except (ValueError, RecursionError, ArithmeticError):
        found = None
    rows = found if isinstance(found, list) else [found]
    if not all(isinstance(row, dict) for row in rows):
        raise usage_error(context, f"Row {number} is no JSON object: {text[:60]}")
    return rows


def _base_table(store: Store, name: str, verb: str) -> Table:
    from viewkeeper.errors import ReadOnly

    table = store.catalog().table(name)
    if table.is_view:
        raise ReadOnly(f"{name} is a materialized view; one cannot {verb} it.", hint="Write to its base tables.")
    return table


def _write_rows(store: Store, table: Table, puts: Any, deletes: Any) -> str:
    """Run one write and return its token. `puts` or `deletes` None: there are none."""
    from viewkeeper.model.token import Token

    empty = table.arrow.empty_table()
    keys = empty.select([c.name for c in table.key_columns])
    written = store.write(table, empty if puts is None else puts, keys if deletes is None else deletes)
    return str(Token(store.uuid, written.position, written.atomic))


def delete(table: TableName, key: Key, db: Db) -> None:
    """Delete the row with this key. The exit code is 1 if there is none.

    Example: vk delete items 1 --db lmdb:./shop
    """
    if is_remote(db):
        if not remote.delete(db, table, key):
            _exit_row_absent(table, key)
        return
    with open_writer(db) as store:
        from viewkeeper.model.intake.rows import keys_table
        from viewkeeper.model.intake.text import parse_key
        from viewkeeper.read.rows import get_row

        target = _base_table(store, table, "delete from")
        values = parse_key(target, key)
        if get_row(store, target, values) is None:
            _exit_row_absent(target.name, key)
        typer.echo(_write_rows(store, target, None, keys_table(target, values)))


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
    check_choice(context, "output", output, FORMATS)
    if is_remote(db):
        if not remote.get(db, name, key or (), output, stale):
            _exit_row_absent(name, key or ())
        return
    with open_reader(db) as store:
        import pyarrow as pa

        from viewkeeper.cli.output import print_rows
        from viewkeeper.model.intake.text import parse_key
        from viewkeeper.read.rows import get_row

        table = _find_readable(store, name, stale)
        row = get_row(store, table, parse_key(table, key or ()))
    if row is None:
        _exit_row_absent(name, key or ())
    print_rows(table.external_schema, [pa.Table.from_pylist([row], table.external_schema)], output)


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
    check_choice(context, "output", output, FORMATS)
    if is_remote(db):
        remote.scan(db, name, prefix or (), limit, output, stale)
        return
    with open_reader(db) as store:
        import pyarrow as pa

        from viewkeeper.cli.output import print_rows
        from viewkeeper.model.encoding.keys import prefix_range
        from viewkeeper.model.intake.text import parse_key
        from viewkeeper.read.rows import to_visible_rows

        table = _find_readable(store, name, stale)
        low, high = prefix_range(table, parse_key(table, prefix or (), complete=False))

        def batches() -> Iterator[pa.Table]:
            remaining = limit
            if not table.has_rows:
                from viewkeeper.read.lazy.evaluate import read_virtual_view

                yield read_virtual_view(store, name)[0].slice(0, limit)
                return
            for batch in store.scan(table, start=low, stop=high, limit=limit):
                rows = to_visible_rows(table, pa.Table.from_batches([batch]))
                yield rows if remaining is None else rows.slice(0, remaining)
                remaining = None if remaining is None else max(0, remaining - rows.num_rows)

        print_rows(table.external_schema, batches(), output)


def _find_readable(store: Store, name: str, stale: bool) -> Table:
    """The table of a name. For old rows of a suspended view, print a warning on standard error."""
    from viewkeeper.cli.output import warn_suspended
    from viewkeeper.model.catalog.catalog import View
    from viewkeeper.read.suspension import refuse_suspended, suspension_summary

    catalog = store.catalog()
    table, found = catalog.table(name), catalog.find(name)
    refuse_suspended(found, stale=stale)
    if isinstance(found, View) and found.suspended is not None:
        warn_suspended({name: suspension_summary(found.suspended)})
    return table


def _exit_row_absent(name: str, key: Sequence[str]) -> None:
    typer.echo(f"{name} has no row{' with key ' if key else ''}{' '.join(key)}.", err=True)
    raise SystemExit(1)
