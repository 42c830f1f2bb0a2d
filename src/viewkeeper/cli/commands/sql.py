"""`vk init`, `vk sql`: a database, and SQL over it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from viewkeeper.cli.options import (
    FORMATS,
    Budget,
    Conf,
    Db,
    LocalDb,
    Master,
    Output,
    Stale,
    check_choice,
    open_database,
    open_writer,
    spark_session,
    usage_error,
)
from viewkeeper.cli.remote import is_remote
from viewkeeper.cli.remote import sql as remote_sql
from viewkeeper.model.display import count_text

# Running a script: the statements of a text, one after the other, on an open database or a client. Each statement's
# result is printed as soon as it is done.


def run_script(database: Any, text: str, output: str, engine: str, stale: bool = False) -> None:
    from viewkeeper.cli.output import print_answer, warn_suspended
    from viewkeeper.cli.progress import quiet_jvm, show_spinner
    from viewkeeper.sql.script import split_steps

    steps = split_steps(text)
    if not steps:
        database.sql(text)  # raises the error for a text without statements
    for step in steps:
        statement = step.statements[0]
        with step.locate_errors(), show_spinner(statement), quiet_jvm():
            answer = database.sql(step.text, engine=engine, stale=stale)
        if answer.has_rows:
            warn_suspended(answer.suspended)
            print_answer(statement, answer.to_arrow(), output)
        elif answer.done and output == "table":
            typer.echo(answer.done)


def init(db: LocalDb) -> None:
    """Create an empty database. An existing one stays as it is.

    Example: vk init --db lmdb:./shop
    """
    with open_writer(db, create=True) as store:
        catalog = store.catalog()
    if catalog.tables or catalog.views:
        tables, views = count_text(len(catalog.tables), "table"), count_text(len(catalog.views), "view")
        typer.echo(f"{db} is there already: {tables}, {views}")
    else:
        typer.echo(f"{db} is ready; export VIEWKEEPER_DB={db} saves you from writing --db")


def sql(
    context: typer.Context,
    db: Db,
    statement: Annotated[
        str | None, typer.Argument(help="Statements, with ; between them; none: an interactive shell.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="Run the statements of a file, or of - (standard input).")
    ] = None,
    engine: Annotated[
        str, typer.Option(help="Who answers queries: embedded (no Spark), spark, or auto: the first that can.")
    ] = "auto",
    stale: Stale = False,
    output: Output = "table",
    memory: Budget = None,
    master: Master = None,
    conf: Conf = None,
) -> None:
    """Run SQL statements, or a shell for them.

    CREATE, ALTER and DROP of tables and materialized views, INSERT, UPSERT, UPDATE, DELETE, SELECT, SHOW, DESCRIBE,
    EXPLAIN. Filters, joins and aggregates that are proven to have Spark's meaning run without starting Spark; EXPLAIN
    SELECT … shows which engine runs a query.
    Without a statement, on a terminal, it is a shell: history, completion of names, \\d, statements over many lines.

    Example: vk sql "SELECT * FROM by_category ORDER BY category" --db lmdb:./shop
    """
    check_choice(context, "output", output, FORMATS)
    check_choice(context, "engine", engine, ("auto", "embedded", "spark"))
    if statement is not None and file is not None:
        raise usage_error(context, "Give statements, or a file with -f.")
    if statement is None and file is None and not sys.stdin.isatty():
        raise usage_error(context, "Give a statement, or a file with -f (- is standard input).")
    text = statement if file is None else _read_text(context, file)
    if is_remote(db):
        remote_sql(db, text, output, engine, stale)
        return
    creates = text is None or _has_create(text)
    with open_database(db, create=creates, spark=spark_session(master, conf), memory=memory) as database:
        if text is None:
            from viewkeeper.cli.shell import shell

            shell(database, output, db)
        else:
            run_script(database, text, output, engine, stale)


def _has_create(text: str) -> bool:
    """Whether a statement may be the first one of a new database."""
    from viewkeeper.syntax.statements import split

    return any(statement[:6].upper() == "CREATE" for statement in split(text))


def _read_text(context: typer.Context, file: Path) -> str:
    if str(file) == "-":
        return sys.stdin.read()
    try:
        return file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise usage_error(context, f"Cannot read {file}: {reason}.") from None
