"""What is fuzzed by coverage: each target takes bytes as they may come in, and lets only a ViewkeeperError pass.

`tools/fuzz` runs them; `corpus/TARGET` holds where it starts from, and every input that once found something.
`test_fuzz` replays them all.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa

from viewkeeper.cli.load import load
from viewkeeper.errors import ViewkeeperError
from viewkeeper.model import types
from viewkeeper.model.encoding.keys import encode_keys, encode_whole_key, key_range, prefix_range
from viewkeeper.model.encoding.rows import decode_row, decode_rows, encode_rows
from viewkeeper.model.intake.rows import keys_table, rows_table
from viewkeeper.model.schema import Column, KeyPart, Table
from viewkeeper.model.token import Token
from viewkeeper.state.run import arrange
from viewkeeper.state.run_file import RunEntry, open_run, write_run_file
from viewkeeper.syntax import statements as sql

TYPES = [
    "boolean",
    "tinyint",
    "smallint",
    "int",
    "bigint",
    "float",
    "double",
    "decimal(9,2)",
    "decimal(38,10)",
    "string",
    "binary",
    "date",
    "timestamp",
]
TABLE = Table(
    1,
    "t",
    tuple(Column(f"c{i}", types.parse_type(t), True) for i, t in enumerate(TYPES)),
    (KeyPart("c4"), KeyPart("c9")),
)
CORPUS = Path(__file__).with_name("corpus")


def statements(data: bytes) -> None:
    text = data.decode(errors="replace")
    for read in (sql.parse, sql.split):
        with suppress(ViewkeeperError):
            read(text)


def tokens(data: bytes) -> None:
    with suppress(ViewkeeperError):
        assert Token.parse(data.decode(errors="replace")).position >= 0


def stored_rows(data: bytes) -> None:
    """Two rows, cut at the first byte's place."""
    at = data[0] if data else 0
    values = [data[1 : 1 + at], data[1 + at :]]
    for columns in (None, ["c9", "c10"], ["c4"]):
        with suppress(ViewkeeperError):
            decode_rows(TABLE, pa.array(values, pa.binary()), columns).validate()
    for value in values:
        with suppress(ViewkeeperError):
            decode_row(TABLE, value)


def rows(data: bytes) -> None:
    """JSON as a program might pass it on: what is let in comes out as it was, with a key."""
    try:
        given = json.loads(data)
    except (ValueError, RecursionError):
        return
    try:
        taken = rows_table(TABLE, given)
        stored = encode_rows(TABLE, taken)
        names = encode_keys(TABLE, taken)
    except ViewkeeperError:
        return
    assert decode_rows(TABLE, stored).equals(taken)
    assert all(len(name.as_py()) > 0 for name in names)


def keys(data: bytes) -> None:
    try:
        given = json.loads(data)
    except (ValueError, RecursionError):
        return
    whole = tuple(given) if isinstance(given, list) else (given,)
    uses: list[Callable[[], Any]] = [
        lambda: keys_table(TABLE, given),
        lambda: encode_whole_key(TABLE, whole),
        lambda: prefix_range(TABLE, whole),
        lambda: key_range(TABLE, whole, None),
    ]
    for use in uses:
        with suppress(ViewkeeperError):
            use()


def run_files(data: bytes) -> None:
    """A file of runs whose bytes were changed is refused, or reads as it was written."""
    place, entry = _run()
    (place / entry.file).write_bytes(data)
    with suppress(ViewkeeperError):
        assert open_run(place, entry, verify=True).rows.equals(arrange(_RUN).rows)


def csv(data: bytes) -> None:
    _file(data, "csv")


def jsonl(data: bytes) -> None:
    _file(data, "jsonl")


def parquet(data: bytes) -> None:
    _file(data, "parquet")


TARGETS: Mapping[str, Callable[[bytes], None]] = {
    f.__name__: f for f in (statements, tokens, stored_rows, rows, keys, run_files, csv, jsonl, parquet)
}

_RUN = pa.table({"s": ["a", "bc", None], "¤w": [1, 1, 2], "¤h": pa.array([1, 2, 3], pa.uint64())})
_place: Path | None = None
_entry: RunEntry | None = None
_LOADED = Table(
    2,
    "t",
    (Column("k", types.BIGINT, False), Column("v", types.decimal(10, 2), True), Column("s", types.STRING, True)),
    (KeyPart("k"),),
)


class _Nowhere:
    """A database that checks what is put into it as the real one does, and forgets it."""

    def put(self, _table: str, given: Any) -> None:
        encode_rows(_LOADED, rows_table(_LOADED, given))


def _directory() -> Path:
    global _place
    if _place is None:
        _place = Path(tempfile.mkdtemp(prefix="viewkeeper-fuzz-"))
    return _place


def _run() -> tuple[Path, RunEntry]:
    global _entry
    place = _directory()
    if _entry is None:
        (_entry,) = write_run_file(place, "b1.vkr", {"s/0": arrange(_RUN)}, fsync=False)
    return place, _entry


def _file(data: bytes, kind: str) -> None:
    file = _directory() / f"rows.{kind}"
    file.write_bytes(data)
    with suppress(ViewkeeperError):
        load(_Nowhere(), _LOADED, [file], rejects=_directory() / "rejects")
