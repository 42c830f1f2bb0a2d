"""A statement is sent to the process that maintains, and its outcome awaited.

What can happen to the other process meanwhile, and what the sender does:

    it answers                          the result, or the error that it raised there
    it ends and says so                 the statement has not happened: the caller tries again
    it is gone, nothing had begun       this process takes the lease, takes the request back, and the caller tries again
    it is gone in the midst of it       the statement may have happened: VK506
    it holds the lease and is silent    the request is taken back: VK603 (it is stopped, or its program lost its handle)
    the request is gone                 this process was stopped for so long that it was given up: VK506

Ctrl-C takes the request back, and breaks off what has begun and not happened yet.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from viewkeeper.errors import MaintainerBusy, PublicationUnknown, Timeout, ViewkeeperError
from viewkeeper.maintain.remote_ddl.messages import (
    ENDED,
    FAILED,
    FINAL,
    RUNNING,
    DefinitionAnswer,
    DefinitionRequest,
    error_from_message,
    received_answer,
    to_message,
)
from viewkeeper.maintain.remote_ddl.server import HEARTBEAT_INTERVAL, THIS_PROCESS, Progress
from viewkeeper.store.contract.store import Store
from viewkeeper.store.mailbox import ANSWER, CANCEL, REQUEST, Mailbox

SILENCE_TIMEOUT = 30.0
"""Seconds without a word after which the process that maintains is given up."""
_CANCEL_TIMEOUT = 5.0
"""Seconds for which Ctrl-C waits for what has begun to be broken off."""


def request_definition(
    store: Store,
    call: str,
    arguments: Sequence[Any],
    progress: Progress | None,
    take_over: Callable[[], object],
) -> DefinitionAnswer | None:
    """The answer to a request; None if it has not happened and the process that maintained is gone: try again.

    `take_over` makes this process the one that maintains, or raises MaintainerBusy.
    """
    if store.mailbox is None:
        raise MaintainerBusy(f"The database {store.url} is maintained by another process.", hint="Define it there.")
    waiting = _PendingRequest(
        store, store.mailbox, DefinitionRequest(call, list(arguments), THIS_PROCESS, time.time(), time.time())
    )
    try:
        return waiting.wait_for_answer(progress, take_over)
    except KeyboardInterrupt:
        with suppress(ViewkeeperError):
            waiting.withdraw()
        raise


class _PendingRequest:
    """One request, from when it is sent until it is removed."""

    def __init__(self, store: Store, mailbox: Mailbox, request: DefinitionRequest) -> None:
        self._store, self._mailbox, self._request = store, mailbox, request
        self._name = uuid.uuid4().hex
        self._renewed = time.monotonic()
        mailbox.write(self._name, REQUEST, to_message(request))

    def wait_for_answer(self, progress: Progress | None, take_over: Callable[[], object]) -> DefinitionAnswer | None:
        heard: tuple[str, int] | None = None
        since = looked = time.monotonic()
        while True:
            found = self._read_answer()
            now = time.monotonic()
            if found is not None and found.state in FINAL:
                return self._finish(found)
            if found is not None and (found.maintainer, found.heartbeat) != heard:
                heard, since = (found.maintainer, found.heartbeat), now
                _report_progress(found, progress)
            if now - looked >= HEARTBEAT_INTERVAL:
                looked = now
                if self._is_lost(found, take_over):
                    return None
            if now - since > SILENCE_TIMEOUT:
                self._raise_timeout(found)
            self._renew(now)
            time.sleep(self._mailbox.poll_interval)

    def _read_answer(self) -> DefinitionAnswer | None:
        return received_answer(self._mailbox.read(self._name, ANSWER))

    def _finish(self, answer: DefinitionAnswer) -> DefinitionAnswer | None:
        self._mailbox.remove(self._name)
        if answer.state == ENDED:
            return None
        if answer.state == FAILED:
            raise error_from_message(answer.error)
        return answer

    def _is_lost(self, answer: DefinitionAnswer | None, take_over: Callable[[], object]) -> bool:
        """Whether the request will not be run, because who maintained is gone; then it is taken back."""
        holder = self._store.lease_holder()
        if answer is not None and answer.state == RUNNING:
            if answer.maintainer == holder:
                return False
            last = self._read_answer()  # its last word may have come meanwhile
            if last is not None and last.state in FINAL:
                return False
            self._mailbox.remove(self._name)
            raise _open_outcome(
                f"The process that maintained {self._store.url} ({answer.maintainer}) ended while it ran the statement."
            )
        if holder is not None:
            return False
        try:
            take_over()  # from now on nobody else can begin to run it
        except MaintainerBusy:
            return False
        last = self._read_answer()
        if last is not None and (last.state == RUNNING or last.state in FINAL):
            return False
        self._mailbox.remove(self._name)
        return True

    def _raise_timeout(self, answer: DefinitionAnswer | None) -> None:
        begun = answer is not None and answer.state == RUNNING
        self.withdraw(timeout=0.0)
        holder = self._store.lease_holder() or "another process"
        raise Timeout(
            f"{holder}, which maintains {self._store.url}, has not answered for {SILENCE_TIMEOUT:g} s."
            + (" It had begun to run the statement, which may still happen." if begun else " Nothing was changed."),
            hint="Look at that process: it may be stopped. End it, and run the statement again.",
        )

    def withdraw(self, timeout: float = _CANCEL_TIMEOUT) -> None:
        """Take the request back. What has begun is broken off, and waited for a while."""
        self._mailbox.write(self._name, CANCEL, {})
        until = time.monotonic() + timeout
        while True:
            found = self._read_answer()
            if found is None or found.state != RUNNING:
                self._mailbox.remove(self._name)
                return
            if time.monotonic() >= until:
                return  # who runs it removes it
            time.sleep(self._mailbox.poll_interval)

    def _renew(self, now: float) -> None:
        if now - self._renewed > 5 * HEARTBEAT_INTERVAL:
            self._renewed = now
            if self._mailbox.read(self._name, REQUEST) is None:  # sent once more it could run twice
                raise _open_outcome(
                    f"This process was silent for so long that the statement it sent to {self._store.url} was given up."
                )
            self._request = replace(self._request, last_seen=time.time())
            self._mailbox.write(self._name, REQUEST, to_message(self._request))


def _open_outcome(message: str) -> PublicationUnknown:
    hint = "Look whether it has happened (SHOW TABLES, SHOW VIEWS), and run it again if not."
    return PublicationUnknown(message, hint=hint)


def _report_progress(answer: DefinitionAnswer, progress: Progress | None) -> None:
    if progress is None:
        return
    if answer.progress is not None:
        progress(*answer.progress)
    elif answer.queue_position:
        progress(f"statements run before this one by {answer.maintainer}", 0, answer.queue_position)
