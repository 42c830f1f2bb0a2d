"""Remote DDL, client side: sends a statement to the maintaining process and waits for its outcome.

What may happen to the maintaining process meanwhile, and what the sender does:

    it answers                              return the result, or raise the error that was raised there
    it ends and reports that                the statement was not executed: the caller tries again
    it ended before it began                this process takes the lease and removes the request; the caller tries again
    it ended while it ran the statement     the statement may have been executed: VK506
    it holds the lease and is silent        the request is withdrawn: VK603 (the process is stopped, or its handle lost)
    the request was removed                 this process was stopped for so long that its request expired: VK506

Ctrl-C withdraws the request, and cancels a statement that runs and is not published yet.
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
"""Seconds without a heartbeat after which the sender gives up waiting for the maintaining process."""
_CANCEL_TIMEOUT = 5.0
"""Seconds for which Ctrl-C waits until a running statement is cancelled."""


def request_definition(
    store: Store,
    call: str,
    arguments: Sequence[Any],
    progress: Progress | None,
    take_over: Callable[[], object],
) -> DefinitionAnswer | None:
    """Send a request and return the answer.

    Returns None if the statement was not executed because the maintaining process has ended: the caller tries again.
    `take_over` makes this process the maintainer, or raises MaintainerBusy.
    """
    if store.mailbox is None:
        raise MaintainerBusy(f"The database {store.url} is maintained by another process.", hint="Define it there.")
    pending = _PendingRequest(
        store, store.mailbox, DefinitionRequest(call, list(arguments), THIS_PROCESS, time.time(), time.time())
    )
    try:
        return pending.wait_for_answer(progress, take_over)
    except KeyboardInterrupt:
        with suppress(ViewkeeperError):
            pending.withdraw()
        raise


class _PendingRequest:
    """A request from sending until its removal."""

    def __init__(self, store: Store, mailbox: Mailbox, request: DefinitionRequest) -> None:
        self._store, self._mailbox, self._request = store, mailbox, request
        self._name = uuid.uuid4().hex
        self._renewed = time.monotonic()
        mailbox.write(self._name, REQUEST, to_message(request))

    def wait_for_answer(self, progress: Progress | None, take_over: Callable[[], object]) -> DefinitionAnswer | None:
        last_heartbeat: tuple[str, int] | None = None
        heartbeat_time = lease_checked = time.monotonic()
        while True:
            answer = self._read_answer()
            now = time.monotonic()
            if answer is not None and answer.state in FINAL:
                return self._finish(answer)
            if answer is not None and (answer.maintainer, answer.heartbeat) != last_heartbeat:
                last_heartbeat, heartbeat_time = (answer.maintainer, answer.heartbeat), now
                _report_progress(answer, progress)
            if now - lease_checked >= HEARTBEAT_INTERVAL:
                lease_checked = now
                if self._is_lost(answer, take_over):
                    return None
            if now - heartbeat_time > SILENCE_TIMEOUT:
                self._raise_timeout(answer)
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
        """Whether the request will not run because the maintaining process has ended; the request is then removed."""
        holder = self._store.lease_holder()
        if answer is not None and answer.state == RUNNING:
            if answer.maintainer == holder:
                return False
            last = self._read_answer()  # the final answer may have arrived meanwhile
            if last is not None and last.state in FINAL:
                return False
            self._mailbox.remove(self._name)
            raise _open_outcome(
                f"The process that maintained {self._store.url} ({answer.maintainer}) ended while it ran the statement."
            )
        if holder is not None:
            return False
        try:
            take_over()  # from now on no other process can begin to run the request
        except MaintainerBusy:
            return False
        last = self._read_answer()
        if last is not None and (last.state == RUNNING or last.state in FINAL):
            return False
        self._mailbox.remove(self._name)
        return True

    def _raise_timeout(self, answer: DefinitionAnswer | None) -> None:
        has_begun = answer is not None and answer.state == RUNNING
        self.withdraw(timeout=0.0)
        holder = self._store.lease_holder() or "another process"
        raise Timeout(
            f"{holder}, which maintains {self._store.url}, has not answered for {SILENCE_TIMEOUT:g} s."
            + (" It had begun to run the statement, which may still happen." if has_begun else " Nothing was changed."),
            hint="Look at that process: it may be stopped. End it, and run the statement again.",
        )

    def withdraw(self, timeout: float = _CANCEL_TIMEOUT) -> None:
        """Withdraw the request; wait up to `timeout` seconds until a running statement is cancelled."""
        self._mailbox.write(self._name, CANCEL, {})
        deadline = time.monotonic() + timeout
        while True:
            answer = self._read_answer()
            if answer is None or answer.state != RUNNING:
                self._mailbox.remove(self._name)
                return
            if time.monotonic() >= deadline:
                return  # the process that runs it removes it
            time.sleep(self._mailbox.poll_interval)

    def _renew(self, now: float) -> None:
        if now - self._renewed > 5 * HEARTBEAT_INTERVAL:
            self._renewed = now
            if self._mailbox.read(self._name, REQUEST) is None:  # sending it again could run it twice
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
