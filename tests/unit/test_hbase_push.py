"""The parts of a push by themselves: frames, the wire, the spool, and when everything has come."""

from __future__ import annotations

import logging
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from viewkeeper.errors import BadValue, StoreError
from viewkeeper.resources.directory import StateDirectory
from viewkeeper_hbase.capture.time_windows import HBaseCaptureMark
from viewkeeper_hbase.push import completeness, inflow, protocol, settings
from viewkeeper_hbase.push.arrivals import Arrivals
from viewkeeper_hbase.push.inflow import PushInflow
from viewkeeper_hbase.push.protocol import Caller, MalformedFrame, ProtocolError, PushConnection, TouchedRows
from viewkeeper_hbase.push.receiver import Receiver
from viewkeeper_hbase.push.settings import PushAgreement
from viewkeeper_hbase.push.spool import PushMark, Spool, common_mark

SECRET = b"a secret of some length"
NOW = 1_700_000_000_000


def rows(*keys: bytes, at: int = NOW, loaded: bool = False) -> TouchedRows:
    times = np.full(len(keys), at, np.int64)
    return TouchedRows(pa.array(keys, pa.binary()), times - 1, times, at, loaded)


# -- frames ------------------------------------------------------------------------------------------------------------


def test_a_frame_says_which_rows_of_which_tables() -> None:
    found = protocol.decode_tables(
        protocol.encode_tables({"a:x": rows(b"1", b"", b"22"), "a:y": rows(b"3", at=5, loaded=True)})
    )
    assert found["a:x"].keys.to_pylist() == [b"1", b"", b"22"]
    assert found["a:x"].newest.tolist() == [NOW] * 3
    assert found["a:x"].oldest.tolist() == [NOW - 1] * 3
    assert (found["a:y"].keys.to_pylist(), found["a:y"].newest_write_time, found["a:y"].is_bulk_loaded) == (
        [b"3"],
        5,
        True,
    )


@given(st.binary(max_size=200))
def test_any_bytes_are_a_frame_or_malformed(data: bytes) -> None:
    with suppress(MalformedFrame):
        protocol.decode_tables(data)


@given(st.integers(0, 80), st.integers(0, 255))
def test_a_changed_byte_never_reads_beyond_the_frame(place: int, value: int) -> None:
    data = bytearray(protocol.encode_tables({"a:x": rows(b"1", b"22"), "a:yy": rows(b"333")}))
    data[place % len(data)] = value
    with suppress(MalformedFrame):
        for found in protocol.decode_tables(bytes(data)).values():
            found.keys.validate(full=True)


# -- the spool ---------------------------------------------------------------------------------------------------------


def test_what_lies_behind_a_mark_is_read_by_whoever_opens_the_spool(tmp_path: Path) -> None:
    spool = Spool(StateDirectory(tmp_path))
    spool.append(protocol.encode_tables({"a:x": rows(b"1")}))
    mark = spool.current_mark()
    spool.append(protocol.encode_tables({"a:x": rows(b"2"), "a:y": rows(b"9")}))
    again = Spool(StateDirectory(tmp_path))
    again.read_new_segments()
    again.append(protocol.encode_tables({"a:x": rows(b"3")}))
    spool.read_new_segments()
    for one in (spool, again):
        keys = [k for s in one.segments_after(mark, "a:x") for k in s.tables["a:x"].keys.to_pylist()]
        assert sorted(keys) == [b"2", b"3"]
    assert again.id == spool.id
    spool.remove(mark)
    assert len(list(tmp_path.glob("*.touched"))) == 2


def test_a_file_that_a_list_missed_keeps_later_ones_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = Spool(StateDirectory(tmp_path))
    segments = [writer.append(protocol.encode_tables({"a:x": rows(b"%d" % n)})) for n in range(3)]
    reader = Spool(StateDirectory(tmp_path))
    original = StateDirectory.list_names
    lists = [[segments[2].name]]
    monkeypatch.setattr(StateDirectory, "list_names", lambda s, p, **o: lists.pop() if lists else original(s, p, **o))
    reader.read_new_segments()
    assert reader.current_mark() == {segments[0].writer: 3}
    assert len(reader.segments_after({}, "a:x")) == 3


def test_a_write_that_failed_leaves_no_gap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = Spool(StateDirectory(tmp_path))
    first = spool.append(protocol.encode_tables({"a:x": rows(b"1")}))
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left")))
    with pytest.raises(OSError, match="No space"):
        spool.append(protocol.encode_tables({"a:x": rows(b"2")}))
    monkeypatch.undo()
    second = spool.append(protocol.encode_tables({"a:x": rows(b"2")}))
    assert (second.writer != first.writer, second.number) == (True, 1)
    assert not list(tmp_path.glob(".*"))


