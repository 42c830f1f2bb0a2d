"""The requests of a client and the decoding of answers, independent of the connection; both clients use it."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from typing import Any
from urllib.parse import urlencode

import pyarrow as pa

from viewkeeper import errors
from viewkeeper.errors import BadStatement, BadValue, RowAbsent, ServerFault, Unreachable, ViewkeeperError
from viewkeeper.explain.result import Plan, make_plan
from viewkeeper.model import types
from viewkeeper.model.encoding.keys import encode_whole_key
from viewkeeper.model.intake.rows import keys_table, last_by_key, unchecked_table, updates_table
from viewkeeper.model.intake.text import name_path_segment, path_segment
from viewkeeper.model.names import backticked
from viewkeeper.model.schema import Column, KeyPart, Table
from viewkeeper.model.token import Token
from viewkeeper.read.access.predicates import predicate_from_values
from viewkeeper.read.freshness import ANY, AfterTokens, Level
from viewkeeper.read.rows import check_key, scan_range
from viewkeeper.sql.result import Result
from viewkeeper.sql.script import ScriptStep, split_steps

ARROW, JSON = "application/vnd.apache.arrow.stream", "application/json"
PAGE_ROWS = 10_000
_ERROR_CLASSES = {
    kind.code: kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, ViewkeeperError)
}


@dataclass(frozen=True)
class Call:
    """One request."""

    method: str
    path: str
    body: Any = None
    """Bytes, or a buffer of them."""
    headers: Mapping[str, str] = field(default_factory=dict)
    seconds: float | None = None
    """Seconds that the server may take by itself, if the request tells it."""


@dataclass(frozen=True)
class TableDescription:
    """A table, view or index as the server described it."""

    table: Table
    kind: str
    sql: str


# -- errors ------------------------------------------------------------------------------------------------------------


def raise_problem(status: int, body: bytes) -> None:
    """Raise the error that a problem document describes."""
    if status < 400:
        return
    raise problem_error(body, status)


def problem_error(body: bytes, status: int = 0) -> ViewkeeperError:
    """The error of a problem document; Unreachable for an answer that is none, which another program has sent."""
    try:
        found = json.loads(body)
        kind = _ERROR_CLASSES.get(found["code"], ServerFault)
        return kind(str(found["detail"]), hint=str(found.get("hint", "")))
    except (ValueError, KeyError, TypeError):
        return Unreachable(
            f"The answer ({status}) is not of a Viewkeeper server.",
            hint="Check the address, and what stands before it.",
        )


def unreachable(url: str, error: Exception) -> Unreachable:
    return Unreachable(f"{url} cannot be reached: {error}.", hint="Is `vk serve` running there?")


# -- shapes ------------------------------------------------------------------------------------------------------------


def shape_call(name: str) -> Call:
    return Call("GET", f"/v1/{name_path_segment(name)}")


def shapes_call(collection: str) -> Call:
    return Call("GET", f"/v1/{collection}")


def parse_descriptions(kind: str, body: bytes) -> list[TableDescription]:
    """All descriptions of a kind (table, view, index), by name."""
    items = json.loads(body)["tables" if kind == "table" else "views"]
    return sorted(
        (_build_description(item) for item in items if item["kind"] == kind), key=lambda item: item.table.name.lower()
    )


def token_call(name: str | None) -> Call:
    return Call("GET", "/v1/tables") if name is None else shape_call(name)


def position_of(body: bytes) -> Token:
    """The state that reads see, of one table or view or of all."""
    return Token.parse(json.loads(body)["token"])


def suspension_of(body: bytes) -> dict[str, Any] | None:
    found: dict[str, Any] | None = json.loads(body).get("suspended")
    return found


def plan_call(view: str) -> Call:
    return Call("GET", f"/v1/views/{name_path_segment(view)}/plan")


def plan_of(body: bytes) -> Plan:
    found = json.loads(body)
    return make_plan(found["text"], found["svg"])


def parse_description(body: bytes) -> TableDescription:
    """A table as the server describes it: enough to check rows and keys, and to encode them."""
    return _build_description(json.loads(body))


def _build_description(fields_by_name: Mapping[str, Any]) -> TableDescription:
    table = Table(
        id=0,
        name=fields_by_name["name"],
        columns=tuple(
            Column(c["name"], types.parse_type(c["type"]), c["nullable"], default=c.get("default"))
            for c in fields_by_name["columns"]
        ),
        key=tuple(KeyPart(k["column"], k["descending"], k["nulls_last"]) for k in fields_by_name["key"]),
        is_view=fields_by_name["kind"] != "table",
        is_bag=not fields_by_name["unique"],
        options=() if fields_by_name["stored"] else (("store", "none"),),
    )
    return TableDescription(
        table, {"view": "materialized view"}.get(fields_by_name["kind"], fields_by_name["kind"]), fields_by_name["sql"]
    )


# -- reads -------------------------------------------------------------------------------------------------------------


def get_call(table: Table, key: Any, level: Level, after: AfterTokens, timeout: float) -> Call:
    values = check_key(table, key)
    encode_whole_key(table, values)  # raises for a value that does not fit its column, as on an open database
    segments = [path_segment(value) for value in values] or [""]
    path = f"/v1/{name_path_segment(table.name)}/rows/{'/'.join(segments)}"
    return Call("GET", path + _query_string(_level_parameters(level, after, timeout)), None, {"accept": ARROW}, timeout)


def row_of(status: int, body: bytes) -> dict[str, Any] | None:
    try:
        raise_problem(status, body)
    except RowAbsent:
        return None
    row: dict[str, Any] = arrow_of(body).to_pylist()[0]
    return row


def page_call(
    table: Table,
    ranges: Mapping[str, Any],
    limit: int,
    cursor: str | None,
    levels: list[tuple[str, str]],
    timeout: float,
    selection: list[tuple[str, str]],
) -> Call:
    pairs = [("limit", str(limit)), *selection]
    if cursor is not None:
        pairs.append(("cursor", cursor))
    else:
        pairs += levels
        for name, values in ranges.items():
            if values is not None:
                items = values if isinstance(values, tuple) else (values,)
                pairs += [(name, _parameter_text(value)) for value in items]
    return Call(
        "GET", f"/v1/{name_path_segment(table.name)}/rows{_query_string(pairs)}", None, {"accept": ARROW}, timeout
    )


def read_call(table: Table, stale: bool = False) -> Call:
    """Read all rows with a statement, for views that are not stored and so have no pages."""
    return sql_call(f"SELECT * FROM {backticked(table.name)}", stale=stale)


def arrow_of(body: bytes) -> pa.Table:
    try:
        return pa.ipc.open_stream(body).read_all()
    except (pa.ArrowException, OSError) as error:
        raise Unreachable(f"The answer was cut off: {error}.", hint="Ask again.") from None


def level_parameters(level: Level, after: AfterTokens, timeout: float) -> list[tuple[str, str]]:
    return _level_parameters(level, after, timeout)


def selection_parameters(
    table: Table,
    where: str | Mapping[str, Any] | None,
    columns: Sequence[str] | None,
    order_by: Sequence[str] | str | None,
    limit: int | None,
    **ranges: Any,
) -> list[tuple[str, str]]:
    """The parameters that select rows, columns and order. Every page repeats them, because its cursor belongs to them.

    Values that do not fit their columns are refused here, as on an open database.
    """
    if any(item is not None for item in ranges.values()) or table.is_stored:
        scan_range(table, ranges.get("prefix"), ranges.get("start"), ranges.get("stop"), limit)
    found = []
    if where is not None:
        if isinstance(where, Mapping):
            predicate_from_values(table, where)
        text = json.dumps({n: _json_value(v) for n, v in where.items()}) if isinstance(where, Mapping) else where
        if not isinstance(text, str):
            raise BadValue(f"where is a {type(where).__name__}.", hint="Give a condition, or columns and their values.")
        found.append(("where", text))
    for name, names in (("columns", columns), ("order_by", order_by)):
        items = [names] if isinstance(names, str) else [] if names is None else list(names)
        if (names is not None and not items) or not all(isinstance(item, str) for item in items):
            raise BadValue(f"{name} names no column.", hint="Give a list of column names.")
        found += [(name, item) for item in items]
    return found


def _json_value(value: Any) -> Any:
    """A value, or several, as JSON; a value that JSON has no exact form for as text, which the server reads by
    column."""
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_json_value(item) for item in value]
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def _level_parameters(level: Level, after: AfterTokens, timeout: float) -> list[tuple[str, str]]:
    found = [] if level is ANY else [("level", level.value)]
    if after is not None:
        tokens = [after] if isinstance(after, (Token, str)) else list(after)
        parsed = [Token.parse(token) if isinstance(token, str) else token for token in tokens]
        if parsed:
            found.append(("after", str(parsed[0].merge(*parsed[1:]))))
    return [*found, ("timeout", f"{min(timeout, 30.0):.3f}")] if found else []


def _query_string(pairs: list[tuple[str, str]]) -> str:
    return f"?{urlencode(pairs)}" if pairs else ""


def _parameter_text(value: Any) -> str:
    from urllib.parse import unquote

    return unquote(path_segment(value))


# -- writes ------------------------------------------------------------------------------------------------------------


def put_call(table: Table, rows: Any) -> Call:
    """A put request. Arrow data is sent as it is, since the server checks it; columns that are not named are not
    sent."""
    found = unchecked_table(table, rows)
    return Call("POST", _rows_path(table), _encode_arrow(found), {"content-type": ARROW})


def delete_call(table: Table, keys: Any) -> Call:
    keys_data = last_by_key(table, keys_table(table, keys))
    schema = pa.schema([table.external_schema.field(c.name) for c in table.key_columns])
    return Call("DELETE", _rows_path(table), _encode_arrow(keys_data.cast(schema)), {"content-type": ARROW})


def update_call(table: Table, key: Any, columns: Mapping[str, Any]) -> Call:
    where, new = updates_table(table, key, columns)
    combined = pa.table([*where.columns, *new.columns], names=[*where.column_names, *new.column_names])
    schema = pa.schema([table.external_schema.field(name) for name in combined.column_names])
    return Call("PATCH", _rows_path(table), _encode_arrow(combined.cast(schema)), {"content-type": ARROW})


def token_of(body: bytes) -> Token:
    found = json.loads(body)
    token = Token.parse(found["token"])
    return Token(token.database, token.position, bool(found.get("atomic", True)))


def _rows_path(table: Table) -> str:
    return f"/v1/{name_path_segment(table.name)}/rows"


def _encode_arrow(rows: pa.Table) -> Any:
    """A buffer with the bytes of an Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return sink.getvalue()


