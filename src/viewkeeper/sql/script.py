"""The statements of one text, for `db.sql`, `vk sql` and the clients of a server.

They run one after the other, and each has a result. Consecutive new views are one step, which is one batch. When a
statement fails, those before it have run and those after it have not; the error names the statement and its line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from viewkeeper.errors import BadStatement, BadValue, ViewkeeperError
from viewkeeper.syntax import statements as spelt
from viewkeeper.syntax.cursor import TokenCursor, split_statements
from viewkeeper.syntax.lexer import find_parameters, lex
from viewkeeper.syntax.literals import bind_parameters

_LOCATION = re.compile(r"line (\d+)(,? pos(?:ition)? )(\d+)")
"""Where Spark locates an error within the query that it received: lines from 1, columns from 0."""
_NAMED_STATEMENT = re.compile(r"Statements? \d+(?: to \d+)? \(lines? (\d+)(?: to \d+)?\): ")
"""Prefix of an error that already names its statement: from several views that one step or a server created."""
_LOCATION_CLAUSE = re.compile(r"[;,]?\s*\(?" + _LOCATION.pattern + r"\)?")


@dataclass(frozen=True)
class ScriptStep:
    """What runs at once: a statement, or several that create views."""

    text: str
    """The text with its bound values, after as many empty lines as make errors count the lines of the whole text."""
    statements: tuple[str, ...]
    lines: tuple[int, ...]
    """The line in which each statement begins, from 1."""
    number: int
    """The number of the first statement in the text, from 1."""
    is_only: bool

    @contextmanager
    def locate_errors(self) -> Iterator[None]:
        """Add to an error the statement that it belongs to, if the text has several."""
        try:
            yield
        except ViewkeeperError as error:
            if not self.is_only:
                inner = _NAMED_STATEMENT.match(error.message)
                index = self._statement_index(error.view, int(inner[1]) if inner is not None else 0)
                error.message = (
                    f"{self._describe_location(index)}: {error.message[inner.end() if inner is not None else 0 :]}"
                )
                if self.number > 1:
                    error.message += " The statements before it have run."
            raise

    def _statement_index(self, view: str, line: int) -> int | None:
        """Which statement an error belongs to: by the view that it names, or by the line that it already has."""
        if len(self.statements) == 1:
            return 0
        matching = (i for i, text in enumerate(self.statements) if view and _creates_view(text, view))
        return next(matching, self.lines.index(line) if line in self.lines else None)

    def _describe_location(self, index: int | None) -> str:
        if index is not None:
            return f"Statement {self.number + index} (line {self.lines[index]})"
        last = self.number + len(self.statements) - 1
        return f"Statements {self.number} to {last} (lines {self.lines[0]} to {self.lines[-1]})"


def split_steps(text: str, values: Mapping[str, Any] | None = None) -> list[ScriptStep]:
    """The steps of a text, with literals in place of its parameters; empty if the text has no statement."""
    tokens = list(split_statements(text))
    written = [text[words[0].start : words[-1].end] for words in tokens]
    _refuse_unused(text, values or {})
    steps, index = [], 0
    groups = list(spelt.group_view_statements(written))
    for group in groups:
        first, last = tokens[index], tokens[index + len(group) - 1]
        lines = tuple(words[0].line for words in tokens[index : index + len(group)])
        piece = text if len(groups) == 1 else "\n" * (lines[0] - 1) + text[first[0].start : last[-1].end]
        is_only = len(tokens) == 1
        steps.append(ScriptStep(_bind_parameters(piece, values or {}), tuple(group), lines, index + 1, is_only))
        index += len(group)
    return steps


def _refuse_unused(text: str, values: Mapping[str, Any]) -> None:
    names = {name.value for _, name in find_parameters(list(lex(text)))} if values else set()
    if unused := sorted(set(values) - names):
        raise BadValue(f"The statement has no :{unused[0]}.", hint="Write it where the value should stand.")


def _bind_parameters(text: str, values: Mapping[str, Any]) -> str:
    if not values and ":" not in text:
        return text
    names = {name.value for _, name in find_parameters(list(lex(text)))}
    return bind_parameters(text, {name: value for name, value in values.items() if name in names})


def _creates_view(text: str, view: str) -> bool:
    found = spelt.parse(text)
    return isinstance(found, spelt.CreateView) and found.name.lower() == view.lower()


@contextmanager
def count_lines_from_text(text: str, cursors: Sequence[TokenCursor]) -> Iterator[None]:
    """Make an error of Spark count lines and columns in the whole text, not in the query that Spark received.

    `cursors`: the statements that run. If Spark received another query than the one in the text, the location is
    meaningless and is removed.
    """
    try:
        yield
    except ViewkeeperError as error:
        words = next((w for w in cursors if error.view and _creates_view(_statement_text(w), error.view)), cursors[0])
        start = _query_start(words)

        def shifted(location: re.Match[str]) -> str:
            line, column = int(location[1]), int(location[3])
            before = text[:start]
            column += len(before) - (before.rfind("\n") + 1) if line == 1 else 0
            return f"line {line + before.count(chr(10))}{location[2]}{column}"

        pattern = _LOCATION_CLAUSE if start is None else _LOCATION
        error.message = pattern.sub("" if start is None else shifted, error.message)
        raise


def _statement_text(cursor: TokenCursor) -> str:
    return cursor.text[cursor.tokens[0].start : cursor.tokens[-1].end]


def _query_start(cursor: TokenCursor) -> int | None:
    """Where the query of a statement begins in the text; None if Spark does not receive it as it is written."""
    first = cursor.tokens[0]
    kind = cursor.text[first.start : first.end].upper()
    if kind in ("SELECT", "WITH", "VALUES", "FROM", "("):
        return first.start
    if kind in ("INSERT", "UPSERT", "EXPLAIN"):
        starts = ("SELECT", "WITH", "VALUES", "FROM")
        return next((t.start for t in cursor.tokens if t.kind == "word" and t.value.upper() in starts), None)
    if kind != "CREATE":
        return None
    try:
        parsed = spelt.parse(_statement_text(cursor))
    except BadStatement:
        return None
    if not isinstance(parsed, spelt.CreateView):
        return None
    found = cursor.text.rfind(parsed.query, first.start, cursor.tokens[-1].end)
    return found if found >= 0 else None
