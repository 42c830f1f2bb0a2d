"""From Spark's spelling to a tree: our lexer cuts the text as Spark does, DuckDB's parser reads it.

Names in backticks become names in double quotes, and texts keep their value whatever their escapes were. What the two
write otherwise (`<=>`, `div`, `RLIKE`, hints, LATERAL VIEW) does not parse, or is a node that nobody here knows.
"""

from __future__ import annotations

import json
from typing import Any

from viewkeeper.model.names import quoted
from viewkeeper.plan.words import statements
from viewkeeper.sql.embedded.coercion import NotProven, NotRead

_PLACES = ("query_location", "query_location_length")


def tree(connection: Any, query: str) -> dict[str, Any]:
    """The parser's tree of the query, without what is empty or says only where a thing stands."""
    import duckdb

    try:
        (text,) = connection.execute("SELECT json_serialize_sql(?)", [respelled(query)]).fetchone()
    except duckdb.Error as error:
        raise NotRead(f"DuckDB does not read it ({str(error).splitlines()[0]})") from error
    found = json.loads(text)
    if found.get("error") or len(found["statements"]) != 1:
        raise NotRead(f"DuckDB does not read it ({found.get('error_message', 'not one query')})")
    node: dict[str, Any] = _pruned(found["statements"][0])["node"]
    return node


def respelled(query: str) -> str:
    """The text as DuckDB spells it."""
    found = list(statements(query))
    if len(found) != 1:
        raise NotRead("it is not one query")
    parts: list[str] = []
    end = found[0][0].start
    for token in found[0]:
        if token.start > end:
            parts.append(" ")
        end = token.end
        written = query[token.start : token.end]
        if token.kind == "name":
            parts.append(quoted(token.value))
        elif token.kind == "text":
            parts.append("'" + token.value.replace("'", "''") + "'")
        elif token.kind == "bytes" or (token.kind == "number" and written != token.value):
            raise NotProven(f"{written} is a literal of Spark's own kind")
        elif token.kind == "sign" and written in "$?#@":
            raise NotProven(f"{written} means something else to DuckDB")
        else:
            parts.append(written)
    return "".join(parts)


def _pruned(node: Any) -> Any:
    if isinstance(node, dict):
        return {k: _pruned(v) for k, v in node.items() if k not in _PLACES and v not in ("", None, [], False)}
    return [_pruned(v) for v in node] if isinstance(node, list) else node
