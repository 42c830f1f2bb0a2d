"""The connection between a Python worker and its JVM, TCP within a machine, waits for nothing.

Spark writes what a task is to do, and then its rows. The system keeps the second back until the first is acknowledged
(Nagle), and the worker's side acknowledges after 40 ms, in the hope of something to send along: in a batch that long
nobody did anything, in most rounds, on all cores at once. So what was read is acknowledged when a task begins, and
nothing that is written here is kept back.
"""

from __future__ import annotations

import os
import socket
import stat
from contextlib import suppress
from pathlib import Path

_ACKNOWLEDGE = getattr(socket, "TCP_QUICKACK", None)  # Linux has it

_connections: dict[int, socket.socket | None] = {}
"""By process: a worker has one connection for its life."""


def disable_delayed_acks() -> None:
    """In a worker, before a task asks for its rows."""
    if os.getpid() not in _connections:
        _connections.clear()
        _connections[os.getpid()] = _find_connection()
    connection = _connections[os.getpid()]
    if connection is not None and _ACKNOWLEDGE is not None:
        with suppress(OSError):  # it is so until something is sent
            connection.setsockopt(socket.IPPROTO_TCP, _ACKNOWLEDGE, 1)


def _find_connection() -> socket.socket | None:
    """The one TCP connection of a worker; None elsewhere, or if there are several, or none."""
    from pyspark import SparkFiles

    if not SparkFiles._is_running_on_worker or _ACKNOWLEDGE is None:
        return None
    found: dict[object, socket.socket] = {}
    for name in (path.name for path in Path("/proc/self/fd").iterdir()):
        with suppress(OSError):
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                opened = socket.socket(fileno=os.dup(int(name)))
                if opened.family in (socket.AF_INET, socket.AF_INET6):
                    found.setdefault(opened.getpeername(), opened)
    if len(found) != 1:
        return None
    [connection] = found.values()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection
