"""Remote DDL, server side: the maintaining process runs definitions for other processes, one after another.

    poll        a thread polls the mailbox
    run         the oldest request runs in a thread of its own, while batches continue; each other sender receives its
                queue position
    heartbeat   once a second every sender receives a heartbeat, and the progress of its statement
    answer      the result, or the error with its code; the sender removes the request

A request is removed without running if its sender has not renewed it for `SENDER_TIMEOUT` seconds. An answer is kept
longer, so that a sender that was stopped learns that its statement was executed. When this process ends, a statement
that is not published yet is cancelled, and its sender receives `ENDED`, so that it can send the statement again.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from viewkeeper.errors import MaintainerBusy, StoreError, Unsupported, ViewkeeperError
from viewkeeper.maintain.remote_ddl.messages import (
    DONE,
    ENDED,
    FAILED,
    RUNNING,
    WAITING,
    DefinitionAnswer,
    DefinitionRequest,
    error_message,
    received_answer,
    received_request,
    to_message,
)
from viewkeeper.store.contract.store import Store
from viewkeeper.store.mailbox import ANSWER, CANCEL, REQUEST, Mailbox

Progress = Callable[[str, int, int], None]
CallRunner = Callable[[str, Sequence[Any], Progress], Any]
"""Runs a call with its arguments and reports its progress."""

HEARTBEAT_INTERVAL = 1.0
"""Seconds between two heartbeats to a waiting sender."""
SENDER_TIMEOUT = 60.0
"""Seconds without renewal after which a sender counts as ended; the clocks of two machines must differ by less."""
KEPT = 3600.0
"""Seconds after which an answer is removed that its sender has not read."""
_JOIN_TIMEOUT = 60.0
"""Seconds to wait at the end of this process for a statement that is being cancelled."""
_log = logging.getLogger("viewkeeper.batch")

THIS_PROCESS = f"{socket.gethostname()}-{uuid.uuid4().hex}"
"""A unique name of this process, which does not serve its own requests: as the maintainer it needs none."""


class RequestCancellation(BaseException):
    """Cancels a statement that its sender has withdrawn, or at the end of this process; no view's error."""


