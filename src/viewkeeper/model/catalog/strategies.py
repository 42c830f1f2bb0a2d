"""How a view is kept fresh: what each name that the option `strategy` takes means (the dissertation's chapter 6).

    name                cut        what is read                      of what
    IMB, SNIMB, SCIMB   batch      the changes of many write calls   all tables, at the batch's cut
    IN, SNI, SCI        call       the changes of each write call    all tables, at the call's cut
    SN                  interval   everything                        the tables at one cut
    SC                  interval   everything                        the tables as a scan finds them
    ISN                 interval   the keys that changed             the tables at one cut
    ISC                 interval   the keys that changed             each key as it is found

The first two lines are the hybrids of 6.3: loaded once, then maintained by changes. What is made at intervals is
published as the difference to the rows that are there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from viewkeeper.model.catalog.catalog import View


class RefreshTrigger(Enum):
    """When a view goes from one state of its tables to the next."""

    BATCH = "batch"
    CALL = "call"
    INTERVAL = "interval"


@dataclass(frozen=True)
class Strategy:
    """`live`: tables are read as they are found, while writers go on. `tracks`: only changed keys are read again."""

    name: str
    trigger: RefreshTrigger
    reads_live: bool = False
    tracks_keys: bool = False

    @property
    def is_scheduled(self) -> bool:
        """Whether it runs at intervals; then its rows must be stored, to be compared with."""
        return self.trigger is RefreshTrigger.INTERVAL

    @property
    def is_per_call(self) -> bool:
        """Whether every write call's state shows."""
        return self.trigger is RefreshTrigger.CALL

    @property
    def has_persistent_state(self) -> bool:
        """Whether, running by itself, a view keeps its operators' state from one run to the next."""
        return self.tracks_keys or self.is_per_call

    @property
    def has_own_cut(self) -> bool:
        """Whether a view has state and a cut of its own: made at intervals, or call by call while others take many."""
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
    """None if there is none of that name."""
    return STRATEGIES.get(name.upper())


def strategy_of(view: View) -> Strategy:
    return STRATEGIES[view.options.get("strategy", DEFAULT_STRATEGY).upper()]


def interval_of(view: View) -> float:
    """Seconds between two runs."""
    return float(view.options.get("interval", "5"))
