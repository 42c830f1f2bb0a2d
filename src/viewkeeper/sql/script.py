"""The statements of one text: what `db.sql`, `vk sql` and the clients of a server do with several.

They run one after the other, and each has a result. New views that follow each other are one step, which is one batch.
When a statement fails, those before it have run and those after it have not; the error says which one it was, and in
which line.
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
"""Where Spark says an error is, within the query that it was given: lines from 1, columns from 0."""
_NAMED_STATEMENT = re.compile(r"Statements? \d+(?: to \d+)? \(lines? (\d+)(?: to \d+)?\): ")
"""How an error begins that says its statement already: one of views that a server, or a step, was given together."""
_LOCATION_CLAUSE = re.compile(r"[;,]?\s*\(?" + _LOCATION.pattern + r"\)?")


@dataclass(frozen=True)
class ScriptStep:
    """What is run at once: a statement, or several that make views."""

    text: str
    """With the empty lines before it that make errors count the lines of the whole text, and with its values."""
    statements: tuple[str, ...]
    lines: tuple[int, ...]
    """The line in which each of them begins, from 1."""
    number: int
    """Of the first of them in the text, from 1."""
    is_only: bool

    @contextmanager
    def locate_errors(self) -> Iterator[None]:
        """Let an error say which statement it is of, where the text has several."""
        try:
            yield
        except ViewkeeperError as error:
            if not self.is_only:
                inner = _NAMED_STATEMENT.match(error.message)
                at = self._statement_index(error.view, int(inner[1]) if inner is not None else 0)
                error.message = (
                    f"{self._describe_location(at)}: {error.message[inner.end() if inner is not None else 0 :]}"
                )
                if self.number > 1:
                    error.message += " The statements before it have run."
            raise

    def _statement_index(self, view: str, line: int) -> int | None:
        """Which of the statements an error is of: by the view that it names, or the line that was said already."""
        if len(self.statements) == 1:
            return 0
        named = (i for i, text in enumerate(self.statements) if view and _creates_view(text, view))
        return next(named, self.lines.index(line) if line in self.lines else None)

    def _describe_location(self, index: int | None) -> str:
        if index is not None:
            return f"Statement {self.number + index} (line {self.lines[index]})"
        last = self.number + len(self.statements) - 1
        return f"Statements {self.number} to {last} (lines {self.lines[0]} to {self.lines[-1]})"


def split_steps(text: str, values: Mapping[str, Any] | None = None) -> list[ScriptStep]:
    """The steps of a text, with literals for the names that it leaves open; none if there is no statement in it."""
    found = list(split_statements(text))
    written = [text[words[0].start : words[-1].end] for words in found]
    _refuse_unused(text, values or {})
    made, at = [], 0
    groups = list(spelt.group_view_statements(written))
    for group in groups:
        first, last = found[at], found[at + len(group) - 1]
        lines = tuple(words[0].line for words in found[at : at + len(group)])
        piece = text if len(groups) == 1 else "\n" * (lines[0] - 1) + text[first[0].start : last[-1].end]
        is_only = len(found) == 1
        made.append(ScriptStep(_bind_parameters(piece, values or {}), tuple(group), lines, at + 1, is_only))
        at += len(group)
    return made


def _refuse_unused(text: str, values: Mapping[str, Any]) -> None:
    named = {name.value for _, name in find_parameters(list(lex(text)))} if values else set()
    if unused := sorted(set(values) - named):
        raise BadValue(f"The statement has no :{unused[0]}.", hint="Write it where the value should stand.")


def _bind_parameters(text: str, values: Mapping[str, Any]) -> str:
    if not values and ":" not in text:
        return text
    named = {name.value for _, name in find_parameters(list(lex(text)))}
    return bind_parameters(text, {name: value for name, value in values.items() if name in named})


def _creates_view(text: str, view: str) -> bool:
    found = spelt.parse(text)
    return isinstance(found, spelt.CreateView) and found.name.lower() == view.lower()


@contextmanager
def count_lines_from_text(text: str, cursors: Sequence[TokenCursor]) -> Iterator[None]:
    """Let an error of Spark's count lines and columns in the whole text, not in the query that Spark was given.

    `written`: the statements that are run. Where Spark was given another query than what stands there, its place says
    nothing and is left out.
    """
    try:
        yield
    except ViewkeeperError as error:
        words = next((w for w in cursors if error.view and _creates_view(_statement_text(w), error.view)), cursors[0])
        start = _query_start(words)

        def moved(place: re.Match[str]) -> str:
            line, column = int(place[1]), int(place[3])
            before = text[:start]
            column += len(before) - (before.rfind("\n") + 1) if line == 1 else 0
            return f"line {line + before.count(chr(10))}{place[2]}{column}"

        pattern = _LOCATION_CLAUSE if start is None else _LOCATION
        error.message = pattern.sub("" if start is None else moved, error.message)
        raise


def _statement_text(cursor: TokenCursor) -> str:
    return cursor.text[cursor.tokens[0].start : cursor.tokens[-1].end]


def _query_start(cursor: TokenCursor) -> int | None:
    """Where the query of a statement begins in the text; None if it has none that Spark is given as it is."""
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
        made = spelt.parse(_statement_text(cursor))
    except BadStatement:
        return None
    if not isinstance(made, spelt.CreateView):
        return None
    found = cursor.text.rfind(made.query, first.start, cursor.tokens[-1].end)
    return found if found >= 0 else None
