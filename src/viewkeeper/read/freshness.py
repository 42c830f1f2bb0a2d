"""Freshness levels: how new a read must be.

    ANY      the published batch (a base table: its last write); never waits
    LATEST   every write call that was finished when the read began
    STALE    like ANY, and also the old rows of a suspended view, which is otherwise an error
    after=   every write call up to a token: read your own writes, or monotonic reads

The maintaining process runs a batch at once. Another process computes the rows of a view of one table itself
(`overlay`); for other views it waits, and fails at once when no process maintains. A state with cut c satisfies a
token at p if no write call to a base table lies in (c, p].
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
"""Default seconds that a read waits."""

_LEASE_SECONDS = 0.25


class Level(Enum):
    """How new a read must be, when no token is passed."""

    ANY = "any"
    LATEST = "latest"
    STALE = "stale"


ANY, LATEST, STALE = Level.ANY, Level.LATEST, Level.STALE

AfterTokens = Token | str | Iterable[Token | str] | None


def check_level(level: Level, timeout: float) -> None:
    """Raise BadValue for an unknown level or a bad timeout."""
    if not isinstance(level, Level):
        raise BadValue(
            f"There is no level {arguments.shorten(level)}.",
            hint="Give viewkeeper.ANY, viewkeeper.LATEST or viewkeeper.STALE.",
        )
    arguments.check_seconds(timeout, "timeout")


def position_of(store: Store, after: AfterTokens) -> int | None:
    """The greatest position of the tokens, which may be a token, its text, or several; None without any."""
    if after is None:
        return None
    if not isinstance(after, (Token, str, list, tuple, set, frozenset)) and not isinstance(after, Iterator):
        raise BadToken(f"after= takes tokens or their text, not {type(after).__name__}.", hint="put returns a token.")
    tokens = [after] if isinstance(after, (Token, str)) else list(after)
    position = 0
    for item in tokens:
        token = Token.parse(item) if isinstance(item, str) else item
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
    """Wait until a view is fresh enough. `refresh`: this process maintains, so call it instead of waiting."""
    position = required_position(store, catalog, name, level, after)
    if position is None or has_position(store, catalog, name, position):
        return
    deadline = time.monotonic() + timeout
    if refresh is not None:
        while not has_position(store, catalog, name, position):
            refresh()
            _check_deadline(store, name, position, deadline, timeout)
        return
    _wait_for_position(store, catalog, name, position, deadline, timeout)


def required_position(store: Store, catalog: Catalog, name: str, level: Level, after: AfterTokens) -> int | None:
    """The position that a read of this level must show; None if any state will do."""
    position = position_of(store, after)
    found = catalog.find(name)
    if not isinstance(found, View) or (level is not LATEST and position is None):
        return None
    if level is LATEST:
        refuse_suspended(found)
        # Positions of commits are no writes: LATEST requires the last pending write call, if there is one.
        position = max(
            position or 0, store.pending(cut_of(store, name), [t.id for t in catalog.tables]).last_position or 0
        )
    if position is None:
        raise BadValue(
            f"There is no level {level!r}.", hint="Levels: viewkeeper.ANY, viewkeeper.LATEST, viewkeeper.STALE."
        )
    refuse_suspended_before(found, position)
    return position


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
    start, checked = time.monotonic(), 0.0
    while not has_position(store, catalog, name, position):
        if time.monotonic() - checked > _LEASE_SECONDS:
            if store.lease_holder() is None and not has_position(store, catalog, name, position):
                raise Timeout(
                    f"Nobody maintains {store.url}, so {name} stays at position {cut_of(store, name)};"
                    f" {position} was asked for.",
                    hint="Start `vk run`, or refresh once: `vk refresh`. (In Python: db.maintain(), db.refresh().)",
                )
            checked = time.monotonic()
        _check_deadline(store, name, position, deadline, timeout)
        now = time.monotonic()
        time.sleep(min(poll_pause(now - start), max(0.0, deadline - now)))
    refuse_suspended_before(store.catalog().find(name), position)


def _check_deadline(store: Store, name: str, position: int, deadline: float, timeout: float) -> None:
    if time.monotonic() >= deadline and cut_of(store, name) < position:
        raise Timeout(
            f"{name} did not reach position {position} within {timeout:g} s; it is at {cut_of(store, name)}.",
            hint="Wait longer (timeout), or read with level ANY; `vk status` shows how far behind the views are.",
        )


def cut_of(store: Store, name: str) -> int:
    """The position that a view's rows stand for: the published batch's cut, or the view's own cut."""
    found = store.catalog().find(name)
    if isinstance(found, View) and found.own_cut is not None:
        return found.own_cut.low
    if isinstance(found, View) and found.table.is_changed_by_writes:
        return store.head()
    batch = store.published_batch()
    return store.head() if batch is None else batch.cut
