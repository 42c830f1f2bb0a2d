"""A cursor over the tokens of a statement.

A token keeps its position in the text, so that the rest of a statement (a view's query) can be passed on unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from viewkeeper.errors import BadStatement
from viewkeeper.model.names import check_name_length
from viewkeeper.syntax.lexer import SqlToken, lex

SUPPORTED = (
    "CREATE TABLE, ALTER TABLE, DROP TABLE, CREATE MATERIALIZED VIEW, ALTER MATERIALIZED VIEW, "
    "DROP MATERIALIZED VIEW, CREATE INDEX, ALTER INDEX, DROP INDEX, SHOW TABLES, SHOW VIEWS, SHOW INDEXES, "
    "SHOW CREATE TABLE, SHOW CREATE VIEW, SHOW CREATE INDEX, DESCRIBE, EXPLAIN"
)


def split_statements(text: str) -> Iterator[Sequence[SqlToken]]:
    """Yield the tokens of each statement; semicolons separate statements."""
    current: list[SqlToken] = []
    for token in lex(text):
        if token.value != ";" or token.kind != "sign":
            current.append(token)
        elif current:
            yield current
            current = []
    if current:
        yield current


class TokenCursor:
    """A cursor over the tokens of one statement."""

    def __init__(self, text: str, tokens: Sequence[SqlToken]) -> None:
        self.text = text
        self.tokens = tokens
        self.index = 0

    def is_at_end(self) -> bool:
        return self.index >= len(self.tokens)

    def token_text(self, offset: int = 0) -> str:
        """Return a token as written in the text, with its quotes."""
        if self.index + offset >= len(self.tokens):
            return ""
        token = self.tokens[self.index + offset]
        return self.text[token.start : token.end]

    def describe_token(self, *, begins: bool = True) -> str:
        """Describe the next token for an error message. `begins`: the description begins the sentence."""
        if self.is_at_end():
            return "The end of the text" if begins else "the end of the text"
        token = self.tokens[self.index]
        return f"{quote_excerpt(self.token_text())} (line {token.line})"

    def accept(self, *words: str) -> bool:
        """Skip these words if they are next; return whether they were."""
        if any(self.token_text(i).upper() != word for i, word in enumerate(words)):
            return False
        self.index += len(words)
        return True

    def is_at(self, word: str) -> bool:
        return self.token_text().upper() == word

    def expect(self, *words: str) -> None:
        for word in words:
            if not self.accept(word):
                raise BadStatement(f"{self.describe_token()} is where {word} should be.", hint=f"Write {word} there.")

    def expect_end(self) -> None:
        if not self.is_at_end():
            raise BadStatement(f"{self.describe_token()} is more than the statement takes.", hint="Take it out.")

    def read_word(self) -> str:
        """Read the next token as written, of any kind."""
        word = self.token_text()
        self.index += 1
        return word

    def read_name(self, kind: str) -> str:
        """Read a name, plain or in backticks. Keywords are allowed as names, as in Spark."""
        word = self._read_name_part(kind)
        if self.is_at(".") and self.token_text(1).strip("`").upper() == "PARAMETERS":
            self.index += 2  # the table of a family's parameters is named after the family
            return f"{word}.parameters"
        if self.is_at("."):
            raise BadStatement(f"The name of a {kind} has one part; {word} goes on with a dot.", hint="Take it out.")
        return word

    def read_new_name(self, kind: str) -> str:
        """Read the name of an object that the statement creates, or its new name."""
        word = self.read_name(kind)
        check_name_length(word, kind)
        return word

    def read_dotted_name(self, kind: str) -> str:
        """Read a name of one or more parts, as the options of a store have."""
        parts = [self._read_name_part(kind)]
        while self.accept("."):
            parts.append(self._read_name_part(kind))
        return ".".join(parts)

    def _read_name_part(self, kind: str) -> str:
        if self.is_at_end():
            raise BadStatement(f"The text ends where the name of a {kind} should be.", hint="Write the name.")
        token, word = self.tokens[self.index], self.token_text()
        if token.kind == "name":
            word = token.value
        elif not re.fullmatch(r"[^\W\d]\w*", word):
            raise BadStatement(
                f"{self.describe_token()} is no name of a {kind}.",
                hint="A name has letters, digits and _; anything else goes in backticks.",
            )
        if not word.strip() or not word.isprintable():
            raise BadStatement(f"The name of a {kind} is empty or has control characters.", hint="Choose another one.")
        self.index += 1
        return word

    def read_names(self, kind: str) -> tuple[str, ...]:
        """Read `( name, … )`."""
        self.expect("(")
        names = [self.read_name(kind)]
        while self.accept(","):
            names.append(self.read_name(kind))
        self.expect(")")
        return tuple(names)

    def read_number(self) -> int:
        word = self.token_text()
        if not word.isdecimal():
            raise BadStatement(
                f"{self.describe_token()} is where a number should be.", hint="Write it as in DECIMAL(12,2)."
            )
        self.index += 1
        return int(word)

    def read_numbers(self) -> tuple[int, ...]:
        """Read `number, … )`, the rest after a type's opening parenthesis."""
        numbers = [self.read_number()]
        while self.accept(","):
            numbers.append(self.read_number())
        self.expect(")")
        return tuple(numbers)

    def read_value(self) -> str:
        """Read an option's value: a text in quotes, a number, or a word such as true."""
        if self.is_at_end() or not re.fullmatch(r"[\w.'\"-].*", self.token_text(), re.DOTALL):
            raise BadStatement(f"{self.describe_token()} is no option value.", hint="Write name = 'value'.")
        token = self.tokens[self.index]
        self.index += 1
        return token.value

    def read_rest(self) -> str:
        """Read the rest of the text, as written."""
        if self.is_at_end():
            return ""
        rest = self.text[self.tokens[self.index].start : self.tokens[-1].end]
        self.index = len(self.tokens)
        return rest


def quote_excerpt(text: str) -> str:
    line = " ".join(text.split())
    return repr(line if len(line) <= 40 else line[:37] + "...")