class _ActiveRequest:
    """The request that is running."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.progress: tuple[str, int, int] | None = None
        self.cancelled = threading.Event()
        self.thread: threading.Thread | None = None

    def report_progress(self, step: str, done: int, total: int) -> None:
        self.progress = (step, int(done), int(total))
        if self.cancelled.is_set():
            raise RequestCancellation


class DefinitionServer:
    """Runs requests between `start` and `stop`, while this process has the lease."""

    def __init__(self, store: Store, mailbox: Mailbox, run: CallRunner) -> None:
        self._store, self._mailbox, self._run = store, mailbox, run
        self._stopping = threading.Event()
        self._active: _ActiveRequest | None = None
        self._maintainer_name = ""
        self._heartbeat, self._last_heartbeat = 0, 0.0
        self._answer_lock = threading.Lock()
        """Held while an answer is written, so that no heartbeat overwrites the final answer."""
        self._thread = threading.Thread(target=self._serve, name="viewkeeper-definitions", daemon=True)

    def start(self) -> DefinitionServer:
        self._thread.start()
        return self

    def stop(self) -> None:
        """Accept no more requests, and cancel a statement that is not published yet."""
        self._stopping.set()
        _join(self._thread)
        running = self._active
        if running is not None:
            running.cancelled.set()
            _join(running.thread)

    def _serve(self) -> None:
        while not self._stopping.wait(self._mailbox.poll_interval):
            try:
                self.poll()
            except Exception as error:  # the store may be unreachable for a while; senders wait
                _log.debug("the mailbox was not read: %s", error)

    def poll(self) -> None:
        """Read the mailbox once."""
        queued: list[tuple[float, str]] = []
        names = self._mailbox.names()
        running = self._active
        if not names and running is None:
            return
        self._maintainer_name = self._maintainer_name or self._store.lease_holder() or ""
        if running is not None and (running.name not in names or self._mailbox.read(running.name, CANCEL) is not None):
            running.cancelled.set()
        for name in names:
            if running is not None and running.name == name:
                continue
            with _sparing_others(name):
                if (sent := self._sent_time(name)) is not None:
                    queued.append((sent, name))
        queued.sort()
        while queued and self._active is None and not self._stopping.is_set():
            _, name = queued.pop(0)
            with _sparing_others(name):
                self._begin_request(name)
        if time.monotonic() - self._last_heartbeat >= HEARTBEAT_INTERVAL:
            self._heartbeat, self._last_heartbeat = self._heartbeat + 1, time.monotonic()
            self._send_progress(queued)

    def _sent_time(self, name: str) -> float | None:
        """Return the time at which a request was sent; None if it must not run."""
        answer, sent = received_answer(self._mailbox.read(name, ANSWER)), self._mailbox.read(name, REQUEST)
        if sent is None:
            return None
        try:
            request = received_request(sent)
        except TypeError:
            if answer is None:
                refusal = Unsupported("Another version of viewkeeper maintains the database.", hint="Use that one.")
                self._write_answer(name, DefinitionAnswer(self._maintainer_name, FAILED, error=error_message(refusal)))
            return None
        if time.time() - request.last_seen > (SENDER_TIMEOUT if answer is None or answer.state == WAITING else KEPT):
            self._mailbox.remove(name)
            return None
        if request.process == THIS_PROCESS or self._mailbox.read(name, CANCEL) is not None:
            return None
        # A statement that another process has begun may have been executed: its sender has to find out.
        return request.sent if answer is None or answer.state == WAITING else None

    def _begin_request(self, name: str) -> None:
        sent = self._mailbox.read(name, REQUEST)
        if sent is None or not self._write_answer(
            name, DefinitionAnswer(self._maintainer_name, RUNNING, self._heartbeat)
        ):
            return
        self._active = running = _ActiveRequest(name)
        running.thread = threading.Thread(
            target=self._run_request, args=(running, received_request(sent)), name="viewkeeper-definition", daemon=True
        )
        running.thread.start()

    def _run_request(self, active: _ActiveRequest, request: DefinitionRequest) -> None:
        try:
            result = self._run(request.call, request.arguments, active.report_progress)
            answer = DefinitionAnswer(self._maintainer_name, DONE, result=result)
        except RequestCancellation:
            answer = DefinitionAnswer(self._maintainer_name, ENDED)
        except BaseException as error:
            if not isinstance(error, ViewkeeperError):
                _log.exception("A statement that another process has sent failed")
            answer = DefinitionAnswer(self._maintainer_name, FAILED, error=error_message(error))
            if self._stopping.is_set() and isinstance(error, MaintainerBusy | StoreError):
                # The database was closed while the statement ran.
                answer = DefinitionAnswer(self._maintainer_name, ENDED)
        for _ in range(5):
            with self._answer_lock, suppress(Exception):  # the store may be unreachable for a moment
                self._write_answer(active.name, answer)
                break
            time.sleep(HEARTBEAT_INTERVAL)
        self._active = None

    def _send_progress(self, queued: Sequence[tuple[float, str]]) -> None:
        running = self._active
        if running is not None:
            with self._answer_lock:
                answer = received_answer(self._mailbox.read(running.name, ANSWER))
                if answer is not None and answer.state == RUNNING:
                    self._write_answer(
                        running.name,
                        DefinitionAnswer(self._maintainer_name, RUNNING, self._heartbeat, progress=running.progress),
                    )
        for queue_position, (_, name) in enumerate(queued, 1 if running is not None else 0):
            with _sparing_others(name):
                self._write_answer(
                    name, DefinitionAnswer(self._maintainer_name, WAITING, self._heartbeat, queue_position)
                )

    def _write_answer(self, name: str, answer: DefinitionAnswer) -> bool:
        """Write the answer to a request; if the sender has withdrawn the request, remove it and return False."""
        if self._mailbox.read(name, REQUEST) is None:
            return False
        self._mailbox.write(name, ANSWER, to_message(answer))
        if self._mailbox.read(name, REQUEST) is None:
            self._mailbox.remove(name)
            return False
        return True


@contextmanager
def _sparing_others(name: str) -> Iterator[None]:
    """Ignore errors of one request, so that it does not block the others."""
    try:
        yield
    except Exception as error:
        _log.debug("the request %s was left: %s", name, error)


def _join(thread: threading.Thread | None) -> None:
    if thread is not None and thread.is_alive() and thread is not threading.current_thread():
        thread.join(_JOIN_TIMEOUT)
