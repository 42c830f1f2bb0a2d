"""Cost model of view families: the cost of n views separately and as one family, for the choice and for EXPLAIN.

    n views, d of them distinct, over r rows     separately                                      as a family
    backfill                                     d · (view + r · view row) + (n − d) · equal     family + r · family row
    a batch of c changes                         d · (view + c · view row) + (n − d) · equal     family + c · family row

Separate views share lookups and read the table together, but each has its own statement, groups and view table. Equal
views share their operators, but each still has a view table. A family sums every row once by the values that conditions
compare, and equal members are two names of the same rows. The constants are seconds of one core, fitted to backfills
and batches of 4 to 200 views over 50,000 rows, and to TPC-H's Q6 at scale 1. Another machine may be twice as fast, but
the ratios stay.
"""

from __future__ import annotations

from dataclasses import dataclass

_VIEW_LOAD, _VIEW_LOAD_ROW, _FAMILY_LOAD, _FAMILY_LOAD_ROW = 1.1e-2, 5e-8, 2.5e-1, 1.5e-6
_VIEW_BATCH, _VIEW_BATCH_ROW, _FAMILY_BATCH, _FAMILY_BATCH_ROW = 3.5e-3, 2.5e-7, 1.2e-2, 2e-6
_EQUAL_VIEW_LOAD, _EQUAL_VIEW_BATCH = 6e-3, 1e-3

EXPECTED_ROWS = 10_000
"""Changed rows of the batch for which costs are estimated."""


@dataclass(frozen=True)
class Cost:
    """Seconds of one core for the backfill, and for a batch of `EXPECTED_ROWS` changed rows."""

    load: float
    batch: float

    def __str__(self) -> str:
        load, batch = _format_seconds(self.load), _format_seconds(self.batch)
        return f"load {load}, a batch of {EXPECTED_ROWS:,} changed rows {batch}"


def separate_cost(views: int, distinct_views: int, rows: int) -> Cost:
    """Return the cost of separate views, of which equal ones share their operators."""
    equal = views - distinct_views
    load = distinct_views * (_VIEW_LOAD + rows * _VIEW_LOAD_ROW) + equal * _EQUAL_VIEW_LOAD
    return Cost(load, distinct_views * (_VIEW_BATCH + EXPECTED_ROWS * _VIEW_BATCH_ROW) + equal * _EQUAL_VIEW_BATCH)


def family_cost(rows: int) -> Cost:
    """Return the cost of a family.

    The model ignores the number of views: the members' cost is small beside that of the rows.
    """
    return Cost(_FAMILY_LOAD + rows * _FAMILY_LOAD_ROW, _FAMILY_BATCH + EXPECTED_ROWS * _FAMILY_BATCH_ROW)


def is_family_cheaper(views: int, distinct_views: int, rows: int) -> bool:
    """Whether a family is cheaper than these separate views, in backfill and in batches."""
    family, separate = family_cost(rows), separate_cost(views, distinct_views, rows)
    return family.load < separate.load and family.batch < separate.batch


def min_family_views(rows: int) -> int:
    """Return the number of distinct views from which a family is cheaper."""
    separate, family = separate_cost(1, 1, rows), family_cost(rows)
    return 1 + int(max(family.load / separate.load, family.batch / separate.batch))


def _format_seconds(number: float) -> str:
    return f"{number * 1e3:,.0f} ms" if number < 1 else f"{number:,.1f} s"
