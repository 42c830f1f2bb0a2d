"""The receiver: accepts frames that region servers push, appends them to the spool, then acknowledges them.

Each connection has a thread. The receiver refuses a caller that does not know the secret or belongs to another
peer or to an older epoch of it, and a frame that is too long, incomplete or has a wrong code; it logs the reason
and closes the connection. HBase keeps what was refused and sends it again; its writers are not affected.

    data       frames of rows; answered "A" when the rows are durable, "N reason" if they were not accepted
    control    the receiver asks the region server for its clock, its WAL lengths and the queues (`completeness`)
    reach      a maintainer in another process asks for the same, and whether push is complete
"""

from __future__ import annotations

import json
import logging
import socket
import ssl
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from itertools import count

from viewkeeper.errors import StoreError, ViewkeeperError
from viewkeeper_hbase.push import completeness, protocol
from viewkeeper_hbase.push.completeness import Completeness, MissingChanges, QueueListing, WalLengths, WalMarks
from viewkeeper_hbase.push.protocol import Caller, MalformedFrame, ProtocolError, PushConnection
from viewkeeper_hbase.push.spool import Spool

LOG = logging.getLogger("viewkeeper.push")

_GREETING_TIMEOUT = 10.0
_SILENCE_TIMEOUT = 3600.0
_RETRY_PAUSE = 0.003
_SHIPPING_WAIT = 0.05
"""Seconds for which a region server may delay its answer until its WALs are shipped; other questions wait meanwhile."""

_ANSWER_TIMEOUT = 5.0
"""Seconds that a region server has for an answer. A slower one is disconnected; it reconnects by itself."""

_LOST_WAL_INTERVAL = 10.0
"""Seconds between two searches for deleted WALs: a search checks the file of each WAL in a queue."""

_MAX_CALLERS = 512
_UNKNOWN_QUESTION = "no such question"
_RECREATE_HINT = "vk hbase push disable and enable make the peer anew"


