"""A query's text with the new names of one table and its columns in place of the old ones.

Nothing is resolved here: a word is replaced only where the words around it, and the columns of the query's other
tables, leave it one meaning. Otherwise there is no such text, and None is given.

    SELECT category, sum(price) FROM items i GROUP BY category          items.price is called cost
    SELECT category, sum(cost) AS `sum(price)` FROM items i GROUP BY category

The columns of the result keep their names, so an item of the SELECT list that was called after a word of it gets an
alias.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from viewkeeper.model.catalog.view import TextNames
from viewkeeper.model.names import backticked
from viewkeeper.model.schema import Table
from viewkeeper.syntax.lexer import Token, tokens

_BEFORE_VALUE = frozenset({
    "SELECT", "DISTINCT", "ALL", "BY", "AND", "OR", "NOT", "ON", "WHERE", "HAVING", "WHEN", "THEN", "ELSE", "CASE",
    "BETWEEN", "IN", "LIKE", "RLIKE", "ILIKE", "DIV", "FROM",
})  # fmt: skip
"""Words after which a column may stand; behind another word, it would be an alias."""
_BEFORE_TABLE = frozenset({"FROM", "JOIN", ",", "("})
_AFTER_TABLE = frozenset({
    "WHERE", "ON", "JOIN", "LEFT", "RIGHT", "INNER", "FULL", "CROSS", "SEMI", "ANTI", "GROUP", "ORDER", "SORT",
    "HAVING", "LIMIT", "OFFSET", "UNION", "EXCEPT", "INTERSECT", "MINUS", "USING", "NATURAL", "LATERAL", "WINDOW",
    "TABLESAMPLE", "CLUSTER", "DISTRIBUTE",
})  # fmt: skip
_MEANINGFUL = _BEFORE_VALUE | _AFTER_TABLE | {
    "AS", "ASC", "DESC", "END", "NULL", "NULLS", "TRUE", "FALSE", "IS", "EXISTS", "CAST", "WITH", "VALUES", "OVER",
    "PARTITION", "ROWS", "RANGE", "FIRST", "LAST", "FILTER", "INTERVAL", "DATE", "TIMESTAMP", "TIMESTAMP_NTZ", "YEAR",
    "QUARTER", "MONTH", "WEEK", "DAY", "HOUR", "MINUTE", "SECOND", "TABLE", "PIVOT", "UNPIVOT", "ESCAPE", "USING",
}  # fmt: skip
"""Words that mean something without being a name: a column that is called so cannot be told from them."""
_OPERATORS = frozenset("+-*/%=<>!&|^~(,[")


class _Ambiguous(Exception):
    """A word may mean something else."""


def renamed_text(
    text: str, names: TextNames, table: Table, others: frozenset[str], outputs: Sequence[str]
) -> str | None:
    """`others`: the columns of other tables that the query reads, in lower case; `outputs`: those of its result."""
    try:
        return _Text(text, names, table, others).renamed(outputs)
    except _Ambiguous:
        return None


class _Text:
    def __init__(self, text: str, names: TextNames, table: Table, others: frozenset[str]) -> None:
        self._text, self._names, self._table, self._others = text, names, table, others
        self._found: list[Token] = list(tokens(text))
        now = {table.first_inside(c.inside): c.name for c in table.columns}
        pairs = [(old, now[inside]) for old, inside in names.columns if inside in now]
        self._columns = {old.lower(): new for old, new in pairs if old.lower() != new.lower()}
        self._was, self._is = names.name.lower(), table.name.lower()
        known = {inside for _, inside in names.columns}
        self._added = {name.lower() for inside, name in now.items() if inside not in known}

    def renamed(self, outputs: Sequence[str]) -> str:
        words = {t.value.lower() for t in self._found if t.kind in ("word", "name")}
        new = {name.lower() for name in self._columns.values()} | ({self._is} if self._is != self._was else set())
        if words & (new | self._added) or new & self._others:
            raise _Ambiguous
        if any(name.upper() in _MEANINGFUL for name in (*self._columns, self._was)):
            raise _Ambiguous
        if any(old in word for word in words for old in self._columns if old != word and "(" in word):
            raise _Ambiguous  # a name that Spark made of an expression
        aliases = self._aliases()
        edits = {at: name for at in range(len(self._found)) if (name := self._replacement(at, aliases)) is not None}
        behind = self._kept_names(edits, outputs) if self._columns else {}
        parts, done = [], 0
        for at, token in enumerate(self._found):
            if at in edits:
                parts += [self._text[done : token.start], _spelt(edits[at])]
                done = token.end
            if at in behind:
                parts += [self._text[done : token.end], f" AS {backticked(behind[at])}"]
                done = token.end
        return "".join([*parts, self._text[done:]])

    def _at(self, at: int) -> str:
        """A token in capitals; nothing for texts, and beyond both ends."""
        if not 0 <= at < len(self._found) or self._found[at].kind not in ("word", "sign", "name"):
            return ""
        return self._found[at].value.upper()

    def _is_name(self, at: int) -> bool:
        return 0 <= at < len(self._found) and self._found[at].kind in ("word", "name")

    def _aliases(self) -> frozenset[str]:
        """What the table is called in the query; _Ambiguous if one of these names is given twice."""
        found: list[str] = []
        for at in range(len(self._found)):
            if self._is_name(at) and self._at(at).lower() == self._was and self._at(at - 1) in _BEFORE_TABLE:
                alias = at + 1 + (self._at(at + 1) == "AS")
                own = self._is_name(alias) and self._at(alias) not in _AFTER_TABLE
                found.append(self._at(alias).lower() if own else self._was)
        for name in set(found) - {self._was}:
            given = [at for at in range(len(self._found)) if self._is_name(at) and self._at(at).lower() == name]
            if sum(self._at(at + 1) != "." for at in given) > 1:
                raise _Ambiguous
        return frozenset(found)

    def _replacement(self, at: int, aliases: frozenset[str]) -> str | None:
        if not self._is_name(at):
            return None
        word = self._at(at).lower()
        if word == self._was and self._is != self._was:
            if word in self._others or any(word == old.lower() for old, _ in self._names.columns):
                raise _Ambiguous
            if self._at(at + 1) != "." and self._at(at - 1) not in _BEFORE_TABLE:
                raise _Ambiguous
            return self._table.name
        new = self._columns.get(word)
        if new is None:
            return None
        if self._at(at + 1) in ("(", ".") or word == self._was:
            raise _Ambiguous
        if self._at(at - 1) == ".":
            owned = self._at(at - 2).lower() in aliases
            return new if owned or word not in self._others else None
        before = self._at(at - 1)
        if word in self._others or not (before in _BEFORE_VALUE or before in _OPERATORS):
            raise _Ambiguous
        return new

    def _kept_names(self, edits: dict[int, str], outputs: Sequence[str]) -> dict[int, str]:
        """By the last token of each item of the SELECT list that would be called otherwise: its name."""
        items = list(self._items())
        if len(items) != len(outputs):
            raise _Ambiguous
        changed = ((item, name) for item, name in zip(items, outputs, strict=True) if edits.keys() & set(item))
        return {
            item[-1]: name
            for item, name in changed
            if item[-1] in edits or not self._is_name(item[-1]) or self._at(item[-1]).lower() != name.lower()
        }

    def _items(self) -> Iterator[range]:
        """The items of the first SELECT list outside of parentheses."""
        depth, start = 0, None
        for at, token in enumerate(self._found):
            sign = token.value if token.kind == "sign" else ""
            depth += (sign in ("(", "[")) - (sign in (")", "]"))
            if depth:
                continue
            if start is None:
                if self._at(at) == "SELECT":
                    start = at + 1 + (self._at(at + 1) in ("DISTINCT", "ALL"))
            elif sign == "," or (token.kind == "word" and self._at(at) in ("FROM", *_AFTER_TABLE)):
                yield range(start, at)
                start = at + 1
                if sign != ",":
                    return
        if start is not None:
            yield range(start, len(self._found))


def _spelt(name: str) -> str:
    """A name as it can stand in a query: words that may mean something else go in backticks."""
    plain = name.isascii() and name.replace("_", "a").isalnum() and name[0].isalpha()
    return name if plain and name.upper() not in _MEANINGFUL else backticked(name)
