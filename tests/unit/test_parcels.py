"""Rows in a file that two processes have open."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from multiprocessing.connection import Connection

import pyarrow as pa
import pytest

from viewkeeper.runtime.processes.worker import create_unnamed_file, read_tables, receive, send, write_tables


@pytest.fixture
def file() -> Iterator[int]:
    descriptor = create_unnamed_file()
    yield descriptor
    os.close(descriptor)


def test_tables_are_taken_as_they_were_written(file: int) -> None:
    some = pa.table({"a": [1, None, 3], "b": ["x", "y", None]})
    chunks = pa.concat_tables([some, some.slice(1)])
    places, _ = write_tables(file, {"t": [some, chunks.slice(2, 2)], "none": [], "empty": [some.slice(0, 0)]})
    found = {name: read_tables(file, each) for name, each in places.items()}
    assert found == {"t": [some, chunks.slice(2, 2)], "none": [], "empty": [some.slice(0, 0)]}


def test_what_was_taken_stays_when_more_is_written(file: int) -> None:
    long = pa.table({"a": list(range(100_000))})
    first = read_tables(file, write_tables(file, {"t": [long]})[0]["t"])[0]
    short = pa.table({"a": [7] * 10})
    second = read_tables(file, write_tables(file, {"t": [short]})[0]["t"])[0]
    assert (first, second) == (long, short)


def test_a_slice_takes_its_own_rows_only(file: int) -> None:
    places, end = write_tables(file, {"t": [pa.table({"a": list(range(100_000))}).slice(5, 3)]})
    [(start, length)] = places["t"]
    assert start == 0
    assert length == end < 10_000


def test_a_file_that_ends_too_early_is_told(file: int) -> None:
    [(start, length)] = write_tables(file, {"t": [pa.table({"a": [1, 2]})]})[0]["t"]
    os.ftruncate(file, length - 1)
    with pytest.raises(EOFError):
        read_tables(file, [(start, length)])


def test_a_message_lies_behind_its_rows_however_long_it_is(file: int) -> None:
    """Nobody waits until the other reads: the socket carries a few bytes."""
    ours, theirs = socket.socketpair()
    with Connection(ours.detach()) as one, Connection(theirs.detach()) as other:
        rows = pa.table({"a": [1, 2, 3]})
        send(one, file, {"t": [rows]}, lambda places: (places, b"x" * (8 << 20)))
        places, text = receive(other, file)
        assert (read_tables(file, places["t"]), len(text)) == ([rows], 8 << 20)