class Receiver:
    """Listens at one address, from its construction until `close`."""

    def __init__(
        self,
        address: tuple[str, int],
        spool: Spool,
        peer: str,
        secret: bytes,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._spool, self._peer, self._secret, self._tls = spool, peer, secret, tls
        self._controls: dict[str, ControlLine] = {}
        self._wires: set[PushConnection | None] = set()
        self._lock = threading.Lock()
        self._epoch_lock = threading.Lock()
        self._question_lock = threading.Lock()
        """Held for one question at a time: answers come in the order of questions."""
        self._live_servers: frozenset[str] = frozenset()
        self._lost_checked_at = float("-inf")
        self._lost_wals: tuple[str, ...] = ()
        self._is_closed = False
        self._server = socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET)
        try:
            self._server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._server.bind(address)
            self._server.listen(64)
        except OSError:
            self._server.close()
            raise
        self.address: tuple[str, int] = self._server.getsockname()[:2]
        threading.Thread(target=self._accept, name="viewkeeper-push", daemon=True).start()

    def close(self) -> None:
        self._is_closed = True
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        with self._lock:
            connections = [connection for connection in self._wires if connection is not None]
        for connection in connections:
            connection.close()

    @property
    def servers(self) -> list[str]:
        """The connected region servers."""
        with self._lock:
            return sorted(self._controls)

    # -- completeness -------------------------------------------------------------------------------------------------

    def request_marks(self, unwanted_tables: Sequence[str]) -> WalMarks:
        """Do step 1 of `completeness`: ask the region servers for their clocks and the lengths of their WALs."""
        with self._question_lock:
            with self._lock:
                controls = dict(self._controls)
            sent = [(server, c, c.send("M", c.unwanted_update(unwanted_tables))) for server, c in controls.items()]
            marks, clocks = dict[str, Mapping[str, int]](), list[int]()
            for server, control, number in sent:
                answer = control.receive("M", number) if number is not None else None
                if answer is not None:
                    marks[server], clock = completeness.read_marks(answer)
                    control.has_unwanted_tables = clock is not None
                    clocks += [clock] if clock is not None else []
        is_clock_known = bool(clocks) and len(clocks) == len(controls) and self._live_servers <= set(marks)
        return WalMarks(marks, max(clocks) if is_clock_known else None)

    def check_completeness(self, wal_marks: WalMarks, timeout: float) -> Completeness:
        """Do steps 2 and 3 of `completeness`: check whether everything acknowledged at the time of `wal_marks` has
        been pushed."""
        deadline = time.monotonic() + timeout
        missing: MissingChanges | None = MissingChanges("no region server is connected")
        while wal_marks.marks:
            remaining = deadline - time.monotonic()
            listing = self._request_listing(wal_marks.marks, min(max(remaining, 0.0), _SHIPPING_WAIT))  # step 2
            if listing is None:
                return Completeness(False, "no region server says what is in the queues")
            self._live_servers = listing.live_servers
            missing = completeness.find_missing(self._peer, wal_marks.marks, listing)  # step 3
            if missing is None:
                self._lost_wals = ()
                return Completeness(True)
            if not missing.is_shipping or remaining <= 0:
                break
        lost = self._find_lost_wals()
        if lost:
            return Completeness(False, f"the WAL {lost[0]} was deleted before it was shipped: {_RECREATE_HINT}", lost)
        return Completeness(False, missing.text if missing is not None else "")

    def _request_listing(self, marks: WalLengths, timeout: float) -> QueueListing | None:
        """Ask one region server for all queues, and each for its own as soon as its WALs are shipped or the timeout
        is over.

        All servers are asked before any answer is read, so their waiting times overlap.
        """
        with self._question_lock:
            with self._lock:
                controls = {server: self._controls[server] for server in marks if server in self._controls}
            wait = all(control.can_wait for control in controls.values())
            if not wait:
                time.sleep(min(timeout, _RETRY_PAUSE))
            first = next(iter(controls.values()), None)
            number = None if first is None else first.send("Q", ["others"] if wait else ())
            milliseconds = f"{1000 * timeout:.0f}"
            waiting = [
                (c, c.send("W", [milliseconds, *_length_lines(marks[s])])) for s, c in controls.items() if c.can_wait
            ]
            answer = None if first is None or number is None else first.receive("Q", number)
            own_answers = [c.receive("W", number) for c, number in waiting if number is not None]
        if answer is None:
            return None
        return completeness.update_listing(
            completeness.read_listing(answer),
            [completeness.read_listing(own_answer) for own_answer in own_answers if own_answer is not None],
        )

    def _ask(self, control: ControlLine, question: str) -> str | None:
        with self._question_lock:
            number = control.send(question, ())
            return None if number is None else control.receive(question, number)

    def _find_lost_wals(self) -> tuple[str, ...]:
        """Return the deleted WALs of the queues; the servers are asked every `_LOST_WAL_INTERVAL` seconds at most."""
        if time.monotonic() - self._lost_checked_at > _LOST_WAL_INTERVAL:
            self._lost_checked_at = time.monotonic()
            with self._lock:
                controls = list(self._controls.values())
            for control in controls:
                answer = self._ask(control, "L")
                if answer is not None:
                    self._lost_wals = completeness.read_lost(answer)
                    break
        return self._lost_wals

    # -- callers ------------------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        while not self._is_closed:
            try:
                sock, caller = self._server.accept()
            except OSError:
                return
            if len(self._wires) >= _MAX_CALLERS:
                LOG.warning("%s was turned away: %d callers are here", caller[0], len(self._wires))
                sock.close()
                continue
            threading.Thread(target=self._serve, args=(sock, caller[0]), daemon=True).start()

    def _serve(self, sock: socket.socket, host: str) -> None:
        connection: PushConnection | None = None
        try:
            sock.settimeout(_GREETING_TIMEOUT)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if self._tls is not None:
                sock = self._tls.wrap_socket(sock, server_side=True)
            connection, caller = protocol.accept_caller(sock, self._secret)
            with self._lock:
                self._wires.add(connection)
            if self._is_closed:
                return
            self._check_caller(caller)
            sock.settimeout(_SILENCE_TIMEOUT)
            if caller.role == "data":
                self._receive_rows(connection, caller)
            elif caller.role == "control":
                self._serve_control(connection, caller)
            elif caller.role == "reach":
                self._serve_maintainer(connection)
            else:
                raise ProtocolError(f"a caller that wants to {caller.role}")
        except ProtocolError as refused:
            LOG.warning("%s was refused: %s", host, refused)
        except (EOFError, OSError, ssl.SSLError) as error:
            LOG.debug("%s: %r", host, error)
        except ViewkeeperError as error:
            LOG.error("%s: %s", host, error)
        finally:
            with self._lock:
                self._wires.discard(connection)
            if connection is not None:
                connection.close()
            else:
                sock.close()

    def _check_caller(self, caller: Caller) -> None:
        if caller.role not in ("data", "control"):
            return
        if caller.peer != self._peer:
            raise ProtocolError(f"it is of the peer {caller.peer}, not {self._peer}")
        with self._epoch_lock:
            epoch = self._spool.epoch
            if epoch is not None and _epoch_number(caller.epoch) < _epoch_number(epoch):
                raise ProtocolError(f"it is of an older life of the peer, {caller.epoch} and not {epoch}")
            self._spool.begin_epoch(caller.epoch)

    def _receive_rows(self, connection: PushConnection, caller: Caller) -> None:
        while not self._is_closed:
            body = connection.receive()
            try:
                if body[:1] != b"D":
                    raise MalformedFrame("no rows")
                if self._spool.epoch != caller.epoch:
                    raise ProtocolError("the peer has begun another life")
                self._spool.append(body[1:])
            except MalformedFrame as error:
                connection.send(b"N" + str(error).encode())
                raise ProtocolError(f"a frame of {caller.server} is not whole: {error}") from error
            except (OSError, StoreError) as error:
                connection.send(b"N" + str(error).encode()[:1000])
                LOG.error("what %s pushed could not be kept, and will come again: %s", caller.server, error)
                time.sleep(1.0)
                continue
            connection.send(b"A")

    def _serve_control(self, connection: PushConnection, caller: Caller) -> None:
        control = ControlLine(connection)
        with self._lock:
            self._controls[caller.server] = control
        LOG.info("region server %s is connected", caller.server)
        self._spool.notify_listeners()
        try:
            control.wait()
        finally:
            with self._lock:
                if self._controls.get(caller.server) is control:
                    del self._controls[caller.server]
            self._spool.notify_listeners()  # wakes the maintainer: it is no longer notified of this server's changes
            LOG.info("region server %s is not connected any more", caller.server)

    def _serve_maintainer(self, connection: PushConnection) -> None:
        while not self._is_closed:
            request = json.loads(connection.receive())
            if "marks" in request:
                result: WalMarks | Completeness = self.check_completeness(
                    WalMarks(request["marks"]), min(float(request["timeout"]), 30.0)
                )
            else:
                result = self.request_marks(request["unwanted"])
            connection.send(json.dumps(asdict(result)).encode())


