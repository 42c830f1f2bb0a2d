"""What views of one template cost, each by itself and as a family: the model that chooses, and that EXPLAIN shows.

    n views, d of them different, over r rows     each by itself                              as a family
    first load                                    d · (each + r · seen) + (n − d) · copy      whole + r · kept
    a batch of c changes                          d · (turn + c · met) + (n − d) · again      round + c · summed

By themselves views share lookups and read the table together, but each has its statement, its groups and its table;
equal ones have their operators together, and still a table each. A family sums every row once by the values that
conditions compare, and equal members are two names of the same rows. Seconds of one core, fitted to loads and batches
of 4 to 200 views over 50,000 rows, and to TPC-H's Q6 at scale 1; a machine may be twice as fast, the ratio stays.
"""

from __future__ import annotations

from dataclasses import dataclass

_VIEW_LOAD, _VIEW_LOAD_ROW, _FAMILY_LOAD, _FAMILY_LOAD_ROW = 1.1e-2, 5e-8, 2.5e-1, 1.5e-6
_VIEW_BATCH, _VIEW_BATCH_ROW, _FAMILY_BATCH, _FAMILY_BATCH_ROW = 3.5e-3, 2.5e-7, 1.2e-2, 2e-6
_EQUAL_VIEW_LOAD, _EQUAL_VIEW_BATCH = 6e-3, 1e-3

EXPECTED_ROWS = 10_000
"""Changed rows of the batch that is spoken of."""


@dataclass(frozen=True)
class Cost:
    load: float
    batch: float

    def __str__(self) -> str:
        load, batch = _format_seconds(self.load), _format_seconds(self.batch)
        return f"load {load}, a batch of {EXPECTED_ROWS:,} changed rows {batch}"


def separate_cost(views: int, distinct_views: int, rows: int) -> Cost:
    equal = views - distinct_views
    load = distinct_views * (_VIEW_LOAD + rows * _VIEW_LOAD_ROW) + equal * _EQUAL_VIEW_LOAD
    return Cost(load, distinct_views * (_VIEW_BATCH + EXPECTED_ROWS * _VIEW_BATCH_ROW) + equal * _EQUAL_VIEW_BATCH)


def family_cost(rows: int) -> Cost:
    """The number of views does not matter to the model: what members take is small beside the rows."""
    return Cost(_FAMILY_LOAD + rows * _FAMILY_LOAD_ROW, _FAMILY_BATCH + EXPECTED_ROWS * _FAMILY_BATCH_ROW)


def is_family_cheaper(views: int, distinct_views: int, rows: int) -> bool:
    """Whether so many views, of which so many are different, are better kept as a family: loaded and maintained
    faster."""
    one, other = family_cost(rows), separate_cost(views, distinct_views, rows)
    return one.load < other.load and one.batch < other.batch


def min_family_views(rows: int) -> int:
    """From how many different views on that is so."""
    alone, together = separate_cost(1, 1, rows), family_cost(rows)
    return 1 + int(max(together.load / alone.load, together.batch / alone.batch))


def _format_seconds(number: float) -> str:
    return f"{number * 1e3:,.0f} ms" if number < 1 else f"{number:,.1f} s"
