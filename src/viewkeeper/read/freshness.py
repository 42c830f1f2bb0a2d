"""How new a read must be.

    ANY      the published batch (a base table: its last write); never waits
    LATEST   every write call that was finished when the read began
    STALE    like ANY, and of a suspended view the rows that it had when it was suspended, which else are an error
    after=   every write call up to a token: read your own writes, or never go back behind what was read

Who makes it so: the process that maintains refreshes at once. Any other works a view of one table out by itself
(`overlay`); for others it waits, and fails at once when nobody maintains. A state with cut c has what a
token at p asks for if no write call to a base table lies in (c, p].
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from enum import Enum

from viewkeeper.errors import BadToken, BadValue, Timeout
from viewkeeper.model.catalog.catalog import Catalog, View
from viewkeeper.model.intake import arguments
from viewkeeper.model.token import Token
from viewkeeper.read.suspension import refuse_suspended, refuse_suspended_before
from viewkeeper.resources.poll_backoff import poll_pause
from viewkeeper.store.contract.store import Store

TIMEOUT = 10.0
"""Seconds that a read waits."""

_LEASE_SECONDS = 0.25


class Level(Enum):
    """How new a read must be, when no token says it."""

    ANY = "any"
    LATEST = "latest"
    STALE = "stale"


ANY, LATEST, STALE = Level.ANY, Level.LATEST, Level.STALE

AfterTokens = Token | str | Iterable[Token | str] | None


def check_level(level: Level, timeout: float) -> None:
    """BadValue if these say nothing."""
    if not isinstance(level, Level):
        raise BadValue(
            f"There is no level {arguments.shorten(level)}.",
            hint="Give viewkeeper.ANY, viewkeeper.LATEST or viewkeeper.STALE.",
        )
    arguments.check_seconds(timeout, "timeout")


def position_of(store: Store, after: AfterTokens) -> int | None:
    """The position that a token, its text, or several of them ask for."""
    if after is None:
        return None
    if not isinstance(after, (Token, str, list, tuple, set, frozenset)) and not isinstance(after, Iterator):
        raise BadToken(f"after= takes tokens or their text, not {type(after).__name__}.", hint="put returns a token.")
    given = [after] if isinstance(after, (Token, str)) else list(after)
    position = 0
    for one in given:
        token = Token.parse(one) if isinstance(one, str) else one
        if not isinstance(token, Token):
            raise BadToken(f"after= takes tokens or their text, not {type(token).__name__}.")
        if token.database != store.uuid:
            raise BadToken(f"Token {token} belongs to another database than {store.url}.")
        position = max(position, token.position)
    if position > store.head():
        raise BadToken(
            f"Token vk1:{store.uuid}:{position} is newer than the database {store.url}.",
            hint="The database was replaced by an older copy; read without the token.",
        )
    return position


def wait_for_freshness(
    store: Store,
    catalog: Catalog,
    name: str,
    level: Level,
    after: AfterTokens,
    timeout: float,
    refresh: Callable[[], object] | None,
) -> None:
    """Wait until a view is as new as asked for. `refresh`: this process maintains, so do not wait but do it."""
    wanted = required_position(store, catalog, name, level, after)
    if wanted is None or has_position(store, catalog, name, wanted):
        return
    deadline = time.monotonic() + timeout
    if refresh is not None:
        while not has_position(store, catalog, name, wanted):
            refresh()
            _check_deadline(store, name, wanted, deadline, timeout)
        return
    _wait_for_position(store, catalog, name, wanted, deadline, timeout)


def required_position(store: Store, catalog: Catalog, name: str, level: Level, after: AfterTokens) -> int | None:
    """The position that a read of this level must show; None if any state will do."""
    wanted = position_of(store, after)
    found = catalog.find(name)
    if not isinstance(found, View) or (level is not LATEST and wanted is None):
        return None
    if level is LATEST:
        refuse_suspended(found)
        # Positions of commits are no writes: what LATEST asks for is the last write call that waits, if any does.
        wanted = max(wanted or 0, store.pending(cut_of(store, name), [t.id for t in catalog.tables]).last_position or 0)
    if wanted is None:
        raise BadValue(
            f"There is no level {level!r}.", hint="Levels: viewkeeper.ANY, viewkeeper.LATEST, viewkeeper.STALE."
        )
    refuse_suspended_before(found, wanted)
    return wanted


def has_position(store: Store, catalog: Catalog, name: str, position: int) -> bool:
    """Whether a view has every write call up to a position."""
    cut = cut_of(store, name)
    if cut >= position:
        return True
    first = store.pending(cut, [t.id for t in catalog.tables]).first_position
    return first is None or first > position


def _wait_for_position(
    store: Store, catalog: Catalog, name: str, position: int, deadline: float, timeout: float
) -> None:
    began, looked = time.monotonic(), 0.0
    while not has_position(store, catalog, name, position):
        if time.monotonic() - looked > _LEASE_SECONDS:
            if store.lease_holder() is None and not has_position(store, catalog, name, position):
                raise Timeout(
                    f"Nobody maintains {store.url}, so {name} stays at position {cut_of(store, name)};"
                    f" {position} was asked for.",
                    hint="Start `vk run`, or refresh once: `vk refresh`. (In Python: db.maintain(), db.refresh().)",
                )
            looked = time.monotonic()
        _check_deadline(store, name, position, deadline, timeout)
        now = time.monotonic()
        time.sleep(min(poll_pause(now - began), max(0.0, deadline - now)))
    refuse_suspended_before(store.catalog().find(name), position)


def _check_deadline(store: Store, name: str, position: int, deadline: float, timeout: float) -> None:
    if time.monotonic() >= deadline and cut_of(store, name) < position:
        raise Timeout(
            f"{name} did not reach position {position} within {timeout:g} s; it is at {cut_of(store, name)}.",
            hint="Wait longer (timeout), or read with level ANY; `vk status` shows how far behind the views are.",
        )


def cut_of(store: Store, name: str) -> int:
    """Where a view stands: at the published batch, or where its own strategy last read the tables."""
    found = store.catalog().find(name)
    if isinstance(found, View) and found.own_cut is not None:
        return found.own_cut.low
    if isinstance(found, View) and found.table.is_changed_by_writes:
        return store.head()
    batch = store.published_batch()
    return store.head() if batch is None else batch.cut
