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
from viewkeeper.syntax.cursor import Words, statements
from viewkeeper.syntax.lexer import open_names, tokens
from viewkeeper.syntax.literals import bound

_PLACE = re.compile(r"line (\d+)(,? pos(?:ition)? )(\d+)")
"""Where Spark says an error is, within the query that it was given: lines from 1, columns from 0."""
_NAMED = re.compile(r"Statements? \d+(?: to \d+)? \(lines? (\d+)(?: to \d+)?\): ")
"""How an error begins that says its statement already: one of views that a server, or a step, was given together."""
_NO_PLACE = re.compile(r"[;,]?\s*\(?" + _PLACE.pattern + r"\)?")


@dataclass(frozen=True)
class Step:
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
    def naming_errors(self) -> Iterator[None]:
        """Let an error say which statement it is of, where the text has several."""
        try:
            yield
        except ViewkeeperError as error:
            if not self.is_only:
                inner = _NAMED.match(error.message)
                at = self._index(error.view, int(inner[1]) if inner is not None else 0)
                error.message = f"{self._place(at)}: {error.message[inner.end() if inner is not None else 0 :]}"
                if self.number > 1:
                    error.message += " The statements before it have run."
            raise

    def _index(self, view: str, line: int) -> int | None:
        """Which of the statements an error is of: by the view that it names, or the line that was said already."""
        if len(self.statements) == 1:
            return 0
        named = (i for i, text in enumerate(self.statements) if view and _makes(text, view))
        return next(named, self.lines.index(line) if line in self.lines else None)

    def _place(self, at: int | None) -> str:
        if at is not None:
            return f"Statement {self.number + at} (line {self.lines[at]})"
        last = self.number + len(self.statements) - 1
        return f"Statements {self.number} to {last} (lines {self.lines[0]} to {self.lines[-1]})"


def steps(text: str, values: Mapping[str, Any] | None = None) -> list[Step]:
    """The steps of a text, with literals for the names that it leaves open; none if there is no statement in it."""
    found = list(statements(text))
    written = [text[words[0].start : words[-1].end] for words in found]
    _refuse_unused(text, values or {})
    made, at = [], 0
    groups = list(spelt.together(written))
    for group in groups:
        first, last = found[at], found[at + len(group) - 1]
        lines = tuple(words[0].line for words in found[at : at + len(group)])
        piece = text if len(groups) == 1 else "\n" * (lines[0] - 1) + text[first[0].start : last[-1].end]
        is_only = len(found) == 1
        made.append(Step(_bound(piece, values or {}), tuple(group), lines, at + 1, is_only))
        at += len(group)
    return made


def _refuse_unused(text: str, values: Mapping[str, Any]) -> None:
    named = {name.value for _, name in open_names(list(tokens(text)))} if values else set()
    if unused := sorted(set(values) - named):
        raise BadValue(f"The statement has no :{unused[0]}.", hint="Write it where the value should stand.")


def _bound(text: str, values: Mapping[str, Any]) -> str:
    if not values and ":" not in text:
        return text
    named = {name.value for _, name in open_names(list(tokens(text)))}
    return bound(text, {name: value for name, value in values.items() if name in named})


def _makes(text: str, view: str) -> bool:
    found = spelt.parse(text)
    return isinstance(found, spelt.CreateView) and found.name.lower() == view.lower()


@contextmanager
def counting_lines(text: str, written: Sequence[Words]) -> Iterator[None]:
    """Let an error of Spark's count lines and columns in the whole text, not in the query that Spark was given.

    `written`: the statements that are run. Where Spark was given another query than what stands there, its place says
    nothing and is left out.
    """
    try:
        yield
    except ViewkeeperError as error:
        words = next((w for w in written if error.view and _makes(_text(w), error.view)), written[0])
        start = _query_start(words)

        def moved(place: re.Match[str]) -> str:
            line, column = int(place[1]), int(place[3])
            before = text[:start]
            column += len(before) - (before.rfind("\n") + 1) if line == 1 else 0
            return f"line {line + before.count(chr(10))}{place[2]}{column}"

        pattern = _NO_PLACE if start is None else _PLACE
        error.message = pattern.sub("" if start is None else moved, error.message)
        raise


def _text(words: Words) -> str:
    return words.text[words.tokens[0].start : words.tokens[-1].end]


def _query_start(words: Words) -> int | None:
    """Where the query of a statement begins in the text; None if it has none that Spark is given as it is."""
    first = words.tokens[0]
    kind = words.text[first.start : first.end].upper()
    if kind in ("SELECT", "WITH", "VALUES", "FROM", "("):
        return first.start
    if kind in ("INSERT", "UPSERT", "EXPLAIN"):
        starts = ("SELECT", "WITH", "VALUES", "FROM")
        return next((t.start for t in words.tokens if t.kind == "word" and t.value.upper() in starts), None)
    if kind != "CREATE":
        return None
    try:
        made = spelt.parse(_text(words))
    except BadStatement:
        return None
    if not isinstance(made, spelt.CreateView):
        return None
    found = words.text.rfind(made.query, first.start, words.tokens[-1].end)
    return found if found >= 0 else None
