"""One connection to an HBase Thrift2 gateway: sends calls and receives replies, each within a deadline.

A message on the wire, framed transport and binary protocol (the default of `vk hbase start`, and the fast way
here):

    i32 size | 80 01 00 kind | i32 len, method | i32 seqid | struct | 00        all numbers big-endian

The reply to a framed call is received as one block of bytes and can be decoded without an object per field
(`reply_decoder`). With the buffered transport or the compact protocol thriftpy2 decodes; the result is the same,
but slower.
"""

from __future__ import annotations

import select
import socket
import ssl
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from viewkeeper.errors import BadValue, MissingDependency
from viewkeeper.resources.fork_guard import owned
from viewkeeper_hbase.thrift.errors import NotThrift2Gateway, Unavailable

T = TypeVar("T")
Frame = npt.NDArray[np.uint8]
"""The bytes of one reply, without the leading size."""

_UNCHECKED_IDLE_TIME = 1.0
"""Seconds after which an idle connection is checked before its next use; the check costs a system call."""
_RECEIVE_BYTES = 1 << 14
_MAX_FRAME_BYTES = 1 << 29
"""More than any gateway sends. 'HTTP' and 'SSH-' read as a size are larger."""


@dataclass(frozen=True)
class Tls:
    """TLS to the gateway: the system's certificate authorities unless a file is named; a client certificate if
    required."""

    ca: str | None = None
    certificate: str | None = None
    key: str | None = None
    verify: bool = True

    def context(self) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=self.ca)
            if self.certificate:
                context.load_cert_chain(self.certificate, self.key)
        except OSError as error:
            raise BadValue(
                f"The TLS files ({self.ca}, {self.certificate}, {self.key}) cannot be used: {error}.",
                hint="Name PEM files.",
            ) from error
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


@dataclass(frozen=True)
class Gateway:
    """The gateway's address and connection settings."""

    host: str
    port: int = 9090
    transport: Literal["framed", "buffered"] = "framed"
    protocol: Literal["binary", "compact"] = "binary"
    connect_timeout: float = 5.0
    read_timeout: float = 60.0
    """Seconds for one call, from the first byte sent to the last byte received."""
    tls: Tls | None = None
    connect: Callable[[], socket.socket] | None = None
    """A function that opens the connection (a tunnel, a proxy) in place of host and port."""

    def __post_init__(self) -> None:
        if self.transport not in ("framed", "buffered") or self.protocol not in ("binary", "compact"):
            raise BadValue(
                f"HBase's gateway cannot be spoken to as {self.transport}/{self.protocol}.",
                hint="Transports: framed, buffered. Protocols: binary, compact.",
            )
        if not 0 < self.port < 65536:
            raise BadValue(
                f"{self.port} is no port.", hint="HBase's Thrift2 gateway listens on 9090 unless told otherwise."
            )

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"


