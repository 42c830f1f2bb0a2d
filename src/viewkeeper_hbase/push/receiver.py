"""The receiver: takes what region servers push, spools it, and only then says so.

One thread for each connection. A caller that does not know the secret, or is of another peer or of an older life of it,
a frame that is too long, has a wrong code or is not whole: refused, logged, and the connection is closed. HBase keeps
what was refused and tries again; its writers notice nothing.

    data       a frame of rows; answered "A" when it is durable, "N reason" if it was not taken
    control    asked: what does your clock show, how long are your WALs, what is in the queues (`reach`)
    reach      a maintainer in another process asks the same, and whether all has come
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
"""Seconds for which a region server waits with its answer for what it ships, while others wait for the line."""

_ANSWER_TIMEOUT = 5.0
"""Seconds that a region server has for an answer. One that is slower is called again by itself, not waited for."""

_LOST_WAL_INTERVAL = 10.0
"""Seconds between two searches for WALs that are gone: each WAL of a queue is looked for."""

_MAX_CALLERS = 512
_UNKNOWN_QUESTION = "no such question"
_RECREATE_HINT = "vk hbase push disable and enable make the peer anew"


class Receiver:
    """Listens at one address, from its making until `close`."""

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
        """One question at a time: answers come in the order of questions."""
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
            wires = [one for one in self._wires if one is not None]
        for one in wires:
            one.close()

    @property
    def servers(self) -> list[str]:
        """The region servers that are connected."""
        with self._lock:
            return sorted(self._controls)

    # -- whether all has come -----------------------------------------------------------------------------------------

    def request_marks(self, unwanted_tables: Sequence[str]) -> WalMarks:
        """Step 1 of `reach`: the region servers' clock, and how long their WALs are."""
        with self._question_lock:
            with self._lock:
                controls = dict(self._controls)
            sent = [(server, c, c.send("M", c.unwanted_update(unwanted_tables))) for server, c in controls.items()]
            marks, clocks = dict[str, Mapping[str, int]](), list[int]()
            for server, control, number in sent:
                told = control.receive("M", number) if number is not None else None
                if told is not None:
                    marks[server], clock = completeness.read_marks(told)
                    control.has_unwanted_tables = clock is not None
                    clocks += [clock] if clock is not None else []
        known = bool(clocks) and len(clocks) == len(controls) and self._live_servers <= set(marks)
        return WalMarks(marks, max(clocks) if known else None)

    def check_completeness(self, wal_marks: WalMarks, timeout: float) -> Completeness:
        """Whether everything has come that HBase had acknowledged when it was asked (`reach`, steps 2 and 3)."""
        deadline = time.monotonic() + timeout
        lacks: MissingChanges | None = MissingChanges("no region server is connected")
        while wal_marks.marks:
            left = deadline - time.monotonic()
            listing = self._request_listing(wal_marks.marks, min(max(left, 0.0), _SHIPPING_WAIT))  # 2
            if listing is None:
                return Completeness(False, "no region server says what is in the queues")
            self._live_servers = listing.live_servers
            lacks = completeness.find_missing(self._peer, wal_marks.marks, listing)  # 3
            if lacks is None:
                self._lost_wals = ()
                return Completeness(True)
            if not lacks.is_shipping or left <= 0:
                break
        lost = self._find_lost_wals()
        if lost:
            return Completeness(False, f"the WAL {lost[0]} was deleted before it was shipped: {_RECREATE_HINT}", lost)
        return Completeness(False, lacks.text if lacks is not None else "")

    def _request_listing(self, marks: WalLengths, timeout: float) -> QueueListing | None:
        """What any one of them says of the queues, and each then of its own, when it is shipped or patience is over.

        Nobody waits for anybody: all are asked at once.
        """
        with self._question_lock:
            with self._lock:
                asked = {server: self._controls[server] for server in marks if server in self._controls}
            wait = all(control.can_wait for control in asked.values())
            if not wait:
                time.sleep(min(timeout, _RETRY_PAUSE))
            first = next(iter(asked.values()), None)
            number = None if first is None else first.send("Q", ["others"] if wait else ())
            how = f"{1000 * timeout:.0f}"
            waits = [(c, c.send("W", [how, *_length_lines(marks[s])])) for s, c in asked.items() if c.can_wait]
            told = None if first is None or number is None else first.receive("Q", number)
            own = [c.receive("W", number) for c, number in waits if number is not None]
        if told is None:
            return None
        return completeness.update_listing(
            completeness.read_listing(told), [completeness.read_listing(one) for one in own if one is not None]
        )

    def _ask(self, control: ControlLine, question: str) -> str | None:
        with self._question_lock:
            number = control.send(question, ())
            return None if number is None else control.receive(question, number)

    def _find_lost_wals(self) -> tuple[str, ...]:
        """The WALs that are gone, asked for every few seconds while not all has come."""
        if time.monotonic() - self._lost_checked_at > _LOST_WAL_INTERVAL:
            self._lost_checked_at = time.monotonic()
            with self._lock:
                controls = list(self._controls.values())
            for control in controls:
                told = self._ask(control, "L")
                if told is not None:
                    self._lost_wals = completeness.read_lost(told)
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
        opened: PushConnection | None = None
        try:
            sock.settimeout(_GREETING_TIMEOUT)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if self._tls is not None:
                sock = self._tls.wrap_socket(sock, server_side=True)
            opened, caller = protocol.accept_caller(sock, self._secret)
            with self._lock:
                self._wires.add(opened)
            if self._is_closed:
                return
            self._check_caller(caller)
            sock.settimeout(_SILENCE_TIMEOUT)
            if caller.role == "data":
                self._receive_rows(opened, caller)
            elif caller.role == "control":
                self._serve_control(opened, caller)
            elif caller.role == "reach":
                self._serve_maintainer(opened)
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
                self._wires.discard(opened)
            if opened is not None:
                opened.close()
            else:
                sock.close()

    def _check_caller(self, caller: Caller) -> None:
        if caller.role not in ("data", "control"):
            return
        if caller.peer != self._peer:
            raise ProtocolError(f"it is of the peer {caller.peer}, not {self._peer}")
        with self._epoch_lock:
            known = self._spool.epoch
            if known is not None and _epoch_number(caller.epoch) < _epoch_number(known):
                raise ProtocolError(f"it is of an older life of the peer, {caller.epoch} and not {known}")
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
            self._spool.notify_listeners()  # who maintains must find out by itself now what happened there
            LOG.info("region server %s is not connected any more", caller.server)

    def _serve_maintainer(self, connection: PushConnection) -> None:
        while not self._is_closed:
            said = json.loads(connection.receive())
            if "marks" in said:
                found: WalMarks | Completeness = self.check_completeness(
                    WalMarks(said["marks"]), min(float(said["timeout"]), 30.0)
                )
            else:
                found = self.request_marks(said["unwanted"])
            connection.send(json.dumps(asdict(found)).encode())


