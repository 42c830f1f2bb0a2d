"""The words of a statement: a cursor over its tokens.

A word is taken as it stands in the text, so what is left over after the statement's own part (a view's query) can be
handed on untouched.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from viewkeeper.errors import BadStatement
from viewkeeper.model.names import refuse_long
from viewkeeper.syntax.lexer import Token, tokens

SUPPORTED = (
    "CREATE TABLE, ALTER TABLE, DROP TABLE, CREATE MATERIALIZED VIEW, ALTER MATERIALIZED VIEW, "
    "DROP MATERIALIZED VIEW, CREATE INDEX, ALTER INDEX, DROP INDEX, SHOW TABLES, SHOW VIEWS, SHOW INDEXES, "
    "SHOW CREATE TABLE, SHOW CREATE VIEW, SHOW CREATE INDEX, DESCRIBE, EXPLAIN"
)


def statements(text: str) -> Iterator[Sequence[Token]]:
    """The tokens of each statement; semicolons divide them."""
    current: list[Token] = []
    for token in tokens(text):
        if token.value != ";" or token.kind != "sign":
            current.append(token)
        elif current:
            yield current
            current = []
    if current:
        yield current


class Words:
    """A cursor over the tokens of one statement."""

    def __init__(self, text: str, tokens: Sequence[Token]) -> None:
        self.text = text
        self.tokens = tokens
        self.next = 0

    def done(self) -> bool:
        return self.next >= len(self.tokens)

    def written(self, ahead: int = 0) -> str:
        """A token as it stands in the text, quotes and all."""
        if self.next + ahead >= len(self.tokens):
            return ""
        token = self.tokens[self.next + ahead]
        return self.text[token.start : token.end]

    def shown(self, *, begins: bool = True) -> str:
        """What comes next, for an error. `begins`: the sentence begins with it."""
        if self.done():
            return "The end of the text" if begins else "the end of the text"
        token = self.tokens[self.next]
        return f"{quoted(self.written())} (line {token.line})"

    def take(self, *words: str) -> bool:
        """Step over these words if they are next."""
        if any(self.written(i).upper() != word for i, word in enumerate(words)):
            return False
        self.next += len(words)
        return True

    def at(self, word: str) -> bool:
        return self.written().upper() == word

    def need(self, *words: str) -> None:
        for word in words:
            if not self.take(word):
                raise BadStatement(f"{self.shown()} is where {word} should be.", hint=f"Write {word} there.")

    def end(self) -> None:
        if not self.done():
            raise BadStatement(f"{self.shown()} is more than the statement takes.", hint="Take it out.")

    def word(self) -> str:
        """The next token as written, whatever it is."""
        word = self.written()
        self.next += 1
        return word

    def name(self, what: str) -> str:
        """A name, plain or in backticks. Keywords are names too, as in Spark."""
        word = self._part(what)
        if self.at(".") and self.written(1).strip("`").upper() == "PARAMETERS":
            self.next += 2  # the table of a family's parameters is called after the family
            return f"{word}.parameters"
        if self.at("."):
            raise BadStatement(f"The name of a {what} has one part; {word} goes on with a dot.", hint="Take it out.")
        return word

    def new_name(self, what: str) -> str:
        """The name of what is to be made, or renamed to it."""
        word = self.name(what)
        refuse_long(word, what)
        return word

    def dotted(self, what: str) -> str:
        """A name of one or more parts, as the options of a store have."""
        found = [self._part(what)]
        while self.take("."):
            found.append(self._part(what))
        return ".".join(found)

    def _part(self, what: str) -> str:
        if self.done():
            raise BadStatement(f"The text ends where the name of a {what} should be.", hint="Write the name.")
        token, word = self.tokens[self.next], self.written()
        if token.kind == "name":
            word = token.value
        elif not re.fullmatch(r"[^\W\d]\w*", word):
            raise BadStatement(
                f"{self.shown()} is no name of a {what}.",
                hint="A name has letters, digits and _; anything else goes in backticks.",
            )
        if not word.strip() or not word.isprintable():
            raise BadStatement(f"The name of a {what} is empty or has control characters.", hint="Choose another one.")
        self.next += 1
        return word

    def names(self, what: str) -> tuple[str, ...]:
        """( name, … )"""
        self.need("(")
        found = [self.name(what)]
        while self.take(","):
            found.append(self.name(what))
        self.need(")")
        return tuple(found)

    def number(self) -> int:
        word = self.written()
        if not word.isdecimal():
            raise BadStatement(f"{self.shown()} is where a number should be.", hint="Write it as in DECIMAL(12,2).")
        self.next += 1
        return int(word)

    def numbers(self) -> tuple[int, ...]:
        """number, … ): what follows a type's opening parenthesis."""
        found = [self.number()]
        while self.take(","):
            found.append(self.number())
        self.need(")")
        return tuple(found)

    def value(self) -> str:
        """An option's value: text in quotes, a number, or a word such as true."""
        if self.done() or not re.fullmatch(r"[\w.'\"-].*", self.written(), re.DOTALL):
            raise BadStatement(f"{self.shown()} is no option value.", hint="Write name = 'value'.")
        token = self.tokens[self.next]
        self.next += 1
        return token.value

    def rest(self) -> str:
        """All the text that is left, as written."""
        if self.done():
            return ""
        found = self.text[self.tokens[self.next].start : self.tokens[-1].end]
        self.next = len(self.tokens)
        return found


def quoted(text: str) -> str:
    line = " ".join(text.split())
    return repr(line if len(line) <= 40 else line[:37] + "...")