def test_a_spool_that_is_full_takes_nothing_until_batches_have_what_is_there(tmp_path: Path) -> None:
    frame = protocol.encode_tables({"a:x": rows(*(b"%06d" % n for n in range(100)))})
    spool = Spool(StateDirectory(tmp_path), max_bytes=2 * len(frame))
    spool.append(frame)
    spool.append(frame)
    with pytest.raises(StoreError, match="HBase keeps what follows"):
        spool.append(frame)
    assert len(list(tmp_path.glob("*.touched"))) == 2
    spool.remove(spool.current_mark())
    spool.append(frame)
    assert len(list(tmp_path.glob("*.touched"))) == 1


def test_who_only_receives_remembers_nothing(tmp_path: Path) -> None:
    spool = Spool(StateDirectory(tmp_path), is_write_only=True)
    spool.append(protocol.encode_tables({"a:x": rows(b"1")}))
    assert (spool.segment_count, spool.segments_after({}, "a:x")) == (0, [])
    reader = Spool(StateDirectory(tmp_path))
    reader.read_new_segments()
    assert len(reader.segments_after({}, "a:x")) == 1


def test_the_least_of_marks_is_what_all_have() -> None:
    assert common_mark([{"a": 3, "b": 2}, {"a": 1, "b": 5, "c": 1}]) == {"a": 1, "b": 2}


# -- the wire ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[Receiver]:
    made = Receiver(("127.0.0.1", 0), Spool(StateDirectory(tmp_path / "spool")), "peer", SECRET)
    yield made
    made.close()


def call(
    receiver: Receiver, role: str = "data", peer: str = "peer", epoch: str = "2", secret: bytes = SECRET
) -> PushConnection:
    return protocol.connect_receiver(receiver.address, secret, Caller(role, "rs,1,1", peer, epoch), timeout=60)


def ends(opened: PushConnection) -> bool:
    opened.settimeout(5)
    try:
        opened.receive()
    except (EOFError, OSError):
        return True
    return False


def test_a_frame_is_durable_before_it_is_acknowledged(receiver: Receiver, tmp_path: Path) -> None:
    opened = call(receiver)
    opened.send(b"D" + protocol.encode_tables({"a:x": rows(b"1")}))
    assert opened.receive() == b"A"
    again = Spool(StateDirectory(tmp_path / "spool"))
    again.read_new_segments()
    assert again.segments_after({}, "a:x")[0].tables["a:x"].keys.to_pylist() == [b"1"]
    assert again.epoch == "2"
    opened.close()


@pytest.mark.parametrize("role", ["data", "control"])
def test_who_does_not_know_the_secret_is_refused(receiver: Receiver, role: str) -> None:
    with pytest.raises((ProtocolError, EOFError, OSError)):
        call(receiver, role, secret=b"another secret than that")


def test_a_receiver_that_does_not_know_the_secret_gets_nothing(tmp_path: Path) -> None:
    thief = Receiver(("127.0.0.1", 0), Spool(StateDirectory(tmp_path)), "peer", b"not the secret, just a guess")
    with pytest.raises((ProtocolError, EOFError, OSError)):
        call(thief)
    thief.close()


@pytest.mark.parametrize("body", [b"D\xff\xff", b"X", b"D" + protocol.encode_tables({"a:x": rows(b"1")})[:-3]])
def test_a_frame_that_is_not_whole_is_refused_and_others_are_served(
    receiver: Receiver, body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "viewkeeper.push"):
        opened = call(receiver)
        opened.send(body)
        assert opened.receive()[:1] == b"N"
        assert ends(opened)
    assert "was refused" in caplog.text
    opened = call(receiver)
    opened.send(b"D" + protocol.encode_tables({"a:x": rows(b"1")}))
    assert opened.receive() == b"A"
    opened.close()


def test_a_frame_that_is_too_long_or_tampered_with_is_refused(receiver: Receiver) -> None:
    opened = call(receiver)
    opened._socket.sendall(struct.pack(">I", 1 << 30))
    assert ends(opened)
    opened = call(receiver)
    body = b"D" + protocol.encode_tables({"a:x": rows(b"1")})
    opened._socket.sendall(struct.pack(">I", len(body)) + body + bytes(16))
    assert ends(opened)
    assert receiver._spool.segment_count == 0


