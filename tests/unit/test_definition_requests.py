"""A request and its answer, with the process that maintains played by this one: order, progress, ends of all kinds."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from viewkeeper import errors
from viewkeeper.errors import Defect, MaintainerBusy, PublicationUnknown, Timeout, ViewkeeperError
from viewkeeper.maintain.remote_ddl import client, server
from viewkeeper.maintain.remote_ddl.client import request_definition
from viewkeeper.maintain.remote_ddl.messages import (
    RUNNING,
    DefinitionAnswer,
    error_from_message,
    error_message,
    to_message,
)
from viewkeeper.maintain.remote_ddl.server import DefinitionServer
from viewkeeper.store.mailbox import ANSWER, REQUEST, FileMailbox


class Place:
    """A database that `holder` maintains; `runs`: what it does with each call."""

    def __init__(self, directory: Path) -> None:
        self.url = "lmdb:here"
        self.mailbox = FileMailbox(directory)
        self.mailbox.poll_interval = 0.002
        self.holder: str | None = "process 1"
        self.ran: list[str] = []
        self.runs: Callable[..., Any] = lambda call, arguments, progress: f"{arguments[0]} done"
        self.server = DefinitionServer(self, self.mailbox, self._run)  # type: ignore[arg-type]

    def lease_holder(self) -> str | None:
        return self.holder

    def _run(self, call: str, arguments: Any, progress: Any) -> Any:
        self.ran.append(arguments[0])
        return self.runs(call, arguments, progress)

    def ask(self, name: str = "it", progress: Any = None, take_over: Any = None) -> Any:
        def busy() -> None:
            raise MaintainerBusy("It is maintained elsewhere.")

        answer = request_definition(self, "define", [name], progress, take_over or busy)  # type: ignore[arg-type]
        return answer if answer is None else answer.result


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setattr(server, "THIS_PROCESS", "another")
    for module in (server, client):
        monkeypatch.setattr(module, "HEARTBEAT_INTERVAL", 0.01)
    made = Place(tmp_path)
    yield made
    made.server.stop()


def until(condition: Callable[[], object]) -> None:
    for _ in range(5000):
        if condition():
            return
        time.sleep(0.002)
    raise AssertionError("it does not come")


def in_thread(work: Callable[[], Any]) -> SimpleNamespace:
    found = SimpleNamespace(result=None, error=None)

    def run() -> None:
        try:
            found.result = work()
        except BaseException as error:
            found.error = error

    found.thread = threading.Thread(target=run)
    found.thread.start()
    return found


def test_a_request_is_answered_and_nothing_is_left_of_it(place: Place) -> None:
    place.server.start()
    assert place.ask("a") == "a done"
    place.runs = lambda *_: (_ for _ in ()).throw(errors.NameTaken("a is there.", hint="Take b."))
    with pytest.raises(errors.NameTaken, match=r"a is there\. Take b\."):
        place.ask("b")
    place.runs = lambda *_: {}["gone"]
    with pytest.raises(Defect, match="KeyError: 'gone'"):
        place.ask("c")
    assert place.mailbox.names() == []
    assert [*place.mailbox._directory.iterdir()] == []


def test_requests_run_in_the_order_in_which_they_were_sent(place: Place) -> None:
    """One after the other; one that waits is told how many are before it."""
    go, told = threading.Event(), threading.Event()

    def heard(what: str, done: int, of: int) -> None:
        assert (what, done) == ("statements run before this one by process 1", 0)
        if of == 2:
            told.set()

    place.runs = lambda call, arguments, progress: go.wait(60)
    senders = []
    for count, name in enumerate("abc", 1):
        senders.append(in_thread(lambda name=name: place.ask(name, heard if name == "c" else None)))
        until(lambda count=count: len(place.mailbox.names()) == count)
    place.server.start()
    assert told.wait(60)
    go.set()
    for sender in senders:
        sender.thread.join()
    assert [s.error for s in senders] == [None] * 3
    assert place.ran == ["a", "b", "c"]


def loads(place: Place) -> threading.Event:
    """Its statements load for ever; the event is set when one is broken off."""
    broken_off = threading.Event()

    def load(call: str, arguments: Any, progress: Any) -> None:
        try:
            for done in range(1_000_000):
                progress("scanning items", done, 1_000_000)
                time.sleep(0.001)
        except BaseException:
            broken_off.set()
            raise

    place.runs = load
    return broken_off


def test_ctrl_c_breaks_off_what_has_begun(place: Place) -> None:
    broken_off = loads(place)
    place.server.start()

    def heard(what: str, done: int, of: int) -> None:
        assert (what, of) == ("scanning items", 1_000_000)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        place.ask("a", heard)
    assert broken_off.is_set()
    until(lambda: place.mailbox.names() == [])
    place.runs = lambda *_: "next"
    assert place.ask("b") == "next"


def test_a_statement_is_tried_elsewhere_when_the_process_ends_in_order(place: Place) -> None:
    broken_off = loads(place)
    place.server.start()
    sender = in_thread(place.ask)
    until(lambda: place.ran)
    place.server.stop()
    sender.thread.join()
    assert broken_off.is_set()
    assert (sender.error, sender.result) == (None, None)
    assert place.mailbox.names() == []


def test_when_nobody_maintains_the_sender_takes_the_lease_and_its_request_back(place: Place) -> None:
    """Not before it has the lease: another process that takes over might run the request."""
    attempts = []

    def take_over() -> None:
        attempts.append(place.mailbox.names())
        if len(attempts) < 3:
            raise MaintainerBusy("Another was faster.")

    place.holder = None
    assert place.ask("a", take_over=take_over) is None
    assert [len(names) for names in attempts] == [1, 1, 1]
    assert place.mailbox.names() == []


@pytest.mark.parametrize("holder", [None, "process 2"])
def test_the_outcome_is_open_when_the_process_is_gone_in_the_midst_of_it(place: Place, holder: str | None) -> None:
    sender = in_thread(lambda: place.ask("a", take_over=lambda: None))
    until(place.mailbox.names)
    (name,) = place.mailbox.names()
    place.mailbox.write(name, ANSWER, to_message(DefinitionAnswer("process 1", RUNNING)))
    place.holder = holder
    sender.thread.join()
    assert isinstance(sender.error, PublicationUnknown)
    assert "process 1" in sender.error.message
    assert place.mailbox.names() == []


def test_silence_is_a_timeout_and_the_request_is_never_run(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "SILENCE_TIMEOUT", 0.05)
    with pytest.raises(Timeout, match=r"has not answered for 0\.05 s\. Nothing was changed\."):
        place.ask("a")
    place.server.poll()
    assert place.ran == []
    assert place.mailbox.names() == []


def test_what_nobody_waits_for_is_not_run(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a sender that is gone; of this process itself; what another process has begun; what cannot be read."""
    now = time.time()
    sent = {"call": "define", "arguments": ["x"], "process": "sender", "sent": now, "last_seen": now}
    place.mailbox.write("gone", REQUEST, {**sent, "last_seen": now - 2 * server.SENDER_TIMEOUT})
    place.mailbox.write("mine", REQUEST, {**sent, "process": server.THIS_PROCESS})
    place.mailbox.write("begun", REQUEST, sent)
    place.mailbox.write("begun", ANSWER, to_message(DefinitionAnswer("process 0", RUNNING)))
    place.mailbox.write("newer", REQUEST, {**sent, "colour": "red"})
    (place.mailbox._directory / "broken.request").write_text("{")
    place.server.poll()
    assert place.ran == []
    assert place.mailbox.names() == ["begun", "broken", "mine", "newer"]
    refused = place.mailbox.read("newer", ANSWER)
    assert refused is not None
    assert (refused["state"], refused["error"]["code"]) == ("failed", "VK302")


