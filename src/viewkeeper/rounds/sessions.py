"""The Spark session of a handle: for planning and for the Spark lane, started only when needed."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any, Protocol

from viewkeeper.store.base import Store


@dataclass(frozen=True)
class Cluster:
    """Where a session's tasks run. `is_here`: on this machine, beside the driver."""

    cores: int
    is_here: bool


class Spark(Protocol):
    """Gives a session, and says what it runs on without starting one."""

    def __call__(self) -> Any: ...

    def cluster(self) -> Cluster | None:
        """None if no session was given and none is running."""


class Sessions:
    """Gives the session. It does not refer to the handle, which may be gone while its views are still maintained."""

    def __init__(self, store: Store, given: Any) -> None:
        self._store, self._given = store, given
        self._session: Any = None
        self._lock = threading.Lock()

    def __call__(self) -> Any:
        with self._lock:
            if self._session is None:
                from viewkeeper.plan.catalyst import front_session
                from viewkeeper.rounds.reach import check_reach

                session = front_session(self._given)
                check_reach(session, self._store)
                self._session = session
            return self._session

    def cluster(self) -> Cluster | None:
        session = self._session if self._session is not None else self._given
        if session is None:
            return None
        context = session.sparkContext
        return Cluster(max(1, int(context.defaultParallelism)), context.master.startswith("local"))
