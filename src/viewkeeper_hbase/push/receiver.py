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
from viewkeeper_hbase.push.completeness import Asked, Listing, Marks, Missing, Reached
from viewkeeper_hbase.push.protocol import Caller, Malformed, Refused, Wire
from viewkeeper_hbase.push.spool import Spool

LOG = logging.getLogger("viewkeeper.push")

_GREETING = 10.0
_SILENCE = 3600.0
_PAUSE = 0.003
_PATIENCE = 0.05
"""Seconds for which a region server waits with its answer for what it ships, while others wait for the line."""

_ANSWER = 5.0
"""Seconds that a region server has for an answer. One that is slower is called again by itself, not waited for."""

_SOUGHT = 10.0
"""Seconds between two searches for WALs that are gone: each WAL of a queue is looked for."""

_MOST_CALLERS = 512
_UNKNOWN = "no such question"
_ANEW = "vk hbase push disable and enable make the peer anew"


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
        self._controls: dict[str, Control] = {}
        self._wires: set[Wire | None] = set()
        self._lock = threading.Lock()
        self._epochs = threading.Lock()
        self._asking = threading.Lock()
        """One question at a time: answers come in the order of questions."""
        self._live: frozenset[str] = frozenset()
        self._sought = float("-inf")
        self._gone: tuple[str, ...] = ()
        self._closed = False
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
        self._closed = True
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

    def ask(self, unwanted: Sequence[str]) -> Asked:
        """Step 1 of `reach`: the region servers' clock, and how long their WALs are."""
        with self._asking:
            with self._lock:
                controls = dict(self._controls)
            sent = [(server, c, c.send("M", c.unsaid(unwanted))) for server, c in controls.items()]
            marks, clocks = dict[str, Mapping[str, int]](), list[int]()
            for server, control, number in sent:
                told = control.receive("M", number) if number is not None else None
                if told is not None:
                    marks[server], clock = completeness.read_marks(told)
                    control.remembers = clock is not None
                    clocks += [clock] if clock is not None else []
        known = bool(clocks) and len(clocks) == len(controls) and self._live <= set(marks)
        return Asked(marks, max(clocks) if known else None)

    def reach(self, asked: Asked, timeout: float) -> Reached:
        """Whether everything has come that HBase had acknowledged when it was asked (`reach`, steps 2 and 3)."""
        deadline = time.monotonic() + timeout
        lacks: Missing | None = Missing("no region server is connected")
        while asked.marks:
            left = deadline - time.monotonic()
            listing = self._listing(asked.marks, min(max(left, 0.0), _PATIENCE))  # 2
            if listing is None:
                return Reached(False, "no region server says what is in the queues")
            self._live = listing.live
            lacks = completeness.missing(self._peer, asked.marks, listing)  # 3
            if lacks is None:
                self._gone = ()
                return Reached(True)
            if not lacks.soon or left <= 0:
                break
        lost = self._lost()
        if lost:
            return Reached(False, f"the WAL {lost[0]} was deleted before it was shipped: {_ANEW}", lost)
        return Reached(False, lacks.text if lacks is not None else "")

    def _listing(self, marks: Marks, patience: float) -> Listing | None:
        """What any one of them says of the queues, and each then of its own, when it is shipped or patience is over.

        Nobody waits for anybody: all are asked at once.
        """
        with self._asking:
            with self._lock:
                asked = {server: self._controls[server] for server in marks if server in self._controls}
            wait = all(control.waits for control in asked.values())
            if not wait:
                time.sleep(min(patience, _PAUSE))
            first = next(iter(asked.values()), None)
            number = None if first is None else first.send("Q", ["others"] if wait else ())
            how = f"{1000 * patience:.0f}"
            waits = [(c, c.send("W", [how, *_lines(marks[s])])) for s, c in asked.items() if c.waits]
            told = None if first is None or number is None else first.receive("Q", number)
            own = [c.receive("W", number) for c, number in waits if number is not None]
        if told is None:
            return None
        return completeness.later(
            completeness.read_listing(told), [completeness.read_listing(one) for one in own if one is not None]
        )

    def _told(self, control: Control, what: str) -> str | None:
        with self._asking:
            number = control.send(what, ())
            return None if number is None else control.receive(what, number)

    def _lost(self) -> tuple[str, ...]:
        """The WALs that are gone, asked for every few seconds while not all has come."""
        if time.monotonic() - self._sought > _SOUGHT:
            self._sought = time.monotonic()
            with self._lock:
                controls = list(self._controls.values())
            for control in controls:
                told = self._told(control, "L")
                if told is not None:
                    self._gone = completeness.read_lost(told)
                    break
        return self._gone

    # -- callers ------------------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        while not self._closed:
            try:
                sock, caller = self._server.accept()
            except OSError:
                return
            if len(self._wires) >= _MOST_CALLERS:
                LOG.warning("%s was turned away: %d callers are here", caller[0], len(self._wires))
                sock.close()
                continue
            threading.Thread(target=self._serve, args=(sock, caller[0]), daemon=True).start()

    def _serve(self, sock: socket.socket, host: str) -> None:
        opened: Wire | None = None
        try:
            sock.settimeout(_GREETING)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if self._tls is not None:
                sock = self._tls.wrap_socket(sock, server_side=True)
            opened, caller = protocol.answer(sock, self._secret)
            with self._lock:
                self._wires.add(opened)
            if self._closed:
                return
            self._check(caller)
            sock.settimeout(_SILENCE)
            if caller.role == "data":
                self._take(opened, caller)
            elif caller.role == "control":
                self._control(opened, caller)
            elif caller.role == "reach":
                self._answer(opened)
            else:
                raise Refused(f"a caller that wants to {caller.role}")
        except Refused as refused:
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

    def _check(self, caller: Caller) -> None:
        if caller.role not in ("data", "control"):
            return
        if caller.peer != self._peer:
            raise Refused(f"it is of the peer {caller.peer}, not {self._peer}")
        with self._epochs:
            known = self._spool.epoch
            if known is not None and _life(caller.epoch) < _life(known):
                raise Refused(f"it is of an older life of the peer, {caller.epoch} and not {known}")
            self._spool.begin(caller.epoch)

    def _take(self, opened: Wire, caller: Caller) -> None:
        while not self._closed:
            body = opened.receive()
            try:
                if body[:1] != b"D":
                    raise Malformed("no rows")
                if self._spool.epoch != caller.epoch:
                    raise Refused("the peer has begun another life")
                self._spool.append(body[1:])
            except Malformed as error:
                opened.send(b"N" + str(error).encode())
                raise Refused(f"a frame of {caller.server} is not whole: {error}") from error
            except (OSError, StoreError) as error:
                opened.send(b"N" + str(error).encode()[:1000])
                LOG.error("what %s pushed could not be kept, and will come again: %s", caller.server, error)
                time.sleep(1.0)
                continue
            opened.send(b"A")

    def _control(self, opened: Wire, caller: Caller) -> None:
        control = Control(opened)
        with self._lock:
            self._controls[caller.server] = control
        LOG.info("region server %s is connected", caller.server)
        self._spool.tell()
        try:
            control.wait()
        finally:
            with self._lock:
                if self._controls.get(caller.server) is control:
                    del self._controls[caller.server]
            self._spool.tell()  # who maintains must find out by itself now what happened there
            LOG.info("region server %s is not connected any more", caller.server)

    def _answer(self, opened: Wire) -> None:
        while not self._closed:
            said = json.loads(opened.receive())
            if "marks" in said:
                found: Asked | Reached = self.reach(Asked(said["marks"]), min(float(said["timeout"]), 30.0))
            else:
                found = self.ask(said["unwanted"])
            opened.send(json.dumps(asdict(found)).encode())


