"""Row encoding. An encoded row holds every stored column, including the key's, so a scan decodes only values.

    01                  format version (u8)
    columns             number of columns with which this row was written (u16)
    nulls               one bit a column, set if NULL
    fixed               one field slot a column, in order, packed: integers, floats, dates, timestamps little-endian;
                        a decimal's unscaled value, 8 bytes up to 18 digits, else 16; for a string or binary
                        the u32 end of its bytes, counted from the start of `variable`
    variable            the bytes of the strings and binaries, one after another

A field slot has the same offset in all rows with the same number of columns, so decoding a column is one numpy gather,
and the variable section is an Arrow binary array that only lacks offsets. A row that was written before a column was
added has fewer columns: the missing ones have the column's initial value, or are NULL. A dropped column keeps its slot,
which is skipped. The slots of NULLs are zero, so equal rows written with the same columns have equal bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.errors import CorruptState, Defect
from viewkeeper.model import types
from viewkeeper.model.arrow_buffers import one_chunk
from viewkeeper.model.encoding.row_fields import plain_value_widener, read_unscaled, value_reader, value_widener
from viewkeeper.model.intake.columns import column_values
from viewkeeper.model.intake.text import parse_value
from viewkeeper.model.schema import Table
from viewkeeper.model.types import Type
from viewkeeper.model.unicode import VariableColumns

VERSION = 1

Array = np.ndarray[Any, Any]

_FIELD_SLOTS = {
    types.BOOLEAN: ("u1", "?"),
    types.TINYINT: ("i1", "b"),
    types.SMALLINT: ("<i2", "h"),
    types.INT: ("<i4", "i"),
    types.BIGINT: ("<i8", "q"),
    types.FLOAT: ("<f4", "f"),
    types.DOUBLE: ("<f8", "d"),
    types.DATE: ("<i4", "i"),
    types.TIMESTAMP: ("<i8", "q"),
    types.TIMESTAMP_NTZ: ("<i8", "q"),
    types.STRING: ("<u4", "I"),
    types.BINARY: ("<u4", "I"),
}
_MIN_ROW_BYTES = 4
"""Minimum size of a row: version, column count, and one byte of the null bits."""


class NewerRowLayout(CorruptState):
    """A row has more columns than its table: one was added since the table was looked up, or the row is damaged."""


def encode_rows(table: Table, rows: pa.Table) -> pa.BinaryArray:
    """Return the encoded rows; `rows` has the table's stored columns, with its types."""
    layout = row_layout(table, len(table.physical_columns))
    fixed = np.zeros(rows.num_rows, layout.dtype)
    fixed["version"] = VERSION
    fixed["columns"] = len(layout.names)
    ends = np.zeros(rows.num_rows, np.uint32)
    variable = []
    for at, (name, type_name) in enumerate(zip(layout.names, layout.types, strict=True)):
        if name in layout.dropped:
            fixed["nulls"][:, at // 8] |= np.uint8(1 << (at % 8))
            if layout.variable[at]:
                fixed[f"c{at}"] = ends
            continue
        array = one_chunk(rows.column(name))
        missing = np.asarray(array.is_null()) if array.null_count else None
        if missing is not None:
            fixed["nulls"][:, at // 8] |= missing.astype(np.uint8) << (at % 8)
        if layout.variable[at]:
            array = array.view(pa.binary())
            if missing is not None:
                array = array.fill_null(b"")
            variable.append(array)
            offsets = np.frombuffer(array.buffers()[1], np.int32, len(array) + 1, array.offset * 4)
            ends = ends + (offsets[1:] - offsets[:-1]).view(np.uint32)
            fixed[f"c{at}"] = ends
        else:
            slot = fixed[f"c{at}"]
            slot[...] = _field_values(type_name, array, slot.dtype)
            if missing is not None:
                slot[missing] = np.zeros(1, slot.dtype)[0]
    offsets = np.arange(rows.num_rows + 1, dtype=np.int32) * np.int32(layout.width)
    heads = pa.Array.from_buffers(pa.binary(), rows.num_rows, [None, pa.py_buffer(offsets), pa.py_buffer(fixed)])
    return pc.binary_join_element_wise(heads, *variable, b"") if variable else heads


def decode_rows(table: Table, values: pa.BinaryArray, columns: Sequence[str] | None = None) -> pa.Table:
    """Return the requested columns (by default all stored ones) of every encoded row, in `Table.arrow`'s types."""
    names = list(columns) if columns is not None else table.arrow.names
    schema = pa.schema([table.arrow.field(name) for name in names])
    rows = len(values)
    if not rows:
        return schema.empty_table()
    if not names:  # a table without columns still has a number of rows, which `count(*)` needs
        return pa.table({"": pa.nulls(rows)}).select([])
    starts = np.frombuffer(values.buffers()[1], np.int32, rows + 1, values.offset * 4)
    data = np.frombuffer(values.buffers()[2] or b"", np.uint8)
    first = starts[:-1]
    if int(np.diff(starts).min()) < _MIN_ROW_BYTES:
        raise CorruptState(f"A row of {table.name} is shorter than its columns.")
    counts = data[first + 1] | data[first + 2].astype(np.uint16) << 8
    if not (data[first] == VERSION).all():
        raise CorruptState(f"A row of {table.name} has an unknown format.")
    written = int(counts[0])
    if (counts == written).all():
        return _decode_uniform(table, written, data, starts, names, schema)
    # Rows from before and after a column was added: decode each layout separately, then restore the order.
    indices, pieces = [], []
    for written in np.unique(counts):
        selected = np.flatnonzero(counts == written)
        indices.append(selected)
        uniform = values.take(pa.array(selected))
        pieces.append(decode_rows(table, uniform, names))
    order = np.argsort(np.concatenate(indices))
    return pa.concat_tables(pieces).take(pa.array(order)).combine_chunks()


def decode_row(table: Table, value: bytes) -> dict[str, Any]:
    """Return one row as Python values of the external types."""
    try:
        return _decode(table, value)
    except (struct.error, IndexError, UnicodeDecodeError, KeyError) as error:
        raise CorruptState(f"A row of {table.name} is damaged: {error}.") from error


def _decode(table: Table, value: bytes, plain: bool = False) -> dict[str, Any]:
    if value[0] != VERSION:
        raise CorruptState(f"A row of {table.name} has an unknown format.")
    layout = row_layout(table, value[1] | value[2] << 8)
    fields = layout.packer.unpack_from(value)
    row = dict(zip(layout.names, fields[3:], strict=True))
    start = layout.width
    for name, convert in layout.variable_readers:
        end = layout.width + row[name]
        row[name] = convert(value[start:end])
        start = end
    for name, convert in layout.plain_readers if plain else layout.readers:
        row[name] = convert(row[name])
    if any(fields[2]):
        nulls = int.from_bytes(fields[2], "little")
        for at, name in enumerate(layout.names):
            if nulls >> at & 1:
                row[name] = None
    for name, added in layout.added_columns:
        row[name] = None if added is None else added.plain if plain else added.value
    for name in layout.dropped:
        del row[name]
    return row


def decode_plain_row(table: Table, value: bytes) -> dict[str, Any]:
    """Return one row as plain values (see `intake.scalars`): dates, times and decimals are integers."""
    return _decode(table, value, plain=True)


def encode_plain_row(table: Table, row: Mapping[str, Any]) -> bytes:
    """Encode one row of plain values, with the same bytes as `encode_rows`."""
    layout = row_layout(table, len(table.physical_columns))
    nulls, end, slots, variable = 0, 0, [], []
    for at, name in enumerate(layout.names):
        value = row.get(name)
        if value is None:
            nulls |= 1 << at
            value = end if layout.variable[at] else _NULL_FIELDS.get(layout.format_codes[at], 0)
        elif layout.variable[at]:
            data = value.encode() if layout.types[at] == types.STRING else value
            variable.append(data)
            value = end = end + len(data)
        elif layout.format_codes[at] == "16s":
            value = value.to_bytes(16, "little", signed=True)
        slots.append(value)
    bits = nulls.to_bytes((len(layout.names) + 7) // 8, "little")
    return b"".join([layout.packer.pack(VERSION, len(layout.names), bits, *slots), *variable])


_NULL_FIELDS = {"16s": bytes(16)}


# -- layout -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class InitialValue:
    """The value of a column in rows that were written before it was added: for users, as a plain value (see
    `intake.scalars`), and as an Arrow scalar of the internal type."""

    value: Any
    plain: Any
    arrow: pa.Scalar


def initial_value(table: Table, name: str) -> InitialValue | None:
    """Return the initial value of a column, or None if older rows show NULL."""
    text = table.initial_by_column.get(name)
    if text is None:
        return None
    column = replace(table.by_name[name.lower()], internal_alias="", default=None)
    array = column_values(table.name, column, [parse_value(table.name, name, column.type, text)])
    single = Table(table.id, table.name, (column,), ())
    row = encode_rows(single, pa.table([array], schema=single.arrow))[0].as_py()
    return InitialValue(decode_row(single, row)[name], decode_plain_row(single, row)[name], array[0])


@dataclass(frozen=True)
class RowLayout:
    """The field slots of a row with a given number of columns."""

    names: tuple[str, ...]
    types: tuple[Type, ...]
    variable: tuple[bool, ...]
    dtype: np.dtype[Any]
    width: int
    added_columns: tuple[tuple[str, InitialValue | None], ...]
    """Columns added after rows of this layout were written, with their initial values; None means NULL."""
    dropped: frozenset[str]
    """Names in `names` that stand for dropped columns."""
    packer: struct.Struct
    format_codes: tuple[str, ...]
    plain_readers: tuple[tuple[str, Callable[[Any], Any]], ...]
    """Converters to plain values (see `intake.scalars`)."""
    readers: tuple[tuple[str, Callable[[Any], Any]], ...]
    variable_readers: tuple[tuple[str, Callable[[bytes], Any]], ...]


_layouts: dict[tuple[int, int], tuple[Table, RowLayout]] = {}


def row_layout(table: Table, column_count: int) -> RowLayout:
    """Return the layout of rows that were written with `column_count` columns."""
    # Cached by identity: hashing a Table hashes all its columns, which would cost more than a point get.
    cached = _layouts.get((id(table), column_count))
    if cached is not None and cached[0] is table:
        return cached[1]
    if len(_layouts) > 10_000:
        _layouts.clear()
    layout = _make_layout(table, column_count)
    _layouts[id(table), column_count] = (table, layout)
    return layout


def _make_layout(table: Table, column_count: int) -> RowLayout:
    dropped = {at: replace(column, name=f"\0{at}") for at, column in table.dropped_columns}
    physical = [dropped.get(at, column) for at, column in enumerate(table.physical_columns)]
    if not 0 < column_count <= len(physical):
        raise NewerRowLayout(f"A row of {table.name} has {column_count} columns, the table {len(physical)}.")
    columns = [
        replace(c, type=t) for c, t in zip(physical[:column_count], table.column_types_at(column_count), strict=True)
    ]
    bitmap = (column_count + 7) // 8
    kinds = [_field_slot(c.type) for c in columns]
    slots = np.dtype(
        [("version", "u1"), ("columns", "<u2"), ("nulls", "u1", (bitmap,))]
        + [(f"c{at}", kind) for at, (kind, _) in enumerate(kinds)]
    )
    packer = struct.Struct(f"<BH{bitmap}s" + "".join(code for _, code in kinds))
    if packer.size != slots.itemsize:
        raise Defect(f"The layout of {table.name} has {packer.size} bytes to struct and {slots.itemsize} to numpy.")
    variable = tuple(c.type in (types.STRING, types.BINARY) for c in columns)
    readers = [(c.name, value_reader(table.name, c.name, c.type)) for c in columns]
    plain_readers: list[tuple[str, Callable[[Any], Any] | None]] = [
        (c.name, read_unscaled) for c, (_, code) in zip(columns, kinds, strict=True) if code == "16s"
    ]
    for current, written in zip(physical, columns, strict=False):
        if current.type != written.type:
            readers.append((current.name, value_widener(written.type, current.type)))
            plain_readers.append((current.name, plain_value_widener(written.type, current.type)))
    return RowLayout(
        names=tuple(c.name for c in columns),
        types=tuple(c.type for c in columns),
        variable=variable,
        dtype=slots,
        width=slots.itemsize,
        added_columns=tuple(
            (c.name, initial_value(table, c.name))
            for at, c in enumerate(physical)
            if at >= column_count and at not in dropped
        ),
        dropped=frozenset(c.name for at, c in dropped.items() if at < column_count),
        packer=packer,
        format_codes=tuple(code for _, code in kinds),
        plain_readers=tuple((name, read) for name, read in plain_readers if read is not None),
        readers=tuple((name, read) for name, read in readers if read is not None),
        variable_readers=tuple(
            (c.name, bytes.decode if c.type == types.STRING else bytes) for c in columns if is_variable(c.type)
        ),
    )


def is_variable(type_name: Type) -> bool:
    return type_name in (types.STRING, types.BINARY)


def _field_slot(type_name: Type) -> tuple[str, str]:
    if digits := types.decimal_digits(type_name):
        return ("<i8", "q") if digits[0] <= 18 else ("V16", "16s")
    return _FIELD_SLOTS[type_name]


def _field_values(type_name: Type, array: pa.Array, dtype: np.dtype[Any]) -> Array:
    """Return a fixed-width column's values in the form of its slots; the values of NULLs are arbitrary."""
    rows = len(array)
    if type_name == types.BOOLEAN:
        return np.asarray(pc.fill_null(array, False).cast(pa.uint8()))
    if digits := types.decimal_digits(type_name):
        if digits[0] > 18:
            return np.frombuffer(array.buffers()[1], "V16", rows, array.offset * 16)
        return np.frombuffer(array.buffers()[1], "<i8", rows * 2, array.offset * 16)[::2]
    return np.frombuffer(array.buffers()[1], dtype, rows, array.offset * dtype.itemsize)


# -- decoding columns -------------------------------------------------------------------------------------------------


def _decode_uniform(
    table: Table, column_count: int, data: Array, starts: Array, columns: Sequence[str], schema: pa.Schema
) -> pa.Table:
    """Decode rows of one layout; row i is `data[starts[i]:starts[i + 1]]`."""
    layout = row_layout(table, column_count)
    rows = len(starts) - 1
    if int(np.diff(starts).min()) < layout.width:
        raise CorruptState(f"A row of {table.name} is shorter than its columns.")
    if int(starts[-1]) - int(starts[0]) == rows * layout.width:
        fixed = np.frombuffer(data, layout.dtype, rows, int(starts[0]))
    else:
        # A strided view with one record at every byte of the buffer, of which the row starts are copied.
        everywhere = np.ndarray((int(starts[-1]) - layout.width + 1,), f"V{layout.width}", data, 0, (1,))
        fixed = everywhere[starts[:-1]].view(layout.dtype)
    nulls = fixed["nulls"]
    some_null = np.bitwise_or.reduce(nulls, axis=0) if nulls.any() else np.zeros(nulls.shape[1], np.uint8)
    variable = VariableColumns(layout.variable, layout.width, data, starts, fixed)
    index = {name: at for at, name in enumerate(layout.names)}
    added = dict(layout.added_columns)
    arrays = []
    for field in schema:
        at = index.get(field.name)
        if at is None:
            initial = added[field.name]
            arrays.append(pa.nulls(rows, field.type) if initial is None else pa.repeat(initial.arrow, rows))
            continue
        valid = None
        if some_null[at // 8] >> (at % 8) & 1:
            valid = pa.py_buffer(np.packbits(nulls[:, at // 8] >> (at % 8) & 1 ^ 1, bitorder="little"))
        if layout.variable[at]:
            arrays.append(variable.decode_column(at, field.type, valid))
        else:
            stored_type = types.arrow(layout.types[at])
            array = _fixed_column(layout.types[at], fixed[f"c{at}"], stored_type, valid)
            arrays.append(array if stored_type == field.type else _cast_column(table, array, field))
    return pa.Table.from_arrays(arrays, schema=schema)


def _cast_column(table: Table, array: pa.Array, field: pa.Field) -> pa.Array:
    """Cast a column that was written with an earlier type."""
    try:
        return array.cast(field.type)
    except pa.ArrowInvalid:
        raise NewerRowLayout(
            f"{table.name}.{field.name} has a wider type by now, and a value that needs it.", hint="Read again."
        ) from None


def _fixed_column(type_name: Type, field_values: Array, arrow: pa.DataType, valid: Any) -> pa.Array:
    rows = len(field_values)
    if type_name == types.BOOLEAN:
        values = np.packbits(field_values, bitorder="little")
    elif types.decimal_digits(type_name) and field_values.dtype.kind == "i":
        values = np.empty((rows, 2), np.int64)
        values[:, 0] = field_values
        values[:, 1] = values[:, 0] >> 63
    else:
        values = np.ascontiguousarray(field_values)
        if not values.flags.aligned:  # a single row is contiguous, but not aligned
            values = values.copy()
    return pa.Array.from_buffers(arrow, rows, [valid, pa.py_buffer(values)])