def test_rubbish_beside_the_requests_stops_none_of_them(place: Place) -> None:
    now = time.time()
    sent = {"call": "define", "arguments": ["x"], "process": "sender", "sent": now, "last_seen": now}
    place.mailbox.write("begun", REQUEST, sent)
    place.mailbox.write("begun", ANSWER, to_message(DefinitionAnswer("process 0", RUNNING)))
    directory = place.mailbox._directory
    (directory / "a.request").mkdir()
    (directory / "b.answer").mkdir()
    for name, said in (("b", sent), ("c", {**sent, "last_seen": "now"}), ("d", {**sent, "arguments": None}), ("e", [])):
        (directory / f"{name}.request").write_text(json.dumps(said))
    (directory / "c.answer").write_text("[" * 100_000)
    (directory / "f.request").write_bytes(b"\xff\x00")
    (directory / "begun.answer").write_text('{"state": 5, "colour": "red"}')
    place.runs = lambda call, arguments, progress: "done"
    place.server.start()
    assert place.ask("mine") == "done"


def test_a_request_that_was_taken_back_as_it_was_to_begin_is_not_run(place: Place) -> None:
    sender = in_thread(lambda: place.ask("a"))
    until(place.mailbox.names)
    (_name,) = place.mailbox.names()
    write = place.mailbox.write

    def taken_back_first(called: str, part: str, message: Any) -> None:
        if part == ANSWER:
            place.mailbox.remove(called)
        write(called, part, message)

    place.mailbox.write = taken_back_first  # type: ignore[method-assign]
    place.server.poll()
    assert place.ran == []
    assert [*place.mailbox._directory.iterdir()] == []
    sender.thread.join()
    assert isinstance(sender.error, PublicationUnknown)


def test_what_runs_is_broken_off_when_its_request_is_gone(place: Place) -> None:
    broken_off = loads(place)
    place.server.start()
    sender = in_thread(lambda: place.ask("a"))
    until(lambda: place.ran)
    place.mailbox.remove(place.mailbox.names()[0])
    assert broken_off.wait(60)
    sender.thread.join()
    assert isinstance(sender.error, PublicationUnknown)


def test_a_sender_that_was_stopped_finds_its_answer_and_never_sends_again(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its statement ran while it was stopped; the answer waits for it, for an hour."""
    now = time.time()
    stopped = now - 2 * server.SENDER_TIMEOUT
    for name, seen in (("answered", stopped), ("forgotten", now - 2 * server.KEPT)):
        sent = {"call": "define", "arguments": ["x"], "process": "sender", "sent": seen, "last_seen": seen}
        place.mailbox.write(name, REQUEST, sent)
        place.mailbox.write(name, ANSWER, to_message(DefinitionAnswer("process 1", "done", result="x done")))
    place.server.poll()
    assert place.mailbox.names() == ["answered"]
    assert place.ran == []


def test_an_error_of_every_code_arrives_as_it_was_raised() -> None:
    kinds = [k for k in vars(errors).values() if isinstance(k, type) and issubclass(k, ViewkeeperError)]
    assert len(kinds) > 20
    for kind in kinds:
        error = kind("What is wrong.", hint="What to do.")
        error.view = "totals"
        made = error_from_message(error_message(error))
        assert (made.code, str(made), made.view) == (kind.code, str(error), "totals")
        assert isinstance(error, type(made))