class Control:
    """The line to one region server: questions and answers, one after another."""

    def __init__(self, opened: Wire) -> None:
        self._wire = opened
        self._numbers = count()
        self._said: tuple[str, ...] | None = None
        self.remembers = False
        """Whether it knows yet what it was told last; an endpoint of before it told its clock does not."""
        self.waits = True
        """Whether it can wait with an answer; an older one cannot."""

    def unsaid(self, unwanted: Sequence[str]) -> Sequence[str]:
        """The tables that are not wanted, unless they are those of the last time: an empty list changes nothing."""
        if self.remembers and self._said == tuple(unwanted):
            return ()
        self._said = tuple(unwanted)
        return self._said

    def wait(self) -> None:
        """Until nobody is there any more, which is noticed without a question too."""
        self._wire.wait_for_end()

    def send(self, what: str, lines: Sequence[str]) -> int | None:
        """Ask; the question's number, None if nobody is there any more."""
        number = next(self._numbers)
        try:
            self._wire.send("\n".join([f"{what} {number}", *lines]).encode())
        except OSError:
            self._wire.close()
            return None
        return number

    def receive(self, what: str, number: int) -> str | None:
        """The answer; None if it did not come in time, or was that it cannot be said."""
        try:
            while True:
                self._wire.settimeout(_ANSWER)
                first, _, rest = self._wire.receive().decode().partition("\n")
                if first == f"{what} {number}":
                    break
        except (OSError, EOFError, Refused):  # a frame that was read in part: the line is of no use any more
            self._wire.close()
            return None
        if rest.startswith("error ") and _UNKNOWN in rest:
            self.waits = False
            return None
        if rest.startswith("error "):
            LOG.warning("a region server could not say: %s", rest.strip()[6:])
            return None
        return rest


def _lines(lengths: Mapping[str, int]) -> list[str]:
    return [f"{wal} {length}" for wal, length in lengths.items()]


def _life(epoch: str) -> int:
    with suppress(ValueError):
        return int(epoch, 16)
    return 0