class ControlLine:
    """The control connection to one region server: questions and answers in order."""

    def __init__(self, connection: PushConnection) -> None:
        self._wire = connection
        self._numbers = count()
        self._last_unwanted: tuple[str, ...] | None = None
        self.has_unwanted_tables = False
        """Whether the server knows the tables sent last. An endpoint that does not report its clock does not
        remember them."""
        self.can_wait = True
        """Whether the server can delay an answer; an older endpoint cannot."""

    def unwanted_update(self, unwanted_tables: Sequence[str]) -> Sequence[str]:
        """Return the unwanted tables if they differ from those sent last, else nothing, which leaves them as they
        are."""
        if self.has_unwanted_tables and self._last_unwanted == tuple(unwanted_tables):
            return ()
        self._last_unwanted = tuple(unwanted_tables)
        return self._last_unwanted

    def wait(self) -> None:
        """Return when the connection is closed, which is noticed even without a question."""
        self._wire.wait_for_end()

    def send(self, question: str, lines: Sequence[str]) -> int | None:
        """Send a question; return its number, or None if the connection is closed."""
        number = next(self._numbers)
        try:
            self._wire.send("\n".join([f"{question} {number}", *lines]).encode())
        except OSError:
            self._wire.close()
            return None
        return number

    def receive(self, question: str, number: int) -> str | None:
        """Return the answer; None if it did not come in time or is an error."""
        try:
            while True:
                self._wire.settimeout(_ANSWER_TIMEOUT)
                header, _, answer = self._wire.receive().decode().partition("\n")
                if header == f"{question} {number}":
                    break
        except (OSError, EOFError, ProtocolError):  # a frame that was read in part makes the connection unusable
            self._wire.close()
            return None
        if answer.startswith("error ") and _UNKNOWN_QUESTION in answer:
            self.can_wait = False
            return None
        if answer.startswith("error "):
            LOG.warning("a region server could not say: %s", answer.strip()[6:])
            return None
        return answer


def _length_lines(lengths: Mapping[str, int]) -> list[str]:
    return [f"{wal} {length}" for wal, length in lengths.items()]


def _epoch_number(epoch: str) -> int:
    with suppress(ValueError):
        return int(epoch, 16)
    return 0
