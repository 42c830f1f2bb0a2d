"""A query's text with the new names of one altered table and its columns.

No names are resolved here: a word is replaced only if its neighbours and the columns of the query's other tables leave
it a single meaning. If a word stays ambiguous, the result is None.

    SELECT category, sum(price) FROM items i GROUP BY category          items.price was renamed to cost
    SELECT category, sum(cost) AS `sum(price)` FROM items i GROUP BY category

The columns of the result keep their names, so an item of the SELECT list whose name came from a replaced word gets an
alias.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from viewkeeper.model.catalog.view import TextNames
from viewkeeper.model.names import backticked
from viewkeeper.model.schema import Table
from viewkeeper.syntax.lexer import SqlToken, lex

_BEFORE_VALUE = frozenset({
    "SELECT", "DISTINCT", "ALL", "BY", "AND", "OR", "NOT", "ON", "WHERE", "HAVING", "WHEN", "THEN", "ELSE", "CASE",
    "BETWEEN", "IN", "LIKE", "RLIKE", "ILIKE", "DIV", "FROM",
})  # fmt: skip
"""Words after which a column may follow; after any other word, a name would be an alias."""
_BEFORE_TABLE = frozenset({"FROM", "JOIN", ",", "("})
_AFTER_TABLE = frozenset({
    "WHERE", "ON", "JOIN", "LEFT", "RIGHT", "INNER", "FULL", "CROSS", "SEMI", "ANTI", "GROUP", "ORDER", "SORT",
    "HAVING", "LIMIT", "OFFSET", "UNION", "EXCEPT", "INTERSECT", "MINUS", "USING", "NATURAL", "LATERAL", "WINDOW",
    "TABLESAMPLE", "CLUSTER", "DISTRIBUTE",
})  # fmt: skip
_RESERVED_WORDS = _BEFORE_VALUE | _AFTER_TABLE | {
    "AS", "ASC", "DESC", "END", "NULL", "NULLS", "TRUE", "FALSE", "IS", "EXISTS", "CAST", "WITH", "VALUES", "OVER",
    "PARTITION", "ROWS", "RANGE", "FIRST", "LAST", "FILTER", "INTERVAL", "DATE", "TIMESTAMP", "TIMESTAMP_NTZ", "YEAR",
    "QUARTER", "MONTH", "WEEK", "DAY", "HOUR", "MINUTE", "SECOND", "TABLE", "PIVOT", "UNPIVOT", "ESCAPE", "USING",
}  # fmt: skip
"""Words with a meaning of their own: a column with such a name cannot be distinguished from them."""
_OPERATORS = frozenset("+-*/%=<>!&|^~(,[")


class _AmbiguousName(Exception):
    """A word may have another meaning."""


def rename_in_query(
    text: str, names: TextNames, table: Table, other_columns: frozenset[str], outputs: Sequence[str]
) -> str | None:
    """Return the text with the new names, or None if a name is ambiguous. `other_columns` has the columns of the
    query's other tables in lower case, `outputs` those of its result."""
    try:
        return _QueryText(text, names, table, other_columns).rename(outputs)
    except _AmbiguousName:
        return None


