"""The commands of `vk`. Each opens the database, calls the public API once and prints what it returned.

    exit code   0 done · 1 a ViewkeeperError, printed as `error[code]: message hint` · 2 a wrong call · 130 Ctrl-C

Packages that are slow to import are imported by the command that needs them: `vk --help` answers at once.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from typer._click.exceptions import ClickException, NoArgsIsHelpError, UsageError

from viewkeeper import __version__
from viewkeeper.errors import ViewkeeperError

app = typer.Typer(
    help="SQL materialized views over key-value stores, kept fresh incrementally.\n\nExample: vk demo",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

Db = Annotated[str, typer.Option("--db", envvar="VIEWKEEPER_DB", metavar="URL", help="The database: lmdb:PATH.")]
Name = Annotated[str, typer.Argument(help="A table or a view.")]


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run `vk` and exit. Whatever goes wrong on purpose is one line, never a traceback."""
    try:
        code = app(args=arguments, prog_name="vk", standalone_mode=False)
    except ViewkeeperError as error:
        _fail(f"error[{error.code}]: {_line(error.message)} {_line(error.hint)}".rstrip(), 1)
    except NoArgsIsHelpError as error:
        _fail(error.format_message(), 2)
    except ClickException as error:
        context = getattr(error, "ctx", None)
        command = context.command_path if context is not None else "vk"
        _fail(f"{command}: {_line(error.format_message()).rstrip('.')}. See {command} --help.", error.exit_code)
    except (typer.Abort, KeyboardInterrupt):
        _fail("interrupted", 130)
    except BrokenPipeError:  # `vk scan … | head`: nobody reads on, and that is no error
        sys.stderr.close()
        sys.exit(0)
    sys.exit(code if isinstance(code, int) else 0)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"viewkeeper {__version__}")
        raise typer.Exit


@app.callback()
def _vk(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None: ...


@app.command()
def demo(
    seconds: Annotated[float, typer.Option(min=0, help="How long the shop is busy.")] = 20,
    plain: Annotated[bool, typer.Option("--plain", help="Lines instead of a live screen.")] = False,
    keep: Annotated[str | None, typer.Option(metavar="URL", help="Keep the shop in this (new) database.")] = None,
) -> None:
    """A small shop with live changes and views that follow, in under a minute.

    Example: vk demo --seconds 10
    """
    from rich.console import Console

    from viewkeeper.cli.demo import demo as run

    if not run(Console(soft_wrap=True), url=keep, seconds=seconds, plain=plain):
        raise typer.Exit(1)


@app.command()
def sql(
    context: typer.Context,
    db: Db,
    statement: Annotated[str | None, typer.Argument(help="One statement.")] = None,
    file: Annotated[Path | None, typer.Option("--file", "-f", help="Run the statements of a file instead.")] = None,
) -> None:
    """Run SQL: CREATE and DROP TABLE and MATERIALIZED VIEW, SHOW, DESCRIBE, EXPLAIN.

    Example: vk sql "SHOW VIEWS" --db lmdb:./shop
    """
    from viewkeeper.cli.hush import hushed
    from viewkeeper.cli.output import print_table
    from viewkeeper.plan.statements import split

    if (statement is None) == (file is None):
        raise UsageError("Give one statement, or a file with -f.", context)
    texts = split(_read(context, file)) if file is not None else [statement]
    with _open(db, "w") as database:
        for text in texts:
            with hushed():
                answer = database.sql(text)
            if answer is not None:
                print_table(answer)


@app.command()
def get(
    name: Name,
    key: Annotated[list[str], typer.Argument(help="The value of each key column, in key order.")],
    db: Db,
) -> None:
    """The row with this key, as JSON. The exit code is 1 if there is none.

    Example: vk get by_category toys --db lmdb:./shop
    """
    from viewkeeper.cli.output import key_values, print_row

    with _open(db, "r") as database:
        row = database.get(name, key_values(database, name, key))
    if row is None:
        _fail(f"{name} has no row with key {' '.join(key)}.", 1)
    print_row(row)


@app.command()
def scan(
    name: Name,
    db: Db,
    prefix: Annotated[list[str] | None, typer.Argument(help="Values of the first key columns.")] = None,
    limit: Annotated[int | None, typer.Option(min=0, help="At most so many rows.")] = None,
) -> None:
    """Rows in key order, one JSON object a line; all, or those whose key begins with PREFIX.

    Example: vk scan order_lines --limit 10 --db lmdb:./shop
    """
    from viewkeeper.cli.output import key_values, print_row

    with _open(db, "r") as database:
        start = key_values(database, name, prefix, whole=False) if prefix else None
        for row in database.scan(name, prefix=start, limit=limit):
            print_row(row)


@app.command()
def refresh(
    context: typer.Context,
    db: Db,
    lane: Annotated[str, typer.Option(help="auto, driver or spark.")] = "auto",
) -> None:
    """Bring every view up to date in one batch.

    Example: vk refresh --db lmdb:./shop
    """
    from viewkeeper.cli.hush import hushed
    from viewkeeper.cli.output import print_fields

    if lane not in ("auto", "driver", "spark"):
        raise UsageError(f"There is no lane {lane!r}: auto, driver or spark.", context)
    with _open(db, "w") as database:
        with hushed():
            report = database.refresh(lane)
        print_fields(report)


@app.command()
def status(db: Db) -> None:
    """Views, batch, lag and bytes of state.

    Example: vk status --db lmdb:./shop
    """
    from viewkeeper.cli.output import print_fields

    with _open(db, "r") as database:
        print_fields(database.status())


@app.command()
def explain(view: Annotated[str, typer.Argument(help="A materialized view.")], db: Db) -> None:
    """How a view is kept fresh: operators, rounds, keys, state and what it shares.

    Example: vk explain by_category --db lmdb:./shop
    """
    with _open(db, "r") as database:
        typer.echo(database.explain(view))


def _open(url: str, mode: str) -> Any:
    import viewkeeper

    return viewkeeper.open(url, mode=mode)


def _read(context: typer.Context, file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise UsageError(f"Cannot read {file}: {reason}.", context) from None


def _line(text: str) -> str:
    return " ".join(text.split())


def _fail(message: str, code: int) -> NoReturn:
    typer.echo(message, err=True)
    sys.exit(code)
