"""What a user sees when HBase's gateway is not there, is something else, hangs, refuses, or breaks off. No JVM."""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("thriftpy2")

from viewkeeper.errors import BadValue, StoreError
from viewkeeper_hbase.thrift import errors
from viewkeeper_hbase.thrift.client import HBaseClient
from viewkeeper_hbase.thrift.connection import Gateway, Tls, _memory_protocol, thrift_interface
from viewkeeper_hbase.thrift.pool import RetryPolicy
from viewkeeper_hbase.thrift.scan import ScanRequest

HBASE = thrift_interface()
QUICK = RetryPolicy(max_retries=2, first_pause=0.01, max_pause=0.02)


@contextmanager
def listening(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    """A port at which every connection is given to `serve`, in a thread of its own."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            while True:
                try:
                    connection = listener.accept()[0]
                except OSError:
                    return
                threading.Thread(target=guarded, args=(connection,), daemon=True).start()

        def guarded(connection: socket.socket) -> None:
            with connection, suppress(OSError):
                serve(connection)

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(5)


def read_exactly(connection: socket.socket, size: int) -> bytes:
    got = b""
    while len(got) < size:
        more = connection.recv(size - len(got))
        if not more:
            raise ConnectionResetError
        got += more
    return got


class FakeGateway:
    """Answers framed calls with what `answers[method]` returns or raises, and remembers which were made."""

    def __init__(self, **answers: Callable[..., Any]) -> None:
        self.answers = {"getThriftServerType": lambda **_: 2, **answers}
        self.calls: list[str] = []

    def __call__(self, connection: socket.socket) -> None:
        while True:
            (size,) = struct.unpack(">i", read_exactly(connection, 4))
            _, protocol = _memory_protocol(Gateway("x"), read_exactly(connection, size))
            method, _, seqid = protocol.read_message_begin()
            arguments = getattr(HBASE.THBaseService, f"{method}_args")()
            arguments.read(protocol)
            self.calls.append(method)
            result = getattr(HBASE.THBaseService, f"{method}_result")()
            try:
                result.success = self.answers[method](**vars(arguments))
            except (HBASE.TIOError, HBASE.TIllegalArgument) as error:
                setattr(result, "io" if isinstance(error, HBASE.TIOError) else "ia", error)
            except BrokenPipeError:
                return
            buffer, protocol = _memory_protocol(Gateway("x"))
            protocol.write_message_begin(method, 2, seqid)
            result.write(protocol)
            message = buffer.getvalue()
            connection.sendall(struct.pack(">i", len(message)) + message)


def client(port: int, **options: Any) -> HBaseClient:
    return HBaseClient(
        Gateway("127.0.0.1", port, **{"connect_timeout": 30.0, "read_timeout": 30.0, **options}), retry=QUICK
    )


def hasty_client(port: int) -> HBaseClient:
    return client(port, connect_timeout=1.0, read_timeout=0.5)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def fails(error: Exception, *, first: int = 10**9, then: Any = None) -> Callable[..., Any]:
    """An answer that raises the first times and gives a value from then on."""
    left = [first]

    def answer(**_: Any) -> Any:
        left[0] -= 1
        if left[0] >= 0:
            raise error
        return then

    return answer


# -- not there, or not it ---------------------------------------------------------------------------------------------


def test_a_wrong_host_is_named() -> None:
    with pytest.raises(errors.Unavailable, match=r"no-such-host\.invalid.*hbase://host:port"):
        HBaseClient(Gateway("no-such-host.invalid"), retry=QUICK).check_gateway()


def test_a_port_at_which_nothing_listens_is_named() -> None:
    port = free_port()
    with pytest.raises(errors.Unavailable, match=f"127.0.0.1:{port}.*thrift2"):
        client(port).check_gateway()


def test_a_gateway_that_hangs_is_told_within_its_time_out() -> None:
    over = threading.Event()
    with listening(lambda connection: over.wait(300) and None) as port:
        began = time.monotonic()
        with pytest.raises(errors.Unavailable, match=f"127.0.0.1:{port}.*no answer within 0.5 s.*framed"):
            hasty_client(port).check_gateway()
        with pytest.raises(errors.Unavailable, match=r"no answer within 0\.5 s"):
            hasty_client(port).get("t", b"k")
        assert time.monotonic() - began < 60
        over.set()


def test_a_gateway_that_stops_in_the_middle_of_a_reply_is_told_within_its_time_out() -> None:
    def drip(connection: socket.socket) -> None:
        connection.sendall(struct.pack(">i", 1000) + b"\x80\x01\x00\x02")
        for _ in range(3_000):  # until the client has gone
            time.sleep(0.1)
            connection.sendall(b"\x00")

    with listening(drip) as port:
        began = time.monotonic()
        with pytest.raises(errors.Unavailable, match="no answer within"):
            hasty_client(port).get("t", b"k")
        assert time.monotonic() - began < 60


@pytest.mark.parametrize("banner", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"SSH-2.0-OpenSSH_9.2\r\n"])
def test_another_server_at_the_port_is_told_as_such(banner: bytes) -> None:
    def greet(connection: socket.socket) -> None:
        connection.recv(100)
        connection.sendall(banner)
        time.sleep(1)

    with listening(greet) as port, pytest.raises(errors.NotThrift2Gateway, match=f"127.0.0.1:{port}"):
        client(port).check_gateway()


def test_a_server_that_closes_at_once_is_no_gateway() -> None:
    with listening(lambda connection: None) as port, pytest.raises(errors.NotThrift2Gateway, match=f"127.0.0.1:{port}"):
        client(port).check_gateway()


def test_the_older_thrift_interface_is_told_apart() -> None:
    older = FakeGateway(getThriftServerType=lambda **_: 1)
    with listening(older) as port, pytest.raises(errors.NotThrift2Gateway, match=r"older interface.*thrift2"):
        client(port).check_gateway()


@pytest.mark.deep
def test_a_gateway_without_tls_is_told_as_such() -> None:
    with listening(FakeGateway()) as port, pytest.raises(StoreError, match="TLS"):
        client(port, tls=Tls()).check_gateway()


def test_options_that_cannot_be_are_refused() -> None:
    with pytest.raises(BadValue, match="framed, buffered"):
        Gateway("h", transport="zlib")  # type: ignore[arg-type]
    with pytest.raises(BadValue, match="no port"):
        Gateway("h", port=99999)
    with pytest.raises(BadValue, match="PEM"):
        Tls(ca="/no/such/file").context()


# -- refused ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("ns:t", errors.NoSuchTable),
        ("ns:t is disabled.", errors.NoSuchTable),
        ("org.apache.hadoop.hbase.NamespaceNotFoundException: ns\n\tat x", errors.NoSuchNamespace),
        (
            "Failed 1 action: org.apache.hadoop.hbase.regionserver.NoSuchColumnFamilyException: Column family g does"
            " not exist in region t, {TABLE_ATTRIBUTES => {}}\n\tat x",
            errors.NoSuchFamily,
        ),
        (
            "org.apache.hadoop.hbase.security.AccessDeniedException: Insufficient permissions for user 'u'",
            errors.PermissionDenied,
        ),
    ],
)
def test_a_refusal_is_told_in_one_line_and_not_tried_again(message: str, kind: type[Exception]) -> None:
    gateway = FakeGateway(get=fails(HBASE.TIOError(message, True)))
    with listening(gateway) as port, pytest.raises(kind, match=f"127.0.0.1:{port}") as caught:
        client(port).get("ns:t", b"k")
    assert gateway.calls == ["get"]
    assert "\n" not in str(caught.value)
    assert "ns" in str(caught.value)


# -- tried again, or not ----------------------------------------------------------------------------------------------

MAY_PASS = "org.apache.hadoop.hbase.NotServingRegionException: moving"


def test_a_read_is_tried_again_when_the_server_says_that_it_may_pass() -> None:
    found = HBASE.TResult(row=b"k", columnValues=[HBASE.TColumnValue(b"f", b"q", b"v", timestamp=3)])
    gateway = FakeGateway(get=fails(HBASE.TIOError(MAY_PASS, True), first=2, then=found))
    with listening(gateway) as port:
        assert client(port).get("t", b"k") == {b"f:q": (b"v", 3)}
    assert gateway.calls == ["get"] * 3


def test_a_read_gives_up_after_its_tries_and_says_so() -> None:
    gateway = FakeGateway(get=fails(HBASE.TIOError(MAY_PASS, True)))
    with listening(gateway) as port, pytest.raises(errors.Unavailable, match=r"after 3 tries.*NotServingRegion"):
        client(port).get("t", b"k")


def test_a_write_with_a_time_is_tried_again_after_a_broken_connection_and_one_without_is_not() -> None:
    gateway = FakeGateway(put=fails(BrokenPipeError(), first=1))
    with listening(gateway) as port:
        client(port).put("t", b"k", {b"f:q": b"v"}, time=5)
    assert gateway.calls == ["put", "put"]

    gateway = FakeGateway(put=fails(BrokenPipeError(), first=1))
    with listening(gateway) as port, pytest.raises(errors.OutcomeUnknown, match="may or may not"):
        client(port).put("t", b"k", {b"f:q": b"v"})
    assert gateway.calls == ["put"]


def test_a_claim_whose_answer_is_lost_finds_out_who_won() -> None:
    there: dict[bytes, bytes] = {}

    def check_and_put(row: bytes, tput: Any, **_: Any) -> bool:
        there.setdefault(row, tput.columnValues[0].value)
        raise BrokenPipeError

    def get(tget: Any, **_: Any) -> Any:
        cells = [HBASE.TColumnValue(b"f", b"owner", there[tget.row], timestamp=1)] if tget.row in there else []
        return HBASE.TResult(columnValues=cells)

    with listening(FakeGateway(checkAndPut=check_and_put, get=get)) as port:
        assert client(port).put_if_absent("t", b"1", b"f:owner", b"me") == b"me"
        assert client(port).put_if_absent("t", b"1", b"f:owner", b"you") == b"me"


class FakeTable:
    """A table behind a fake gateway, whose scanners break as they are told to."""

    def __init__(self, rows: int, break_at: dict[int, Exception]) -> None:
        self.keys = [b"%06d" % i for i in range(rows)]
        self.break_at = break_at
        self.replies = 0
        self.scanners: dict[int, list[bytes]] = {}

    def gateway(self) -> FakeGateway:
        return FakeGateway(
            getScannerResults=lambda tscan, numRows, **_: self._results(self._of(tscan)[:numRows]),
            openScanner=self._open,
            getScannerRows=self._next,
            closeScanner=lambda scannerId, **_: self.scanners.pop(scannerId, None) and None,
        )

    def _of(self, scan: Any) -> list[bytes]:
        return [k for k in self.keys if (scan.startRow or b"") <= k and (not scan.stopRow or k < scan.stopRow)][
            : scan.limit
        ]

    def _open(self, tscan: Any, **_: Any) -> int:
        self.scanners[len(self.scanners) + 1] = self._of(tscan)
        return len(self.scanners)

    def _next(self, scannerId: int, numRows: int) -> list[Any]:
        self.replies += 1
        if self.replies in self.break_at:
            raise self.break_at.pop(self.replies)
        rows, self.scanners[scannerId] = self.scanners[scannerId][:numRows], self.scanners[scannerId][numRows:]
        return self._results(rows)

    @staticmethod
    def _results(keys: list[bytes]) -> list[Any]:
        return [
            HBASE.TResult(
                row=k, columnValues=[HBASE.TColumnValue(b"f", b"q", k, timestamp=1, type=4)], stale=False, partial=False
            )
            for k in keys
        ]


@pytest.mark.parametrize(
    "error",
    [BrokenPipeError(), HBASE.TIOError(MAY_PASS, True), HBASE.TIllegalArgument("Invalid scanner Id")],
    ids=["connection lost", "server says retry", "scanner forgotten"],
)
def test_a_scan_that_breaks_goes_on_and_gives_every_row_once(error: Exception) -> None:
    table = FakeTable(30_000, {1: error, 3: error})
    with listening(table.gateway()) as port:
        seen = [key for cells in client(port).scan("t") for key in cells.keys.to_pylist()]
        assert seen == table.keys
        limited = [
            key
            for cells in client(port).scan("t", ScanRequest(start=b"000100", limit=1234))
            for key in cells.keys.to_pylist()
        ]
        assert limited == table.keys[100:1334]
    assert not table.break_at, "the scanner did break"


def test_a_scan_that_is_left_early_frees_its_scanner() -> None:
    table = FakeTable(30_000, {})
    with listening(table.gateway()) as port, client(port) as one:
        rows = one.scan("t")
        next(rows)
        next(rows)
        assert table.scanners
        rows.close()  # type: ignore[attr-defined]
        assert not table.scanners


def test_a_connection_is_used_again_but_not_one_that_the_gateway_has_closed() -> None:
    opened: list[socket.socket] = []
    gateway = FakeGateway(tableExists=lambda **_: True)

    def serve(connection: socket.socket) -> None:
        opened.append(connection)
        gateway(connection)

    with listening(serve) as port, client(port) as one:
        assert one.admin.exists("t")
        assert one.admin.exists("t")
        assert len(opened) == 1
        opened[0].shutdown(socket.SHUT_RDWR)
        one.pool._idle[0].last_used -= 2  # as after two idle seconds
        assert one.admin.exists("t")
        assert len(opened) == 2


def test_a_forked_child_does_not_use_its_parents_connections() -> None:
    with listening(FakeGateway(tableExists=lambda **_: True)) as port, client(port) as one:
        assert one.admin.exists("t")
        [kept] = one.pool._idle
        if not (child := os.fork()):
            code = 1
            try:
                with pytest.raises(StoreError, match="a fork"):
                    one.admin.exists("t")
                with pytest.raises(StoreError, match="a fork"):
                    kept.call("tableExists", table=b"t")
                one.close()
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        assert one.admin.exists("t")
        assert one.pool._idle == [kept]


# -- other ways to speak ----------------------------------------------------------------------------------------------


class Rows:
    """What a gateway does for one table of keys, as thriftpy2 calls it."""

    def __init__(self) -> None:
        self.there: dict[bytes, bytes] = {}
        self.open: list[bytes] = []

    def getThriftServerType(self) -> int:
        return 2

    def putMultiple(self, table: bytes, tputs: list[Any]) -> None:
        self.there.update({put.row: put.columnValues[0].value for put in tputs})

    def get(self, table: bytes, tget: Any) -> Any:
        if tget.row == b"refused":
            raise HBASE.TIOError(table.decode(), False)
        return self._results([tget.row])[0]

    def getMultiple(self, table: bytes, tgets: list[Any]) -> list[Any]:
        return self._results([get.row for get in tgets])

    def getScannerResults(self, table: bytes, tscan: Any, numRows: int) -> list[Any]:
        return self._results(sorted(self.there)[:numRows])

    def openScanner(self, table: bytes, tscan: Any) -> int:
        self.open = sorted(key for key in self.there if key >= tscan.startRow)
        return 1

    def getScannerRows(self, scannerId: int, numRows: int) -> list[Any]:
        rows, self.open = self.open[:numRows], self.open[numRows:]
        return self._results(rows)

    def closeScanner(self, scannerId: int) -> None: ...

    def _results(self, keys: list[bytes]) -> list[Any]:
        def result(key: bytes) -> Any:
            value = self.there.get(key)
            if value is None:
                return HBASE.TResult(columnValues=[], stale=False, partial=False)
            cell = HBASE.TColumnValue(b"f", b"q", value, timestamp=3, type=4)
            return HBASE.TResult(row=key, columnValues=[cell], stale=False, partial=False)

        return [result(key) for key in keys]


def speaking(rows: Rows, transport: str, protocol: str) -> Callable[[socket.socket], None]:
    from thriftpy2.protocol import TBinaryProtocol, TCompactProtocol
    from thriftpy2.protocol.exc import TProtocolException
    from thriftpy2.thrift import TProcessor
    from thriftpy2.transport import TBufferedTransport, TFramedTransport, TSocket, TTransportException

    def serve(connection: socket.socket) -> None:
        wire = (TFramedTransport if transport == "framed" else TBufferedTransport)(TSocket(sock=connection))
        form = (TBinaryProtocol if protocol == "binary" else TCompactProtocol)(wire)
        processor = TProcessor(HBASE.THBaseService, rows)
        with suppress(TTransportException, TProtocolException):  # a real server closes the connection too
            while True:
                processor.process(form, form)

    return serve


def use_all(one: HBaseClient, rows: Rows) -> None:
    one.check_gateway()
    keys = pa.array([b"%06d" % i for i in range(3000)])
    one.put_rows("t", keys, {b"f:q": keys}, time=3)
    assert len(rows.there) == 3000
    assert one.get("t", b"000007") == {b"f:q": (b"000007", 3)}
    [got] = one.get_rows("t", pa.array([b"000009", b"nope"]))
    assert got.column(b"f:q").to_pylist() == [b"000009", None]
    assert [key for cells in one.scan("t") for key in cells.keys.to_pylist()] == keys.to_pylist()
    with pytest.raises(errors.NoSuchTable, match="has no table t"):
        one.get("t", b"refused")


@pytest.mark.parametrize("transport", ["framed", "buffered"])
@pytest.mark.parametrize("protocol", ["binary", "compact"])
def test_every_transport_and_protocol_gives_the_same(transport: Any, protocol: Any) -> None:
    rows = Rows()
    with listening(speaking(rows, transport, protocol)) as port:
        gateway = Gateway("127.0.0.1", port, transport=transport, protocol=protocol, connect_timeout=30.0)
        with HBaseClient(gateway, retry=QUICK) as one:
            use_all(one, rows)


def test_the_wrong_transport_or_protocol_is_told_and_not_waited_for() -> None:
    for theirs, ours in ((("framed", "binary"), ("buffered", "binary")), (("framed", "compact"), ("framed", "binary"))):
        with listening(speaking(Rows(), *theirs)) as port:
            with pytest.raises(StoreError, match=f"127.0.0.1:{port}") as caught:
                client(port, transport=ours[0], protocol=ours[1], connect_timeout=2.0).check_gateway()
            assert "transport" in str(caught.value)


def test_tls_with_a_known_authority_works_and_with_an_unknown_one_is_refused(tmp_path: Path) -> None:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl makes the certificate, and is not installed")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    make = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    names = ("-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate))
    subprocess.run([openssl, *make.split(), *names], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    rows = Rows()

    def serve(connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True) as secured:
            speaking(rows, "framed", "binary")(secured)

    with listening(serve) as port:
        with HBaseClient(
            Gateway("127.0.0.1", port, connect_timeout=30.0, tls=Tls(ca=str(certificate))), retry=QUICK
        ) as one:
            use_all(one, rows)
        with HBaseClient(Gateway("127.0.0.1", port, connect_timeout=30.0, tls=Tls(verify=False)), retry=QUICK) as one:
            one.check_gateway()
        with pytest.raises(StoreError, match=f"127.0.0.1:{port}.*TLS.*certificate"):
            client(port, tls=Tls()).check_gateway()


def test_a_connection_of_ones_own_making_is_used() -> None:
    rows = Rows()
    with listening(speaking(rows, "framed", "binary")) as port:
        own = Gateway("tunnel", 1, connect_timeout=30.0, connect=lambda: socket.create_connection(("127.0.0.1", port)))
        with HBaseClient(own, retry=QUICK) as one:
            use_all(one, rows)
