"""The statements of a text, run one after the other on a database that is open here or behind a server; each tells what
it did as soon as it is done."""

from __future__ import annotations

from typing import Any

import typer


def run_script(database: Any, text: str, output: str, engine: str, stale: bool = False) -> None:
    from viewkeeper.cli.hush import hushed, waiting_for
    from viewkeeper.cli.output import print_answer, say_suspended
    from viewkeeper.sql.script import steps

    found = steps(text)
    if not found:
        database.sql(text)  # it says what is missing
    for step in found:
        first = step.statements[0]
        with step.naming_errors(), waiting_for(first), hushed():
            answer = database.sql(step.text, engine=engine, stale=stale)
        if answer.has_rows:
            say_suspended(answer.suspended)
            print_answer(first, answer.to_arrow(), output)
        elif answer.done and output == "table":
            typer.echo(answer.done)