class _QueryText:
    def __init__(self, text: str, names: TextNames, table: Table, other_columns: frozenset[str]) -> None:
        self._text, self._names, self._table, self._other_columns = text, names, table, other_columns
        self._tokens: list[SqlToken] = list(lex(text))
        current = {table.first_internal_name(c.internal_name): c.name for c in table.columns}
        pairs = [(old, current[internal]) for old, internal in names.columns if internal in current]
        self._columns = {old.lower(): new for old, new in pairs if old.lower() != new.lower()}
        self._old_name, self._new_name = names.name.lower(), table.name.lower()
        in_text = {internal for _, internal in names.columns}
        self._added_columns = {name.lower() for internal, name in current.items() if internal not in in_text}

    def rename(self, outputs: Sequence[str]) -> str:
        words = {t.value.lower() for t in self._tokens if t.kind in ("word", "name")}
        new = {name.lower() for name in self._columns.values()} | (
            {self._new_name} if self._new_name != self._old_name else set()
        )
        if words & (new | self._added_columns) or new & self._other_columns:
            raise _AmbiguousName
        if any(name.upper() in _RESERVED_WORDS for name in (*self._columns, self._old_name)):
            raise _AmbiguousName
        if any(old in word for word in words for old in self._columns if old != word and "(" in word):
            raise _AmbiguousName  # Spark derived the name from an expression
        aliases = self._aliases()
        edits = {at: name for at in range(len(self._tokens)) if (name := self._replacement(at, aliases)) is not None}
        item_aliases = self._item_aliases(edits, outputs) if self._columns else {}
        parts, position = [], 0
        for at, token in enumerate(self._tokens):
            if at in edits:
                parts += [self._text[position : token.start], _quote_if_needed(edits[at])]
                position = token.end
            if at in item_aliases:
                parts += [self._text[position : token.end], f" AS {backticked(item_aliases[at])}"]
                position = token.end
        return "".join([*parts, self._text[position:]])

    def _upper_at(self, index: int) -> str:
        """Return a token in capitals; "" for texts and positions outside the query."""
        if not 0 <= index < len(self._tokens) or self._tokens[index].kind not in ("word", "sign", "name"):
            return ""
        return self._tokens[index].value.upper()

    def _is_name(self, index: int) -> bool:
        return 0 <= index < len(self._tokens) and self._tokens[index].kind in ("word", "name")

    def _aliases(self) -> frozenset[str]:
        """Return the table's names in the query; raise _AmbiguousName if an alias may be defined twice."""
        aliases: list[str] = []
        for at in range(len(self._tokens)):
            if (
                self._is_name(at)
                and self._upper_at(at).lower() == self._old_name
                and self._upper_at(at - 1) in _BEFORE_TABLE
            ):
                alias = at + 1 + (self._upper_at(at + 1) == "AS")
                has_alias = self._is_name(alias) and self._upper_at(alias) not in _AFTER_TABLE
                aliases.append(self._upper_at(alias).lower() if has_alias else self._old_name)
        for name in set(aliases) - {self._old_name}:
            occurrences = [
                at for at in range(len(self._tokens)) if self._is_name(at) and self._upper_at(at).lower() == name
            ]
            if sum(self._upper_at(at + 1) != "." for at in occurrences) > 1:
                raise _AmbiguousName
        return frozenset(aliases)

    def _replacement(self, index: int, aliases: frozenset[str]) -> str | None:
        if not self._is_name(index):
            return None
        word = self._upper_at(index).lower()
        if word == self._old_name and self._new_name != self._old_name:
            if word in self._other_columns or any(word == old.lower() for old, _ in self._names.columns):
                raise _AmbiguousName
            if self._upper_at(index + 1) != "." and self._upper_at(index - 1) not in _BEFORE_TABLE:
                raise _AmbiguousName
            return self._table.name
        new = self._columns.get(word)
        if new is None:
            return None
        if self._upper_at(index + 1) in ("(", ".") or word == self._old_name:
            raise _AmbiguousName
        if self._upper_at(index - 1) == ".":
            is_own = self._upper_at(index - 2).lower() in aliases
            return new if is_own or word not in self._other_columns else None
        previous = self._upper_at(index - 1)
        if word in self._other_columns or not (previous in _BEFORE_VALUE or previous in _OPERATORS):
            raise _AmbiguousName
        return new

    def _item_aliases(self, edits: dict[int, str], outputs: Sequence[str]) -> dict[int, str]:
        """Return the name of each SELECT item whose name would change, by the index of the item's last token."""
        items = list(self._select_items())
        if len(items) != len(outputs):
            raise _AmbiguousName
        changed = ((item, name) for item, name in zip(items, outputs, strict=True) if edits.keys() & set(item))
        return {
            item[-1]: name
            for item, name in changed
            if item[-1] in edits or not self._is_name(item[-1]) or self._upper_at(item[-1]).lower() != name.lower()
        }

    def _select_items(self) -> Iterator[range]:
        """Yield the items of the first SELECT list outside of parentheses."""
        depth, start = 0, None
        for at, token in enumerate(self._tokens):
            sign = token.value if token.kind == "sign" else ""
            depth += (sign in ("(", "[")) - (sign in (")", "]"))
            if depth:
                continue
            if start is None:
                if self._upper_at(at) == "SELECT":
                    start = at + 1 + (self._upper_at(at + 1) in ("DISTINCT", "ALL"))
            elif sign == "," or (token.kind == "word" and self._upper_at(at) in ("FROM", *_AFTER_TABLE)):
                yield range(start, at)
                start = at + 1
                if sign != ",":
                    return
        if start is not None:
            yield range(start, len(self._tokens))


def _quote_if_needed(name: str) -> str:
    """Return a name as it may occur in a query; words with another meaning are quoted."""
    plain = name.isascii() and name.replace("_", "a").isalnum() and name[0].isalpha()
    return name if plain and name.upper() not in _RESERVED_WORDS else backticked(name)