class ControlLine:
    """The line to one region server: questions and answers, one after another."""

    def __init__(self, connection: PushConnection) -> None:
        self._wire = connection
        self._numbers = count()
        self._last_unwanted: tuple[str, ...] | None = None
        self.has_unwanted_tables = False
        """Whether it knows yet what it was told last; an endpoint of before it told its clock does not."""
        self.can_wait = True
        """Whether it can wait with an answer; an older one cannot."""

    def unwanted_update(self, unwanted_tables: Sequence[str]) -> Sequence[str]:
        """The tables that are not wanted, unless they are those of the last time: an empty list changes nothing."""
        if self.has_unwanted_tables and self._last_unwanted == tuple(unwanted_tables):
            return ()
        self._last_unwanted = tuple(unwanted_tables)
        return self._last_unwanted

    def wait(self) -> None:
        """Until nobody is there any more, which is noticed without a question too."""
        self._wire.wait_for_end()

    def send(self, question: str, lines: Sequence[str]) -> int | None:
        """Ask; the question's number, None if nobody is there any more."""
        number = next(self._numbers)
        try:
            self._wire.send("\n".join([f"{question} {number}", *lines]).encode())
        except OSError:
            self._wire.close()
            return None
        return number

    def receive(self, question: str, number: int) -> str | None:
        """The answer; None if it did not come in time, or was that it cannot be said."""
        try:
            while True:
                self._wire.settimeout(_ANSWER_TIMEOUT)
                first, _, rest = self._wire.receive().decode().partition("\n")
                if first == f"{question} {number}":
                    break
        except (OSError, EOFError, ProtocolError):  # a frame that was read in part: the line is of no use any more
            self._wire.close()
            return None
        if rest.startswith("error ") and _UNKNOWN_QUESTION in rest:
            self.can_wait = False
            return None
        if rest.startswith("error "):
            LOG.warning("a region server could not say: %s", rest.strip()[6:])
            return None
        return rest


def _length_lines(lengths: Mapping[str, int]) -> list[str]:
    return [f"{wal} {length}" for wal, length in lengths.items()]


def _epoch_number(epoch: str) -> int:
    with suppress(ValueError):
        return int(epoch, 16)
    return 0
