"""The connection pool: keeps idle connections for the next call, and retries failed calls where that is safe.

    failure                                         repeatable call        other call
    could not connect                               retry                  retry (nothing was sent)
    connection lost in mid-call                     retry                  OutcomeUnknown
    server says: temporary (TIOError.canRetry)      retry                  OutcomeUnknown
    no answer within the deadline                   Unavailable            OutcomeUnknown
    server refuses                                  RequestRefused         RequestRefused

A call is repeatable if executing it twice has the same effect as once: reads, and writes whose cells have
explicit times. The pause before a retry doubles each time, with a random factor so that clients do not retry
simultaneously.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from viewkeeper.resources.fork_guard import owned
from viewkeeper_hbase.thrift.connection import Connection, ConnectionLost, Gateway, thrift_interface
from viewkeeper_hbase.thrift.errors import (
    NotThrift2Gateway,
    OutcomeUnknown,
    RequestRefused,
    ScannerLost,
    Unavailable,
    refusal_error,
)

T = TypeVar("T")

_MAX_IDLE_SECONDS = 30.0
"""Seconds. A gateway closes connections on which it receives nothing for 60 s."""


@dataclass(frozen=True)
class RetryPolicy:
    """Number and pauses of retries."""

    max_retries: int = 6
    first_pause: float = 0.1
    max_pause: float = 3.0

    def pause(self, attempt: int) -> float:
        return min(self.max_pause, self.first_pause * 2.0**attempt) * random.uniform(0.75, 1.25)


class GatewayPool:
    """Connections to one gateway, for the threads of one process."""

    def __init__(self, gateway: Gateway, *, retry: RetryPolicy | None = None, max_idle: int = 8) -> None:
        self.gateway = gateway
        self.retry = retry or RetryPolicy()
        self._max_idle = max_idle
        self._lock = threading.Lock()
        self._idle: list[Connection] = []
        owned(self, f"The connections to {gateway.address} were made")

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        """Yield a connection for one user; it is kept afterwards unless the block raised."""
        connection = self._acquire()
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        self._release(connection)

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def check_gateway(self) -> None:
        """Do one call that only an HBase Thrift2 gateway answers, without retries and within the connect timeout."""
        gateway = self.gateway
        connection = Connection(
            replace(gateway, read_timeout=min(gateway.read_timeout, max(gateway.connect_timeout, 1.0)))
        )
        hint = (
            "Check that this is the port of `hbase thrift2 start` (not thrift, not HBase itself) and that the transport"
            f" ({gateway.transport}) and protocol ({gateway.protocol}) are the gateway's: it is framed only with -f."
        )
        try:
            kind = connection.call("getThriftServerType")
        except ConnectionLost as lost:
            if lost.timed_out:
                raise Unavailable(
                    f"What listens at {gateway.address} takes connections but gives {lost.reason}:"
                    " it hangs, or it is not an HBase Thrift2 gateway.",
                    hint=hint,
                ) from lost
            raise NotThrift2Gateway(
                f"What listens at {gateway.address} is not an HBase Thrift2 gateway: {lost.reason}.", hint=hint
            ) from lost
        except _application_error() as error:
            raise NotThrift2Gateway(
                f"What listens at {gateway.address} is not an HBase Thrift2 gateway: {error.message}.", hint=hint
            ) from error
        finally:
            connection.close()
        if kind != thrift_interface().TThriftServerType.TWO:
            raise NotThrift2Gateway(
                f"The gateway at {gateway.address} speaks HBase's older interface (`hbase thrift`).",
                hint="Start `hbase thrift2` and use its port.",
            )

    def call(self, method: str, *, repeatable: bool, table_name: str | None = None, **arguments: Any) -> Any:
        """Call a method of the gateway, decoded by thriftpy2."""
        return self.attempt(lambda c: c.call(method, **arguments), method, repeatable=repeatable, table_name=table_name)

    def attempt(
        self, work: Callable[[Connection], T], method: str, *, repeatable: bool, table_name: str | None = None
    ) -> T:
        """Do `work` with a connection; retry as in the table above."""
        failed = 0
        while True:
            try:
                with self.connection() as connection:
                    return work(connection)
            except Exception as error:
                self.raise_unless_retryable(error, method, failed, repeatable=repeatable, table_name=table_name)
            time.sleep(self.retry.pause(failed))
            failed += 1

    def raise_unless_retryable(
        self, error: Exception, method: str, failed: int, *, repeatable: bool, table_name: str | None
    ) -> None:
        """Return if a failed call may be retried (after `failed` earlier failures); otherwise raise the reason."""
        address = self.gateway.address
        where = f"{method} at {address}" + (f" (table {table_name})" if table_name else "")
        can_retry = failed < self.retry.max_retries
        tried = f" after {failed + 1} tries" if failed else ""
        if isinstance(error, Unavailable):
            if can_retry:
                return
            raise error
        if isinstance(error, ConnectionLost):
            if not repeatable:
                raise OutcomeUnknown(
                    f"HBase's {where} may or may not have happened: {error.reason}.", hint="Look before doing it again."
                ) from error
            if can_retry and not error.timed_out:
                return
            raise Unavailable(
                f"HBase's {where} failed{tried}: {error.reason}.",
                hint="Check that the gateway runs and is not overloaded; the call can be done again.",
            ) from error
        if isinstance(error, thrift_interface().TIllegalArgument):
            raise ScannerLost(f"HBase's {where} was refused: {error.message}.", hint="Open a new scanner.") from error
        if isinstance(error, thrift_interface().TIOError):
            message = error.message or "no reason given"
            refusal = refusal_error(message, address, table_name)
            if refusal is None and not error.canRetry:
                refusal = RequestRefused(
                    f"HBase's {where} was refused: {message.splitlines()[0][:300]}.", hint="The gateway's log has more."
                )
            if refusal is not None:
                raise refusal from error
            if not repeatable:
                raise OutcomeUnknown(
                    f"HBase's {where} may or may not have happened: {message.splitlines()[0][:300]}.",
                    hint="Look before doing it again.",
                ) from error
            if not can_retry:
                raise Unavailable(
                    f"HBase's {where} failed{tried}: {message.splitlines()[0][:300]}.",
                    hint="Check HBase's own health; the call can be done again.",
                ) from error
            return
        if isinstance(error, _application_error()):
            raise RequestRefused(
                f"HBase's {where} was refused: {error.message}.",
                hint="An argument is not valid, or the gateway is of another version; its log has more.",
            ) from error
        raise error

    def _acquire(self) -> Connection:
        while True:
            with self._lock:
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                return Connection(self.gateway)
            if time.monotonic() - connection.last_used < _MAX_IDLE_SECONDS and connection.is_usable():
                return connection
            connection.close()

    def _release(self, connection: Connection) -> None:
        with self._lock:
            if len(self._idle) < self._max_idle:
                self._idle.append(connection)
                return
        connection.close()


def _application_error() -> Any:
    from thriftpy2.thrift import TApplicationException

    return TApplicationException
