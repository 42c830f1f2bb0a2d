"""The Spark session of a handle: for planning and for the Spark lane, started only when needed."""

from __future__ import annotations

import threading
from typing import Any

from viewkeeper.store.base import Store


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
