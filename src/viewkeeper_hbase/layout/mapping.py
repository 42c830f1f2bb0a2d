"""Mapped tables: `CREATE TABLE … WITH (hbase.… = …)` finds its columns in a table that other programs write.

    hbase.table      namespace:table; it must exist. It is never altered or dropped here
    hbase.columns    the cells of the columns outside the key: `cf:qualifier …` in the columns' order, or
                     `column=cf:qualifier …`, or `cf:*`: each under its own name
    hbase.encoding   bytes (the default) or text, for all; or for some: `text total=bytes` (`value_encodings`)
    hbase.key        how the row key is made from the PRIMARY KEY's columns:
                     bytes      concatenated, as `Bytes.toBytes` encodes them; a string or decimal only as the last
                     ordered    as in owned tables (`model.encoding.keys`)
                     text       one column as text; several: `text |`, joined by the delimiter that follows

A missing cell is NULL. A row exists if it has a cell in one of the named families. A row whose key or one of
whose cells cannot be decoded is rejected, with the reason, until it can be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.errors import BadValue, Unsupported
from viewkeeper.model.encoding.key_decoding import FIELD_WIDTHS, Mask
from viewkeeper.model.intake.rows import keys_table
from viewkeeper.model.schema import Column, Table
from viewkeeper_hbase.layout import value_encodings
from viewkeeper_hbase.layout.layout import ColumnCells, Layout, OrderedKeys, RowKeys
from viewkeeper_hbase.thrift.admin import HBaseTableDescription
from viewkeeper_hbase.thrift.request_encoder import split_column

OPTIONS = ("hbase.table", "hbase.key", "hbase.columns", "hbase.encoding")


def mapped_layout(table: Table, options: Mapping[str, str]) -> Layout:
    """Return the layout that a table's options describe."""
    title = f"Table {table.name}"
    if unknown := sorted(o for o in options if o.startswith("hbase.") and o not in OPTIONS):
        raise BadValue(f"{title}: there is no option {unknown[0]}.", hint=f"Options: {', '.join(OPTIONS)}.")
    if table.initial_values:
        raise Unsupported(
            f"{title} maps {options['hbase.table']}, which others write: a missing cell there is NULL, not a default.",
            hint="Add the column without DEFAULT; then ALTER COLUMN … SET DEFAULT for rows that are put here.",
        )
    if table.narrower_types:
        raise Unsupported(
            f"{title} maps {options['hbase.table']}, whose cells are as others write them.",
            hint="Map it once more, as another table with the wider type.",
        )
    # Options name dropped columns too, whose families still determine which rows exist.
    value_columns = [c for c in table.physical_columns if c not in table.key_columns]
    cells = _parse_cells(title, value_columns, options.get("hbase.columns", ""))
    encodings = _parse_encodings(title, value_columns, options.get("hbase.encoding", "bytes"))
    families = tuple(dict.fromkeys(split_column(cell)[0] for cell in cells.values()))
    column_cells = {
        c.name: ColumnCells(cells[_column_key(c)], encodings[_column_key(c)])
        for c in table.columns
        if c in value_columns
    }
    if not families:
        raise BadValue(f"{title} has only key columns; HBase needs a family.", hint="Add a column of the HBase table.")
    name = options["hbase.table"]
    name = name if ":" in name else f"default:{name}"
    return Layout(
        table, name, False, _row_key_encoding(table, options.get("hbase.key", "bytes")), column_cells, None, families
    )


def check_mapping(layout: Layout, description: HBaseTableDescription) -> list[str]:
    """Raise BadValue if the table lacks a mapped family; return warnings for what its settings cannot guarantee."""
    messages = []
    for name in layout.families:
        family = description.family(name)
        text = name.decode(errors="replace")
        if family is None:
            existing = ", ".join(f.name.decode(errors="replace") for f in description.families)
            raise BadValue(
                f"The HBase table {layout.name} has no family {text}; it has {existing}.", hint="Check hbase.columns."
            )
        if not has_deleted_cells(description, name):
            messages.append(
                f"{layout.name}: the family {text} does not keep deleted cells, so a delete that HBase compacts away"
                " before it is captured is found by a rescan only. Set KEEP_DELETED_CELLS => 'TRUE'."
            )
        if (family.max_versions or 1) < 2:
            messages.append(
                f"{layout.name}: the family {text} keeps one version, so a row is read as it is when it is captured,"
                " not as it was at the batch's cut. Set VERSIONS => 10 or more."
            )
        if family.time_to_live is not None:
            messages.append(
                f"{layout.name}: the family {text} has a TTL of {family.time_to_live} s; rows that expire leave no mark"
                " and are found by a rescan only."
            )
    return messages


