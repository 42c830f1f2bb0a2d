"""A token: the position of a write, or of a state that was read, as a short text.

`vk1:<database uuid>:<position>`. Merging takes the later token; a token of another database is an error.
"""

from __future__ import annotations

from dataclasses import dataclass

from viewkeeper.errors import BadToken


@dataclass(frozen=True, order=True)
class Token:
    """The position of a write, returned by `put`, `delete`. `atomic` says whether all rows became visible at once."""

    database: str
    position: int
    atomic: bool = True

    def __str__(self) -> str:
        return f"vk1:{self.database}:{self.position}"

    def merge(self, *others: Token) -> Token:
        """Return the latest of these tokens."""
        for other in others:
            if other.database != self.database:
                raise BadToken(f"Token {other} belongs to another database than {self}.")
        return max((self, *others), key=lambda t: t.position)

    @staticmethod
    def parse(text: str) -> Token:
        parts = text.split(":") if isinstance(text, str) else []
        if (
            len(parts) != 3
            or parts[0] != "vk1"
            or not parts[2].isascii()
            or not parts[2].isdigit()
            or len(parts[2]) > 20
        ):
            raise BadToken(f"{str(text)[:60]!r} is no token.", hint="A token looks like vk1:<database>:<position>.")
        return Token(parts[1], int(parts[2]))