class ConnectionLost(Exception):
    """The connection failed during a call. `was_sent`: the server may have received the whole call."""

    def __init__(self, reason: str, *, was_sent: bool, timed_out: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.was_sent = was_sent
        self.timed_out = timed_out


@cache
def thrift_interface() -> Any:
    """Return the packaged IDL as thriftpy2 loads it."""
    try:
        import thriftpy2
    except ImportError:
        raise MissingDependency(
            "HBase is spoken to with thriftpy2, which is not installed.", hint="pip install 'viewkeeper[hbase]'."
        ) from None
    with resources.as_file(resources.files(__package__).joinpath("hbase.thrift")) as path:
        return thriftpy2.load(str(path), module_name="viewkeeper_hbase_thrift")


class Connection:
    """An open connection for one user at a time. After ConnectionLost it is closed and cannot be used."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.last_used = time.monotonic()
        self._idl = thrift_interface()
        self._sequence_number = 0
        self._socket = _open_socket(gateway)
        self._socket.settimeout(gateway.read_timeout)
        self._unread_bytes = b""
        owned(self, f"The connection to {gateway.address} was made")
        self._stream = None if gateway.transport == "framed" else _stream_protocol(gateway, self._socket)

    @property
    def has_frames(self) -> bool:
        """Whether `receive` is possible: replies are frames of the binary protocol."""
        return self._stream is None and self.gateway.protocol == "binary"

    def call(self, method: str, *, piecewise: bool = False, **arguments: Any) -> Any:
        """Call and decode with thriftpy2. Raises the IDL's exceptions, TApplicationException or ConnectionLost."""
        message = self.encode_call(method, **arguments)
        deadline = self.send(message, piecewise=piecewise)
        if self._stream is not None:
            try:
                return self._decode(method, self._stream)
            except OSError as error:
                raise self._connection_lost(error, sent=True) from error
            except EOFError as error:
                raise self._connection_lost(error, sent=True) from error
        return self.decode(method, self.receive(deadline))

    def exchange(self, method: str, message: bytes) -> Frame:
        """Send a call encoded in the binary protocol (`request_encoder`), and return its reply as a frame of that
        protocol."""
        if self.has_frames:
            return self.receive(self.send(message))
        _, protocol = _memory_protocol(Gateway("localhost"), message)
        protocol.read_message_begin()
        arguments = getattr(self._idl.THBaseService, f"{method}_args")()
        arguments.read(protocol)
        return reply_frame(method, self.call(method, **vars(arguments)))

    def encode_call(self, method: str, **arguments: Any) -> bytes:
        """Encode a call as bytes."""
        from thriftpy2.thrift import TMessageType

        self._sequence_number += 1
        buffer, protocol = _memory_protocol(self.gateway)
        protocol.write_message_begin(method, TMessageType.CALL, self._sequence_number)
        getattr(self._idl.THBaseService, f"{method}_args")(**arguments).write(protocol)
        protocol.write_message_end()
        return bytes(buffer.getvalue())

    def send(self, message: bytes, *, piecewise: bool = False) -> float:
        """Send a call's bytes; return the deadline for its reply. Several calls may be sent first: replies come in
        order.

        `piecewise` sends each byte as a frame of its own. HBase 2.6 uses the buffers of split keys and of the
        attributes of tables and families without regard to where they begin and end, so it gets the whole frame
        (seen). Thrift copies a value that is not contained in one frame, and the copy is right. Only gateways
        with a thread for each connection (the default) accept a call in several frames.
        """
        deadline = time.monotonic() + self.gateway.read_timeout
        if self._stream is None:
            pieces = [message[i : i + 1] for i in range(len(message))] if piecewise else [message]
            message = b"".join(struct.pack(">i", len(piece)) + piece for piece in pieces)
        try:
            self._socket.sendall(message)
        except OSError as error:
            # A server that closes early may still have received the call: it executes only a whole frame, and sendall
            # returns no count, so "sent" is the safe answer.
            raise self._connection_lost(error, sent=True) from error
        return deadline

    def receive(self, deadline: float) -> Frame:
        """Receive the next reply as bytes."""
        try:
            # One read gets the size and, of a short reply, all of it; bytes of the next reply stay in
            # `_unread_bytes`.
            while len(self._unread_bytes) < 4:
                self._unread_bytes += self._require_bytes(self._socket.recv(_RECEIVE_BYTES))
            size: int = struct.unpack_from(">i", self._unread_bytes)[0]
            if not 0 < size <= _MAX_FRAME_BYTES:
                self.close()
                raise NotThrift2Gateway(
                    f"What answers at {self.gateway.address} is not a framed Thrift gateway: its answer begins"
                    f" {self._unread_bytes[:16]!r}.",
                    hint="Check the port; for a gateway started without -f use transport=buffered.",
                )
            frame = np.empty(size, np.uint8)
            received = min(size, len(self._unread_bytes) - 4)
            frame[:received] = np.frombuffer(self._unread_bytes, np.uint8, received, 4)
            self._unread_bytes = self._unread_bytes[4 + received :]
            if received < size:
                self._fill(frame.data[received:], deadline)
        except OSError as error:
            raise self._connection_lost(error, sent=True) from error
        self.last_used = time.monotonic()
        return frame

    def decode(self, method: str, frame: Frame) -> Any:
        """Return a reply's value, or raise its exception."""
        try:
            return self._decode(method, _memory_protocol(self.gateway, frame.tobytes())[1])
        except EOFError as error:
            raise self._connection_lost(error, sent=True) from error

    def is_usable(self) -> bool:
        """Return whether the other side has neither closed an idle connection nor sent unexpected bytes."""
        if time.monotonic() - self.last_used < _UNCHECKED_IDLE_TIME:
            return True
        try:
            return not select.select([self._socket], [], [], 0)[0]
        except (OSError, ValueError):
            return False

    def close(self) -> None:
        self._socket.close()

    def _decode(self, method: str, protocol: Any) -> Any:
        from thriftpy2.protocol.exc import TProtocolException
        from thriftpy2.thrift import TApplicationException, TMessageType
        from thriftpy2.transport import TTransportException

        try:
            name, kind, _ = protocol.read_message_begin()
            if kind == TMessageType.EXCEPTION:
                failure = TApplicationException()
                failure.read(protocol)
                protocol.read_message_end()
                raise failure
            result = getattr(self._idl.THBaseService, f"{method}_result")()
            result.read(protocol)
            protocol.read_message_end()
        except TTransportException as error:
            raise EOFError("the gateway closed the connection") from error
        except TProtocolException as error:
            self.close()
            raise NotThrift2Gateway(
                f"What answers at {self.gateway.address} is not Thrift as {self.gateway.protocol}: {error}.",
                hint="Check port and protocol.",
            ) from error
        self.last_used = time.monotonic()
        for name, value in vars(result).items():
            if name != "success" and value is not None:
                raise value
        return getattr(result, "success", None)

    def _fill(self, rest: memoryview, deadline: float) -> None:
        try:
            while len(rest):
                self._socket.settimeout(max(deadline - time.monotonic(), 0.001))
                count = self._socket.recv_into(rest)
                self._require_bytes(count)
                rest = rest[count:]
        finally:
            self._socket.settimeout(self.gateway.read_timeout)

    def _require_bytes(self, received: T) -> T:
        """Return what was read; nothing was read only if the other side has closed the connection."""
        if not received:
            raise ConnectionResetError("the gateway closed the connection")
        return received

    def _connection_lost(self, error: Exception, *, sent: bool) -> ConnectionLost:
        self.close()
        timed_out = isinstance(error, TimeoutError)
        reason = (
            f"no answer within {self.gateway.read_timeout:g} s" if timed_out else str(error) or type(error).__name__
        )
        return ConnectionLost(reason, was_sent=sent, timed_out=timed_out)


def _open_socket(gateway: Gateway) -> socket.socket:
    try:
        plain_socket = (
            gateway.connect()
            if gateway.connect
            else socket.create_connection((gateway.host, gateway.port), timeout=gateway.connect_timeout)
        )
        if plain_socket.family in (socket.AF_INET, socket.AF_INET6):
            plain_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            plain_socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    except socket.gaierror as error:
        raise Unavailable(
            f"The host name {gateway.host} of HBase's gateway is not known ({error.strerror}).",
            hint="Check the URL: hbase://host:port/namespace.",
        ) from error
    except TimeoutError as error:
        raise Unavailable(
            f"HBase's gateway at {gateway.address} did not accept a connection within {gateway.connect_timeout:g} s.",
            hint="Check host, port and firewall.",
        ) from error
    except OSError as error:
        raise Unavailable(
            f"HBase's gateway at {gateway.address} cannot be reached: {error.strerror or error}.",
            hint="Check host, port, and that the Thrift2 gateway runs (`vk hbase status`, or `hbase thrift2 start`).",
        ) from error
    if gateway.tls is None:
        return plain_socket
    try:
        return gateway.tls.context().wrap_socket(plain_socket, server_hostname=gateway.host)
    except OSError as error:
        plain_socket.close()
        raise NotThrift2Gateway(
            f"HBase's gateway at {gateway.address} and we cannot agree on TLS: {error}.",
            hint="Check that it speaks TLS, and the ca option.",
        ) from error


def reply_frame(method: str, results: Any) -> Frame:
    """Encode results as the frame of a framed, binary gateway, for replies that came in another form."""
    from thriftpy2.thrift import TMessageType

    buffer, protocol = _memory_protocol(Gateway("localhost"))
    protocol.write_message_begin(method, TMessageType.REPLY, 0)
    result = getattr(thrift_interface().THBaseService, f"{method}_result")()
    if results is not None:
        result.success = results
    result.write(protocol)
    protocol.write_message_end()
    return np.frombuffer(buffer.getvalue(), np.uint8)


def _memory_protocol(gateway: Gateway, value: bytes = b"") -> tuple[Any, Any]:
    """Return a memory buffer and a protocol on it, the compiled ones if they are available."""
    from thriftpy2.protocol import TBinaryProtocol, TCompactProtocol, TCyBinaryProtocol
    from thriftpy2.transport import TCyMemoryBuffer, TMemoryBuffer

    compiled = gateway.protocol == "binary" and TCyBinaryProtocol is not None
    buffer = TCyMemoryBuffer(value) if compiled else TMemoryBuffer(value)
    protocol = TCyBinaryProtocol if compiled else TBinaryProtocol if gateway.protocol == "binary" else TCompactProtocol
    return buffer, protocol(buffer)


def _stream_protocol(gateway: Gateway, connection: socket.socket) -> Any:
    """Return a protocol that reads from the connection itself, for replies without a leading size."""
    from thriftpy2.protocol import TBinaryProtocol, TCompactProtocol
    from thriftpy2.transport import TBufferedTransport, TSocket

    transport = TBufferedTransport(TSocket(sock=connection))
    return TBinaryProtocol(transport) if gateway.protocol == "binary" else TCompactProtocol(transport)
