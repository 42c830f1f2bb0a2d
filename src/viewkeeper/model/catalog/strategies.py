"""Maintenance strategies: the values of the option `strategy` (chapter 6 of the dissertation).

    name                trigger    what is read                      from what
    IMB, SNIMB, SCIMB   batch      the changes of many write calls   all tables, at the batch's cut
    IN, SNI, SCI        call       the changes of each write call    all tables, at the call's cut
    SN                  interval   everything                        the tables at one cut
    SC                  interval   everything                        the tables as a live scan finds them
    ISN                 interval   the changed keys                  the tables at one cut
    ISC                 interval   the changed keys                  each key as a live read finds it

The first two lines include the hybrids of section 6.3, which are loaded once and then maintained by changes. The result
of an interval strategy is published as the difference from the stored rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from viewkeeper.model.catalog.catalog import View


class RefreshTrigger(Enum):
    """When a view moves from one state of its tables to the next."""

    BATCH = "batch"
    CALL = "call"
    INTERVAL = "interval"


@dataclass(frozen=True)
class Strategy:
    """A maintenance strategy. `reads_live`: tables are read in their current state while writers continue.
    `tracks_keys`: only changed keys are read again."""

    name: str
    trigger: RefreshTrigger
    reads_live: bool = False
    tracks_keys: bool = False

    @property
    def is_scheduled(self) -> bool:
        """Whether the view runs at intervals; then its rows must be stored, to compute the difference."""
        return self.trigger is RefreshTrigger.INTERVAL

    @property
    def is_per_call(self) -> bool:
        """Whether the view shows the state after every write call."""
        return self.trigger is RefreshTrigger.CALL

    @property
    def has_persistent_state(self) -> bool:
        """Whether a view with a cut of its own keeps its operators' state between runs."""
        return self.tracks_keys or self.is_per_call

    @property
    def has_own_cut(self) -> bool:
        """Whether the view has state and a cut of its own, separate from the batches: at intervals or per call."""
        return self.trigger is not RefreshTrigger.BATCH


STRATEGIES: Mapping[str, Strategy] = {
    s.name: s
    for s in (
        Strategy("IN", RefreshTrigger.CALL),
        Strategy("IMB", RefreshTrigger.BATCH),
        Strategy("SNI", RefreshTrigger.CALL),
        Strategy("SCI", RefreshTrigger.CALL),
        Strategy("SNIMB", RefreshTrigger.BATCH),
        Strategy("SCIMB", RefreshTrigger.BATCH),
        Strategy("SN", RefreshTrigger.INTERVAL),
        Strategy("SC", RefreshTrigger.INTERVAL, reads_live=True),
        Strategy("ISN", RefreshTrigger.INTERVAL, tracks_keys=True),
        Strategy("ISC", RefreshTrigger.INTERVAL, reads_live=True, tracks_keys=True),
    )
}

DEFAULT_STRATEGY = "IMB"


def find_strategy(name: str) -> Strategy | None:
    """Return the strategy with this name, or None."""
    return STRATEGIES.get(name.upper())


def strategy_of(view: View) -> Strategy:
    return STRATEGIES[view.options.get("strategy", DEFAULT_STRATEGY).upper()]


def interval_of(view: View) -> float:
    """Return the seconds between two runs."""
    return float(view.options.get("interval", "5"))