# -- statements, status ------------------------------------------------------------------------------------------------


def sql_steps(text: str, values: Mapping[str, Any]) -> list[ScriptStep]:
    """The requests for a text, one after the other. A text that is empty or wrong is sent for the server to refuse."""
    found: list[ScriptStep] = []
    with suppress(BadStatement):
        found = split_steps(text, values) if isinstance(text, str) else []
    return found or [ScriptStep(text, (), (), 1, is_only=True)]


def sql_call(text: str, engine: str = "auto", stale: bool = False) -> Call:
    options = {**({} if engine == "auto" else {"engine": engine}), **({"stale": True} if stale else {})}
    body = json.dumps({"sql": text, **options}).encode()
    return Call("POST", "/v1/sql", body, {"content-type": JSON, "accept": f"{ARROW}, {JSON};q=0.5"}, 24 * 3600.0)


def result_of(kind: str, body: bytes) -> Result:
    """The result of a statement."""
    return Result(arrow_of(body)) if kind.startswith(ARROW) else Result(done=str(json.loads(body).get("done", "")))


def status_of(body: bytes) -> Any:
    from viewkeeper.read.status import StageStatus, Status, TableStatus, ViewStatus

    def build(kind: Any, values: Mapping[str, Any]) -> Any:
        return kind(**{f.name: values[f.name] for f in fields(kind) if f.name in values})

    found = json.loads(body)
    parts = {"stages": StageStatus, "tables": TableStatus, "views": ViewStatus}
    return build(
        Status, {**found, **{name: tuple(build(k, item) for item in found[name]) for name, k in parts.items()}}
    )


def changes_call(table: Table, since: Token | str | None, stale: bool = False) -> Call:
    pairs = [("since", str(since))] if since is not None else [("level", "stale")] if stale else []
    return Call("GET", f"/v1/{name_path_segment(table.name)}/changes{_query_string(pairs)}", None, {"accept": ARROW})


def is_server_url(url: str) -> bool:
    return url.startswith(("http://", "https://"))


def address_of(url: str) -> str:
    if not is_server_url(url):
        raise BadValue(f"{url!r} is no address of a server.", hint="Write http://HOST:PORT or https://HOST:PORT.")
    return url.rstrip("/")


def concat_pages(table: Table, columns: Sequence[str] | None, pages: Sequence[pa.Table]) -> pa.Table:
    """All pages as one table; an empty table if there are none."""
    if pages:
        return pa.concat_tables(pages).combine_chunks()
    named = table.external_schema.names if columns is None else [table.by_name[name.lower()].name for name in columns]
    return table.external_schema.empty_table().select(named)
