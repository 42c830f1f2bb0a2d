"""Names that a user may give: every word that statements of ours use, and what else is hard to spell.

`Called` is a database for tests that speak of `tab_0`, `view_1`, `k0`, `c1`, `o2`: each gets a name from the pool for
as long as the test runs, in SQL text, rows and answers. What the test sees and what its oracle runs stays plain.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa

import viewkeeper
from viewkeeper.model.names import INTERNAL_PREFIX, backticked
from viewkeeper.syntax.lexer import lex

_SOURCE = Path(viewkeeper.__file__).parent
_SPOKEN = re.compile(r"\b(?:AS|FROM|JOIN|WITH|UPDATE|INTO|TABLE) \"?([A-Za-z_¤]\w*)|\.run\([^)]*?\b(\w+)=")
"""Words that generated statements give to columns, tables and inputs."""
_MARKED = re.compile(f"{INTERNAL_PREFIX}(\\w+)")
"""Internal names in the source; users may call columns so but for the mark."""


def internal_names() -> frozenset[str]:
    """All of them, found in the source: a statement that is written tomorrow is in the pool too."""
    found = {f"{letter}{i}" for letter in "xlrkmwoc" for i in (0, 1)} | {
        "e",
        "s",
        "t",
        "g",
        "c",
        "h",
        "input0",
        "input1",
    }
    for folder in (
        "operators",
        "plan",
        "commit",
        "read",
        "runtime",
        "state",
        "capture",
        "store",
        "cli",
        "spark",
        "model",
    ):
        for file in (_SOURCE / folder).rglob("*.py"):
            text = file.read_text("utf-8")
            found |= {(a or b).lstrip(INTERNAL_PREFIX) for a, b in _SPOKEN.findall(text)}
            found |= {f"_{word}" for word in _MARKED.findall(text)}
    return frozenset(name.lower() for name in found if len(name) < 40)


_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_WORDS = (
    *("SELECT", "From", "group", "ORDER", "by", "table", "View", "key", "primary", "null", "TRUE", "false", "count"),
    *(
        "sum",
        "min",
        "avg",
        "interval",
        "date",
        "timestamp",
        "lateral",
        "with",
        "union",
        "all",
        "and",
        "or",
        "not",
        "in",
    ),
    *("exists", "case", "when", "then", "else", "end", "left", "right", "full", "cross", "natural", "using"),
    *("values", "default", "current_date", "current_user", "user", "rowid", "row", "struct", "map", "array", "decimal"),
    *(
        "offset",
        "limit",
        "filter",
        "window",
        "over",
        "partition",
        "distinct",
        "is",
        "like",
        "between",
        "cast",
        "nulls",
        "first",
    ),
    *("first", "position", "value", "element", "main", "temp", "pivot", "unpivot", "qualify", "sample", "columns"),
)
_SIGNS = (
    *('"', "'", "`", "``", '"a"', "a'b", "a`b", 'x"y', "it's", "a b", " lead", "trail ", "a.b", ".a", "[0]", "a[0]"),
    *("a,b", "a;b", "a--b", "/*", "*/", "*", "a/b", "~1", "a\\b", "\\", "%", "%s", "$1", "?", ":a", "{}", "{0}", "#2"),
    *(
        "b#2",
        "x:1",
        "a:b",
        "=",
        "(",
        ")",
        "()",
        "c(1)",
        "0",
        "1",
        "1e5",
        "-1",
        "@",
        "&",
        "|",
        "<a>",
        "a=b",
        "${a}",
        "'",
    ),
)
_LETTERS_OF_OTHERS = ("ä", "Ö", "日本", "🦉", "ß", "é", "e\u0301", "עברית", "Ωmega", "ñandú", "Ünï cödé", "१२")
_OF_DOCUMENTS = ("_id", "_ts", "_source", "_col_0", "__w", "_", "__", "_1", "_a b", "w¤", "w_")
_LONG = ("n" * 200, "ä" * 100, '"`' * 100, "A b" * 66, "🦉" * 50)

NAMES: tuple[str, ...] = tuple(
    {
        name.lower(): name
        for name in (
            *sorted(internal_names()),
            *_LETTERS,
            *_WORDS,
            *_SIGNS,
            *_OF_DOCUMENTS,
            *_LETTERS_OF_OTHERS,
            *_LONG,
        )
    }.values()
)
"""No two of them differ by case alone."""

_RELATION = re.compile(r"(tab|view|cte)_\d+|r\d+")
_COLUMN = re.compile(r"[kco]\d+")


class Naming:
    """Names for the plain words of one test (and those of `relations` and `columns`), each drawn when it comes up."""

    def __init__(self, seed: object, relations: Collection[str] = (), columns: Collection[str] = ()) -> None:
        self._seed, self._relations, self._columns = seed, relations, columns
        self._names: dict[str, str] = {}
        self._plain: dict[tuple[str, str], str] = {}

    def name(self, plain: str) -> str:
        """What this word is called, the same in a scenario that was made smaller; other words stay as they are."""
        kind = self._kind(plain)
        if kind is None:
            return plain
        if plain not in self._names:
            rng = Random(f"{self._seed} {plain}")
            taken = {name.lower() for of, name in self._plain if of == kind}
            name = rng.choice([n for n in NAMES if n.lower() not in taken])
            if rng.random() < 0.3 and name.upper().lower() == name.lower():
                name = name.upper()
            self._names[plain] = name
            self._plain[kind, name] = plain
        return self._names[plain]

    def _kind(self, plain: str) -> str | None:
        if plain in self._relations or _RELATION.fullmatch(plain):
            return "relation"
        return "column" if plain in self._columns or _COLUMN.fullmatch(plain) else None

    def relation(self, name: str) -> str:
        return self._plain.get(("relation", name), name)

    def column(self, name: str) -> str:
        return self._plain.get(("column", name), name)

    def sql(self, text: str) -> str:
        """The statement, speaking of these names."""
        done, parts = 0, []
        for token in lex(text):
            called = self.name(token.value) if token.kind == "word" else token.value
            if token.kind == "word" and called != token.value:
                parts += [text[done : token.start], backticked(called)]
                done = token.end
        return "".join([*parts, text[done:]])


class Called:
    """A database under other names: give it plain ones, and it answers in plain ones."""

    def __init__(self, db: Any, naming: Naming) -> None:
        self.db, self.naming = db, naming

    def sql(self, text: str) -> Any:
        found = self.db.sql(self.naming.sql(text)).to_arrow()
        for column, back in (("name", self.naming.relation), ("column", self.naming.column)):
            if column in found.column_names:
                words = pa.array([back(w) for w in found[column].to_pylist()], pa.string())
                found = found.set_column(found.column_names.index(column), column, words)
        return found

    def put(self, table: str, rows: Any) -> Any:
        return self.db.put(self.naming.name(table), self._rename_columns(rows))

    def delete(self, table: str, keys: Any) -> Any:
        return self.db.delete(self.naming.name(table), self._rename_columns(keys) if hasattr(keys, "schema") else keys)

    def update(self, table: str, key: Any, columns: Mapping[str, Any]) -> Any:
        return self.db.update(self.naming.name(table), key, self._rename_columns(columns))

    def refresh(self, **options: Any) -> Any:
        return self.db.refresh(**options)

    def read(self, name: str, **options: Any) -> Any:
        found = self.db.read(self.naming.name(name), **options)
        return found.rename_columns([self.naming.column(c) for c in found.column_names])

    def get(self, name: str, key: Any) -> Any:
        row = self.db.get(self.naming.name(name), key)
        return None if row is None else {self.naming.column(c): v for c, v in row.items()}

    def scan(self, name: str, **options: Any) -> list[dict[str, Any]]:
        rows = self.db.scan(self.naming.name(name), **options)
        return [{self.naming.column(c): v for c, v in row.items()} for row in rows]

    def audit(self, *names: str, **options: Any) -> dict[str, int]:
        report = self.db.audit(*map(self.naming.name, names), **options)
        return {self.naming.relation(v.view): v.differences for v in report.views}

    def close(self) -> None:
        self.db.close()

    def _rename_columns(self, rows: Any) -> Any:
        if isinstance(rows, Mapping):
            return {self.naming.name(c): v for c, v in rows.items()}
        if isinstance(rows, list):
            return [self._rename_columns(r) for r in rows]
        if isinstance(rows, pa.RecordBatchReader):
            rows = rows.read_all()
        return rows.rename_columns([self.naming.name(c) for c in rows.column_names])
