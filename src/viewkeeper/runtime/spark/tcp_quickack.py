"""TCP_QUICKACK and TCP_NODELAY for the local TCP connection between a Python worker and its JVM.

Spark writes the task's command, and then its rows. Nagle's algorithm delays the second write until the first one is
acknowledged, and the worker's side delays the acknowledgement by 40 ms, because it expects data to send along. In most
rounds all cores were idle for that time. Therefore the worker acknowledges at once when a task begins, and does not
delay its own writes.
"""

from __future__ import annotations

import os
import socket
import stat
from contextlib import suppress
from pathlib import Path

_ACKNOWLEDGE = getattr(socket, "TCP_QUICKACK", None)  # Linux has it

_connections: dict[int, socket.socket | None] = {}
"""The worker's connection by process id; a worker has one connection for its lifetime."""


def disable_delayed_acks() -> None:
    """Acknowledge received data at once. A worker calls this before a task reads its rows."""
    if os.getpid() not in _connections:
        _connections.clear()
        _connections[os.getpid()] = _find_connection()
    connection = _connections[os.getpid()]
    if connection is not None and _ACKNOWLEDGE is not None:
        with suppress(OSError):  # the setting is in effect until the worker sends data
            connection.setsockopt(socket.IPPROTO_TCP, _ACKNOWLEDGE, 1)


def _find_connection() -> socket.socket | None:
    """Return the only TCP connection of a worker; None outside a worker, or if there is not exactly one."""
    from pyspark import SparkFiles

    if not SparkFiles._is_running_on_worker or _ACKNOWLEDGE is None:
        return None
    connections: dict[object, socket.socket] = {}
    for name in (path.name for path in Path("/proc/self/fd").iterdir()):
        with suppress(OSError):
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                candidate = socket.socket(fileno=os.dup(int(name)))
                if candidate.family in (socket.AF_INET, socket.AF_INET6):
                    connections.setdefault(candidate.getpeername(), candidate)
    if len(connections) != 1:
        return None
    [connection] = connections.values()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection
