"""The statements of a script, one after the other, on a database that is open here or behind a server.

New views that follow each other are one batch. An error says in which statement and line of the script it is.
"""

from __future__ import annotations

from typing import Any

import typer

from viewkeeper.errors import ViewkeeperError


def run_script(database: Any, text: str, output: str, engine: str) -> None:
    from viewkeeper.cli.hush import hushed, waiting_for
    from viewkeeper.cli.output import print_answer
    from viewkeeper.plan.statements import split, together

    found, end, number = split(text) or [text], 0, 1
    for group in together(found):
        start = text.index(group[0], end)
        end = start
        for statement in group:
            end = text.index(statement, end) + len(statement)
        lines = text[:start].count("\n")
        try:
            with waiting_for(group[0]), hushed():  # errors count lines in the whole text
                answer = database.sql("\n" * lines + text[start:end], engine=engine)
        except ViewkeeperError as error:
            if len(found) > 1:
                last = f" to {number + len(group) - 1}" if len(group) > 1 else ""
                error.message = f"Statement {number}{last} (line {lines + 1}): {error.message}"
            raise
        number += len(group)
        if answer.has_rows:
            print_answer(group[0], answer.to_arrow(), output)
        elif answer.done and output == "table":
            typer.echo(answer.done)