def test_another_peer_and_an_older_life_of_it_are_refused(receiver: Receiver) -> None:
    first = call(receiver, epoch="2")
    first.send(b"D" + protocol.encode_tables({"a:x": rows(b"1")}))
    assert first.receive() == b"A"
    assert ends(call(receiver, peer="another"))
    assert ends(call(receiver, epoch="1"))
    newer = call(receiver, epoch="a")
    newer.send(b"D" + protocol.encode_tables({"a:x": rows(b"2")}))
    assert newer.receive() == b"A"
    first.send(b"D" + protocol.encode_tables({"a:x": rows(b"3")}))
    assert ends(first)
    assert receiver._spool.epoch == "a"
    newer.close()


def test_noise_does_not_stop_the_receiver(receiver: Receiver) -> None:
    for noise in (b"", b"GET / HTTP/1.1\r\n\r\n", os.urandom(5000)):
        with socket.create_connection(receiver.address, timeout=5) as sock:
            sock.sendall(noise)
    opened = call(receiver)
    opened.send(b"D" + protocol.encode_tables({"a:x": rows(b"1")}))
    assert opened.receive() == b"A"
    opened.close()


def test_what_cannot_be_kept_is_not_acknowledged(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = call(receiver)
    opened.send(b"D" + protocol.encode_tables({"a:x": rows(b"0")}))
    assert opened.receive() == b"A"
    monkeypatch.setattr(time, "sleep", lambda _: None)
    with monkeypatch.context() as full:
        full.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left")))
        opened.send(b"D" + protocol.encode_tables({"a:x": rows(b"1")}))
        assert opened.receive()[:1] == b"N"
    opened.send(b"D" + protocol.encode_tables({"a:x": rows(b"1")}))
    assert opened.receive() == b"A"
    assert receiver._spool.segment_count == 2
    opened.close()


# -- whether all has come ----------------------------------------------------------------------------------------------

MARKS = {"rs1": {"rs1.g.10": 100, "rs1.h.12": 0}, "rs2": {"rs2.10": 7}}
DONE = "live rs1\nlive rs2\nqueue rs1 p rs1.g.10 100\nqueue rs1 p rs1.h.12 0\nqueue rs2 p rs2.10 9\n"


@pytest.mark.parametrize(
    ("more", "lacks"),
    [
        ("", None),
        ("queue rs1 p rs1.g.11 0", None),
        ("queue rs1 p rs1.g.9 50", "older WAL"),
        ("queue rs1 p rs1.i.10 50", "older WAL"),
        ("queue rs3 p rs3.10 7", "wait to be claimed"),
        ("queue rs1 p-rs3 rs3.10 7", "being shipped"),
        ("live rs4", "not connected"),
    ],
)
def test_all_has_come_when_every_queue_is_accounted_for(more: str, lacks: str | None) -> None:
    found = completeness.find_missing("p", MARKS, completeness.read_listing(DONE + more))
    assert (found is None) if lacks is None else (found is not None and lacks in found.text)


def test_a_server_whose_wal_is_in_no_queue_is_missing() -> None:
    found = completeness.find_missing("p", MARKS, completeness.read_listing(DONE.replace("queue rs2 p rs2.10 9\n", "")))
    assert found is not None
    assert "in no queue" in found.text


def test_a_wal_that_is_not_shipped_to_the_length_it_had_is_missing() -> None:
    found = completeness.find_missing(
        "p", MARKS, completeness.read_listing(DONE.replace("rs1.g.10 100", "rs1.g.10 99"))
    )
    assert found is not None
    assert found.is_shipping


def test_a_server_knows_its_own_queue_best() -> None:
    """What it says is newer than the list that it or another has made, and is all of that queue."""
    listing = completeness.read_listing(DONE.replace("rs1.g.10 100", "rs1.g.10 99"))
    assert completeness.find_missing("p", MARKS, listing) is not None
    own = completeness.read_listing("queue rs1 p rs1.g.10 100\nqueue rs1 p rs1.h.12 5")
    assert completeness.find_missing("p", MARKS, completeness.update_listing(listing, [own])) is None
    claimed = completeness.read_listing(DONE + "queue rs1 p-rs3 rs3.10 7")
    assert completeness.find_missing("p", MARKS, completeness.update_listing(claimed, [own])) is not None


@pytest.mark.parametrize("waits", [True, False])
def test_all_has_come_when_a_region_server_says_so_in_the_end(receiver: Receiver, waits: bool) -> None:
    """One that can wait is asked once. An endpoint of before cannot: it is asked for the queues again and again."""
    shipped = iter(range(5, 100))

    def answer(asked: str) -> str:
        if asked.startswith("W"):
            return "queue a,1,1 peer a.1 7" if waits else "error java.io.IOException: no such question"
        return f"live a,1,1\nqueue a,1,1 peer a.1 {next(shipped)}"

    _, asked, _ = answer_control(receiver, "a,1,1", answer)
    until(lambda: bool(receiver.servers))
    assert receiver.check_completeness(completeness.WalMarks({"a,1,1": {"a.1": 7}}), 60.0) == completeness.Completeness(
        True
    )
    assert [one[:1] for one in asked] == (["Q", "W"] if waits else ["Q", "W", "Q", "Q"])
    assert asked[1].splitlines()[2:] == ["a.1 7"]


def test_without_a_region_server_nothing_is_known_to_have_come(receiver: Receiver) -> None:
    asked = receiver.request_marks([])
    assert asked == completeness.WalMarks({}, None)
    assert receiver.check_completeness(asked, 1.0) == completeness.Completeness(False, "no region server is connected")


def answer_control(
    receiver: Receiver, server: str, said: str | Callable[[str], str]
) -> tuple[PushConnection, list[str], threading.Thread]:
    """A region server that answers every question with the same lines or by a function, and what it was asked."""
    opened = protocol.connect_receiver(receiver.address, SECRET, Caller("control", server, "peer", "2"), timeout=60)
    asked: list[str] = []

    def serve() -> None:
        with suppress(OSError, EOFError):
            while True:
                asked.append(opened.receive().decode())
                text = said if isinstance(said, str) else said(asked[-1])
                opened.send(f"{asked[-1].splitlines()[0]}\n{text}".encode())

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    return opened, asked, thread


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_the_clock_is_that_of_the_region_server_furthest_ahead(receiver: Receiver) -> None:
    answer_control(receiver, "a,1,1", "clock 50\na.1 7")
    _, asked, _ = answer_control(receiver, "b,1,1", "clock 70\nb.1 9")
    until(lambda: len(receiver.servers) == 2)
    assert receiver.request_marks(["n:view"]) == completeness.WalMarks({"a,1,1": {"a.1": 7}, "b,1,1": {"b.1": 9}}, 70)
    receiver.request_marks(["n:view"])
    receiver.request_marks(["n:view", "n:other"])
    # What is not wanted is said once, and when it changes.
    assert [one.splitlines()[1:] for one in asked] == [["n:view"], [], ["n:view", "n:other"]]


def test_a_region_server_that_does_not_tell_its_clock_makes_it_unknown(receiver: Receiver) -> None:
    answer_control(receiver, "a,1,1", "clock 50\na.1 7")
    _, asked, _ = answer_control(receiver, "old,1,1", "old.1 9")
    until(lambda: len(receiver.servers) == 2)
    for _ in range(2):
        assert receiver.request_marks(["n:view"]) == completeness.WalMarks(
            {"a,1,1": {"a.1": 7}, "old,1,1": {"old.1": 9}}, None
        )
    # An endpoint of before does not remember what it was told.
    assert [one.splitlines()[1:] for one in asked] == [["n:view"], ["n:view"]]


def test_a_receiver_elsewhere_that_does_not_answer_is_asked_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every question would wait for seconds where its machine is gone."""
    called: list[object] = []

    def gone(*how: object, **named: object) -> PushConnection:
        called.append(how)
        raise TimeoutError("timed out")

    monkeypatch.setattr(inflow, "open_receivers", lambda *_: [])
    monkeypatch.setattr(protocol, "connect_receiver", gone)
    agreed = PushAgreement("peer", ("elsewhere:9191",), ("n",))
    found = PushInflow(agreed, Spool(StateDirectory(tmp_path)), SECRET, lambda: ["n:view"])
    assert [found.clock() for _ in range(3)] == [None] * 3
    assert len(called) == 1
    for times in (1, 2):
        assert "does not answer" in found.check_completeness(0).reason
        assert len(called) == times
    found.close()


def test_a_region_server_that_comes_or_goes_is_news(tmp_path: Path) -> None:
    spool, news = Spool(StateDirectory(tmp_path)), threading.Event()
    spool.on_changes(news.set)
    made = Receiver(("127.0.0.1", 0), spool, "peer", SECRET)
    opened, _, _ = answer_control(made, "a,1,1", "")
    assert news.wait(60)
    until(lambda: made.servers == ["a,1,1"])
    news.clear()
    opened.close()
    assert news.wait(60)
    until(lambda: not made.servers)
    made.close()


def test_a_batch_takes_the_rows_that_were_touched_up_to_its_cut_and_the_next_one_the_others(tmp_path: Path) -> None:
    spool = Spool(StateDirectory(tmp_path))
    agreed = PushAgreement("p", ("192.0.2.1:1",), ("n",))
    found = PushInflow(agreed, spool, SECRET, lambda: [])
    for keys, at in (((b"1", b"2"), 10), ((b"2", b"3"), 20), ((b"4",), 30)):
        spool.append(protocol.encode_tables({"n:x": rows(*keys, at=at)}))
    first, mark, _ = found.take("n:x", {}, 19, 1_000)  # of the second, one cell is of 19 and one of 20
    assert inflow.unique_keys(first).to_pylist() == [b"1", b"2", b"3"]
    second, mark, _ = found.take("n:x", mark, 28, 1_000)
    assert inflow.unique_keys(second).to_pylist() == [b"2", b"3"]
    third, mark, _ = found.take("n:x", mark, 40, 1_000)
    assert inflow.unique_keys(third).to_pylist() == [b"4"]
    assert len(found.take("n:x", mark, 50, 1_000)[0]) == 0
    every, _, _ = found.take("n:x", {}, None, 1_000)  # where rows are read as they are
    assert inflow.unique_keys(every).to_pylist() == [b"1", b"2", b"3", b"4"]
    found.close()


def _life(directory: Path, frames: list[TouchedRows], most: int, now: int) -> list[tuple[int, list[bytes]]]:
    """The batches of `most` rows that these frames make: each cut, and the rows that were read."""
    spool, layout = Spool(StateDirectory(directory)), cast(Any, SimpleNamespace(name="n:x"))
    spool.begin_epoch("an epoch")
    arrivals = Arrivals()
    arrivals.inflow = found = PushInflow(PushAgreement("p", ("192.0.2.1:1",), ("n",)), spool, SECRET, lambda: [])
    arrivals._complete_up_to = now
    told = HBaseCaptureMark(0, "", push=PushMark(found.spool_life, {}, True, {}, 0))
    for frame in frames:
        spool.append(protocol.encode_tables({"n:x": frame}))
    batches: list[tuple[int, list[bytes]]] = []
    cut = 0
    while len(waits := arrivals.pending(layout, told, cut, now).first_positions) and len(batches) < 50:
        upto = now if len(waits) <= most else int(np.sort(waits)[most - 1])
        came = arrivals.take(layout, told, cut, upto, has_past_versions=True, now=now)
        told, cut = HBaseCaptureMark(upto, "", push=came.push_mark), upto
        batches.append((cut, came.keys.to_pylist()))
    found.close()
    return batches


def test_a_frame_of_more_rows_than_a_batch_is_read_once(tmp_path: Path) -> None:
    times = np.arange(1, 2_001)
    keys = [b"%05d" % n for n in times]
    frame = TouchedRows(pa.array(keys, pa.binary()), times, times, 1)
    assert _life(tmp_path, [frame], 1_000, now=5_000) == [(1_000, keys[:1_000]), (5_000, keys[1_000:])]


def test_frames_of_two_servers_one_after_the_other_are_read_once(tmp_path: Path) -> None:
    frames = []
    for server in (b"a", b"b"):
        for first in range(1, 5_000, 1_000):
            times = np.arange(first, first + 1_000)
            frames.append(TouchedRows(pa.array([b"%s%05d" % (server, n) for n in times], pa.binary()), times, times, 1))
    batches = _life(tmp_path, frames, 2_500, now=9_000)
    assert [cut for cut, _ in batches] == [1_250, 2_500, 3_750, 9_000]
    assert [len(keys) for _, keys in batches] == [2_500] * 4
    assert len({key for _, keys in batches for key in keys}) == 10_000


def test_a_row_with_a_cell_of_now_and_one_dated_ahead_is_read_for_the_first(tmp_path: Path) -> None:
    """The cut of a batch may be before both."""
    now, years = 5_000, 10**12
    keys = pa.array([b"a", b"b", b"mixed"], pa.binary())
    frame = TouchedRows(keys, np.array([10, 20, 30]), np.array([10, 20, years]), 1)
    assert _life(tmp_path, [frame], 1, now) == [(10, [b"a"]), (20, [b"b"]), (now, [b"mixed"])]


def test_a_row_that_was_touched_often_waits_once_from_its_first_touch() -> None:
    keys = pa.array([b"1", b"2", b"1", b"3", b"2"], pa.binary())
    assert inflow.first_positions(keys, np.array([5, 6, 4, 9, 7])).tolist() == [4, 6, 9]
    assert inflow.first_positions(keys[:0], np.empty(0, np.int64)).tolist() == []


def test_the_address_of_a_receiver_is_host_and_port() -> None:
    assert settings.parse_address("[::1]:9191") == ("::1", 9191)
    for wrong in ("host", "host:", ":1", "host:70000", "host:x"):
        with pytest.raises(BadValue):
            settings.parse_address(wrong)
