"""A real object store for tests (MinIO), behind a proxy that notes each request and can hold it back."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[1] / "tools" / "minio"
_FIRST_LINE = re.compile(rb"^(GET|PUT|POST|HEAD|DELETE) (\S+) HTTP")


class ObjectStore:
    """`requests`: (when, method, path) of each. `delay`: seconds for which one is held back on its way."""

    def __init__(self, port: int, process: int) -> None:
        self.requests: list[tuple[float, str, str]] = []
        self.delay = 0.0
        self._target, self._process = port, process
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    @contextmanager
    def pause(self) -> Iterator[None]:
        """It answers nobody for this long."""
        os.kill(self._process, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self._process, signal.SIGCONT)

    def close(self) -> None:
        self._socket.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._socket.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._target))
            for one in (client, server):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._pump, args=(client, server, True), daemon=True).start()
            threading.Thread(target=self._pump, args=(server, client, False), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, is_request: bool) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if is_request and (found := _FIRST_LINE.match(data)):
                    self.requests.append((time.monotonic(), found[1].decode(), found[2].decode()))
                    time.sleep(self.delay)
                target.sendall(data)
        for one in (source, target):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


@contextmanager
def serve(place: Path, export: Callable[[str, str], None]) -> Iterator[ObjectStore]:
    """MinIO with a bucket `viewkeeper`; with what is exported, `s3://viewkeeper/…` reaches it through the proxy."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = {**os.environ, "MINIO_DIR": str(place / "minio"), "MINIO_PORT": str(port)}
    started = subprocess.run([str(TOOL), "start"], env=env, check=True, capture_output=True, text=True, timeout=1800)
    store = ObjectStore(port, int((place / "minio" / "pid").read_text()))
    try:
        for name, value in re.findall(r"(AWS_\w+)=(\S+)", started.stdout):
            export(name, value)
        export("AWS_ENDPOINT_URL", f"http://127.0.0.1:{store.port}")
        yield store
    finally:
        store.close()
        subprocess.run([str(TOOL), "stop"], env=env, check=True, timeout=60)


@pytest.fixture
def objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    with serve(tmp_path, monkeypatch.setenv) as store:
        yield store
