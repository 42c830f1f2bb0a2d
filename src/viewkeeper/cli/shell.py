r"""The shell of `vk sql`: statements over many lines, history, completion of names.

    …;                 a statement ends with a semicolon, over as many lines as it takes
    \d                 tables and views            \d NAME    columns of one of them
    \h, help           this list                   \q, exit   the end (also Ctrl-D)

Ctrl-C discards the line being typed, or stops the running statement: a statement is atomic, so it has either happened
completely or not at all. An error is one line, and the shell continues.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import typer
from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory, History, InMemoryHistory

from viewkeeper import __version__
from viewkeeper.cli.output import print_answer
from viewkeeper.cli.progress import quiet_jvm, show_spinner
from viewkeeper.errors import BadStatement, ViewkeeperError

_SQL_WORDS = """
    SELECT FROM WHERE GROUP BY ORDER HAVING LIMIT JOIN LEFT ON AS AND OR NOT NULL CREATE TABLE MATERIALIZED VIEW KEY
    PRIMARY DROP INSERT UPSERT INTO VALUES UPDATE SET DELETE SHOW TABLES VIEWS DESCRIBE EXPLAIN BIGINT INT STRING
    DECIMAL DATE TIMESTAMP BOOLEAN DOUBLE
"""


_COMMAND_ALIASES = {r"\?": r"\h", r"\quit": r"\q", "help": r"\h", "exit": r"\q", "quit": r"\q"}
"""Commands of other shells."""
_REFRESH_SECONDS = 1.0


class NameCompleter(Completer):
    """Completes the names of tables, views and their columns, and SQL keywords."""

    def __init__(self, db: Any) -> None:
        self.db = db
        self._cached_names: set[str] = set()
        self._refreshed_at = float("-inf")

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        word = document.get_word_before_cursor(pattern=re.compile(r"[\w`]+"))
        if not word:
            return
        for name in [*sorted(self._completion_names()), *_SQL_WORDS.split()]:
            if name.lower().startswith(word.lower()) and name != word:
                yield Completion(name, start_position=-len(word))

    def _completion_names(self) -> set[str]:
        """The names, read again at intervals: the database may be behind a server, which may be unavailable for a
        moment."""
        if time.monotonic() - self._refreshed_at > _REFRESH_SECONDS:
            with suppress(ViewkeeperError):
                tables = [*self.db.tables(), *self.db.views()]
                self._cached_names = {t.name for t in tables} | {name for t in tables for name in t.schema.names}
            self._refreshed_at = time.monotonic()
        return self._cached_names


def shell(db: Any, output_format: str, url: str) -> None:
    """Read and run statements until the end of the input. `db`: an open database, or a client of a server."""
    session: PromptSession[str] = PromptSession(
        history=_history(), completer=NameCompleter(db), complete_while_typing=False
    )
    typer.echo(f"viewkeeper {__version__} on {url}; \\h for help, \\q to leave")
    pending = ""
    while True:
        try:
            line = session.prompt("vk> " if not pending else "..> ")
        except KeyboardInterrupt:
            pending = ""
            continue
        except EOFError:
            return
        word = line.strip().rstrip(";").lower()
        if not pending and (line.strip().startswith("\\") or word in _COMMAND_ALIASES):
            command = _COMMAND_ALIASES.get(word, line.strip())
            if command == r"\q":
                return
            _run_guarded(_run_command, db, command, output_format)
            continue
        pending += line + "\n"
        found = complete_statements(pending)
        if found is not None or not pending.strip():
            pending = ""
        for statement in found or ():
            _run_guarded(_run_statement, db, statement, output_format)


def complete_statements(text: str) -> list[str] | None:
    """The statements of a text that ends with a semicolon; None if the statement continues."""
    from viewkeeper.syntax.statements import split

    try:
        found = split(text)
        # A word appended to the text begins a new statement only if the last one has ended, and no quote or comment is
        # open.
        return found if len(split(f"{text}\nword")) > len(found) else None
    except BadStatement:
        return None


def _run_guarded(action: Any, db: Any, text: str, output_format: str) -> None:
    from viewkeeper.cli.app import format_error

    try:
        action(db, text, output_format)
    except ViewkeeperError as error:
        typer.echo(format_error(error), err=True)
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
    except Exception as error:  # an unexpected error must not end the shell and lose what was typed
        typer.echo(f"error: {type(error).__name__}: {error}", err=True)


def _run_statement(db: Any, text: str, output_format: str) -> None:
    with show_spinner(text), quiet_jvm():
        answer = db.sql(text)
    if answer.has_rows:
        print_answer(text, answer.to_arrow(), output_format)
    else:
        typer.echo(answer.done or "done")


def _run_command(db: Any, text: str, output_format: str) -> None:
    word, _, name = text.partition(" ")
    if word == r"\h":
        typer.echo((__doc__ or "").split("\n\n")[1])
    elif word == r"\d" and name:
        statement = f"DESCRIBE {name.strip().rstrip(';')}"
        print_answer(statement, db.sql(statement).to_arrow(), output_format)
    elif word == r"\d":
        for kind in ("TABLES", "VIEWS"):
            names = db.sql(f"SHOW {kind}").column(0).to_pylist()
            typer.echo(f"{kind.lower():8}{', '.join(names) or '(none)'}")
    else:
        raise BadStatement(f"There is no command {word}.", hint=r"\h lists them.")


def _history() -> History:
    """The history in the user's state directory; if that cannot be written, for this session only."""
    base = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    try:
        (base / "viewkeeper").mkdir(parents=True, exist_ok=True)
        path = base / "viewkeeper" / "history"
        path.touch(mode=0o600)
        return FileHistory(str(path))
    except OSError:
        return InMemoryHistory()
