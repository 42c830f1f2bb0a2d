"""What a packed Arrow stream says of its size is what comes out of it."""

from __future__ import annotations

import io
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from viewkeeper.server.http.arrow_limits import decoded_size, decompressed_size

ROWS = st.lists(st.tuples(st.integers(-(2**62), 2**62), st.text(max_size=30) | st.none(), st.sampled_from("abc")))


def written(table: pa.Table, compression: str | None) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(table, max_chunksize=7)
    return sink.getvalue()


def buffers(array: Any) -> int:
    return sum(b.size for b in array.buffers() if b is not None)


@given(ROWS, st.sampled_from(["lz4", "zstd"]))
def test_the_size_is_that_of_the_buffers(rows: list[Any], how: str) -> None:
    numbers, texts, words = zip(*rows, strict=True) if rows else ((), (), ())
    columns = {"n": pa.array(numbers, pa.int64()), "t": pa.array(texts, pa.string())}
    table = pa.table({**columns, "w": pa.array(words, pa.string()).dictionary_encode()})
    stream = written(table, how)
    found = pa.ipc.open_stream(stream).read_all()
    expected = sum(buffers(chunk) for name in ("n", "t") for chunk in found[name].chunks)
    expected += sum(buffers(chunk.indices) for chunk in found["w"].chunks)
    expected += buffers(found["w"].chunk(0).dictionary) if rows else 0
    told = decompressed_size(stream)
    # A buffer that packing would make larger is not packed, and is in the body as it is.
    assert told <= expected + 8 * 8 * (1 + len(rows))
    assert told + len(stream) >= expected
    assert decompressed_size(written(table, None)) == 0


@given(ROWS, st.sampled_from(["lz4", "zstd", None]), st.booleans())
def test_every_message_is_seen(rows: list[Any], how: str | None, old: bool) -> None:
    """As pyarrow sees them: a stream with its messages cut off one by one gets smaller by what each brought."""
    columns = {"n": pa.array([row[0] for row in rows], pa.int64()), "t": pa.array([row[1] for row in rows])}
    sink, options = io.BytesIO(), pa.ipc.IpcWriteOptions(compression=how, use_legacy_format=old)
    table = pa.table({**columns, "w": pa.array([row[2] for row in rows], pa.string()).dictionary_encode()})
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=3)
    stream, messages = sink.getvalue(), 0
    reader = pa.ipc.MessageReader.open_stream(stream)
    with suppress(StopIteration):
        while reader.read_next_message():
            messages += 1
    sizes = [decompressed_size(stream[:end]) for end in _ends(stream)]
    assert len(sizes) == messages
    assert sizes == sorted(sizes)
    assert not sizes or sizes[-1] == decompressed_size(stream)
    assert how is not None or not any(sizes)


def _ends(stream: bytes) -> list[int]:
    """Where each message of a stream ends."""
    source, found = pa.BufferReader(stream), []
    with suppress(EOFError, pa.ArrowInvalid):
        while pa.ipc.read_message(source) is not None:
            found.append(source.tell())
    return found


@pytest.mark.parametrize("how", ["lz4", "zstd"])
def test_what_packs_well(how: str) -> None:
    table = pa.table({"n": pa.array([1] * 100_000, pa.int64())})
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=how)) as writer:
        writer.write_table(table)
    assert decompressed_size(sink.getvalue()) == 800_000


WORDS = st.lists(st.text(max_size=20) | st.none(), min_size=1)


@given(WORDS, st.integers(0, 5), st.sampled_from([pa.string(), pa.large_string(), pa.string_view(), pa.binary()]))
def test_the_decoded_size_is_that_of_the_values(words: list[str | None], skipped: int, kind: pa.DataType) -> None:
    plain = pa.array([None if word is None else word.encode() for word in words], pa.binary())
    size = sum(len(word.encode()) for word in words[skipped:] if word)
    as_kind = plain.cast(pa.string()).cast(kind)
    named = pa.DictionaryArray.from_arrays(pa.array(range(len(words)), pa.int16()), as_kind)
    runs = pa.RunEndEncodedArray.from_arrays(pa.array(range(2, 2 * len(words) + 2, 2), pa.int32()), as_kind)
    assert decoded_size(pa.table({"w": named}).slice(skipped)) == size
    assert decoded_size(pa.table({"w": runs}).slice(2 * skipped)) == 2 * size
    whole = decoded_size(pa.table({"w": as_kind}).slice(skipped))
    assert whole == (size if kind == pa.string_view() else 0)  # of the others the body has every byte


@given(st.binary(max_size=300), st.integers(0, 600), st.integers(0, 255))
def test_damage_is_an_error_or_nothing(junk: bytes, place: int, value: int) -> None:
    stream = bytearray(written(pa.table({"n": list(range(100)), "t": ["x"] * 100}), "zstd"))
    stream[place % len(stream)] = value
    for data in (junk, bytes(stream), bytes(stream[:place])):
        with suppress(pa.ArrowException, ValueError, OSError):
            assert decompressed_size(data) >= 0