def has_deleted_cells(description: HBaseTableDescription, name: bytes) -> bool:
    family = description.family(name)
    return family is not None and bool(family.keep_deleted_cells)


def readable_versions(layout: Layout, description: HBaseTableDescription) -> int:
    """Return how many versions of a row can be read: 1 if deleted cells are not kept, or cells expire."""
    families = [description.family(name) for name in layout.families]
    return min(
        (f.max_versions or 1) if f is not None and f.keep_deleted_cells and f.time_to_live is None else 1
        for f in families
    )


# -- columns ----------------------------------------------------------------------------------------------------------


def _parse_cells(where: str, columns: Sequence[Column], text: str) -> dict[str, bytes]:
    """Parse hbase.columns into cells by the column's external name in lower case."""
    words = text.replace(",", " ").split()
    hint = "Write hbase.columns = 'cf:a cf:b', 'column=cf:a …' or 'cf:*'."
    if len(words) == 1 and words[0].endswith(":*"):
        return {_column_key(c): words[0][:-1].encode() + c.external_name.encode() for c in columns}
    names = [_column_key(c) for c in columns]
    cells: dict[str, bytes] = {}
    for at, word in enumerate(words):
        column, equals, cell = word.rpartition("=")
        if not equals and at >= len(columns):
            raise BadValue(f"{where}: hbase.columns names more cells than there are columns.", hint=hint)
        name = column.lower() if equals else names[at]
        if name not in names or ":" not in cell or cell.startswith(":"):
            raise BadValue(f"{where}: {word!r} in hbase.columns is no cell of a column.", hint=hint)
        cells[name] = cell.encode()
    if missing := [c.external_name for c in columns if _column_key(c) not in cells]:
        raise BadValue(f"{where}: hbase.columns does not say where {missing[0]} is.", hint=hint)
    return cells


def _parse_encodings(where: str, columns: Sequence[Column], text: str) -> dict[str, str]:
    """Parse hbase.encoding into encodings by the column's external name in lower case."""
    words = text.replace(",", " ").split()
    general = next((w for w in words if "=" not in w), "bytes")
    encodings = {_column_key(c): general for c in columns}
    for column, _, encoding in (w.partition("=") for w in words if "=" in w):
        if column.lower() not in encodings:
            raise BadValue(f"{where}: hbase.encoding names {column}, which is no column outside the key.")
        encodings[column.lower()] = encoding
    if unknown := sorted(
        set(encodings.values()) - set(value_encodings.ENCODINGS) | ({general} - set(value_encodings.ENCODINGS))
    ):
        raise BadValue(
            f"{where}: there is no encoding {unknown[0]!r}.", hint=f"Encodings: {', '.join(value_encodings.ENCODINGS)}."
        )
    return encodings


def _column_key(column: Column) -> str:
    return column.external_name.lower()


# -- keys -------------------------------------------------------------------------------------------------------------


def _row_key_encoding(table: Table, form: str) -> RowKeys:
    word, _, delimiter = form.strip().partition(" ")
    delimiter = delimiter.strip()
    parts = table.key_columns
    if word == "ordered" and not delimiter:
        return OrderedKeys(table)
    if word == "bytes" and not delimiter:
        if unsized := [c.name for c in parts[:-1] if c.type not in FIELD_WIDTHS]:
            raise BadValue(
                f"Table {table.name}: {unsized[0]} has no fixed width and is not the last key column.",
                hint="Use hbase.key = 'ordered' or 'text |', whichever the keys were made with.",
            )
        return BytesKeys(table)
    if word == "text" and bool(delimiter) == (len(parts) > 1):
        return TextKeys(table, delimiter)
    raise BadValue(
        f"Table {table.name}: hbase.key = {form!r} does not fit a key of {len(parts)} column(s).",
        hint="Write 'bytes', 'ordered', 'text' for one column, or 'text |' for several.",
    )


@dataclass(frozen=True)
class BytesKeys:
    """Columns concatenated as `Bytes.toBytes` encodes them; only the last may have a variable length."""

    table: Table

    def encode(self, rows: pa.Table) -> pa.Array:
        parts = [value_encodings.encode("bytes", c.type, rows[c.name]) for c in self.table.key_columns]
        return parts[0] if len(parts) == 1 else pc.binary_join_element_wise(*parts, b"")

    def encode_one(self, values: Sequence[Any]) -> bytes:
        key: bytes = self.encode(keys_table(self.table, [tuple(values)]))[0].as_py()
        return key

    def decode(self, keys: pa.Array) -> tuple[pa.Table, Mask]:
        undecodable = np.zeros(len(keys), bool)
        lengths = np.asarray(pc.binary_length(keys))
        position = 0
        arrays: list[pa.Array] = []
        for column in self.table.key_columns:
            width = FIELD_WIDTHS.get(column.type)
            last = len(arrays) == len(self.table.key_columns) - 1
            short = lengths < position + (width or 0)
            piece = _slice_bytes(keys, position, None if last else width)
            array, undecodable_part = value_encodings.decode("bytes", column.type, piece)
            undecodable |= short if undecodable_part is None else short | undecodable_part
            arrays.append(array)
            position += width or 0
        return _key_table(self.table, arrays), undecodable


@dataclass(frozen=True)
class TextKeys:
    """Columns as text, joined by a delimiter."""

    table: Table
    delimiter: str

    def encode(self, rows: pa.Table) -> pa.Array:
        parts = [value_encodings.encode("text", c.type, rows[c.name]) for c in self.table.key_columns]
        if len(parts) == 1:
            return parts[0]
        for part in parts[:-1]:
            if pc.any(pc.match_substring(part, self.delimiter)).as_py():
                raise BadValue(
                    f"A key of {self.table.name} holds {self.delimiter!r}, by which its columns are told apart."
                )
        return pc.binary_join_element_wise(*parts, self.delimiter.encode())

    def encode_one(self, values: Sequence[Any]) -> bytes:
        key: bytes = self.encode(keys_table(self.table, [tuple(values)]))[0].as_py()
        return key

    def decode(self, keys: pa.Array) -> tuple[pa.Table, Mask]:
        columns = self.table.key_columns
        undecodable = np.zeros(len(keys), bool)
        parts = [keys]
        if len(columns) > 1:
            split = pc.split_pattern(keys, self.delimiter, max_splits=len(columns) - 1)
            undecodable = np.asarray(pc.list_value_length(split)) != len(columns)
            padded = pc.if_else(pa.array(undecodable), pa.scalar([b""] * len(columns), split.type), split)
            flat = pc.list_flatten(padded)
            parts = [flat.take(pa.array(np.arange(i, len(flat), len(columns)))) for i in range(len(columns))]
        arrays = []
        for column, part in zip(columns, parts, strict=True):
            array, undecodable_part = value_encodings.decode("text", column.type, part)
            undecodable = undecodable if undecodable_part is None else undecodable | undecodable_part
            arrays.append(array)
        return _key_table(self.table, arrays), undecodable


def _slice_bytes(keys: pa.Array, at: int, width: int | None) -> pa.Array:
    """Return `width` bytes of every key from `at` on, or all of them; fewer where the key ends."""
    offsets = np.frombuffer(keys.buffers()[1], np.int32, len(keys) + 1, keys.offset * 4)
    cuts = np.empty(2 * len(keys), np.int32)
    cuts[0::2] = np.minimum(offsets[:-1] + at, offsets[1:])
    cuts[1::2] = offsets[1:] if width is None else np.minimum(cuts[0::2] + width, offsets[1:])
    if not len(keys):
        return keys
    ranges_and_gaps = pa.Array.from_buffers(pa.binary(), len(cuts) - 1, [None, pa.py_buffer(cuts), keys.buffers()[2]])
    return ranges_and_gaps.take(pa.array(np.arange(0, len(cuts), 2)))


def _key_table(table: Table, arrays: list[pa.Array]) -> pa.Table:
    return pa.Table.from_arrays(arrays, schema=pa.schema([table.arrow.field(c.name) for c in table.key_columns]))
