"""Every aggregate and window function of the list × type × plain, FILTER, DISTINCT, OVER: the calls, and hard rows.

The calls are made from `viewkeeper.plan.functions`, the list from which refusals and the reference page are made, too.
Each group of the rows is a kind of trouble: one row, equal rows, NULLs only, NaN, infinities, both zeros, extremes.
"""

from __future__ import annotations

import datetime as dt
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from viewkeeper.plan.functions import AGGREGATES, WINDOW_FUNCTIONS, Function

COLUMNS = {
    "b": "BOOLEAN",
    "t": "TINYINT",
    "i": "INT",
    "l": "BIGINT",
    "f": "FLOAT",
    "d": "DOUBLE",
    "m": "DECIMAL(9,2)",
    "w": "DECIMAL(38,4)",
    "s": "STRING",
    "y": "BINARY",
    "a": "DATE",
    "z": "TIMESTAMP",
    "n": "TIMESTAMP_NTZ",
    "u": "DOUBLE",  # in no group twice
}
TYPES = {
    "any": "btilfdmwsyazn",
    "number": "dilfmwt",
    "integer": "lti",
    "exact": "btilmwsyazn",
    "order": "u",
    "text": "s",
    "boolean": "b",
}
FRAMES = (
    "ORDER BY id",
    "ORDER BY id ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING",
    "",
    "ORDER BY id ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING",
    "ORDER BY id RANGE BETWEEN 2 PRECEDING AND CURRENT ROW",
    "ORDER BY id DESC ROWS BETWEEN 3 PRECEDING AND 2 PRECEDING",
    "ORDER BY id DESC RANGE BETWEEN UNBOUNDED PRECEDING AND 1 FOLLOWING",
)


_ROUNDED = ("sum", "avg", "try_sum", "try_avg", "regr_avgx", "regr_avgy")


@dataclass(frozen=True)
class Case:
    """One call; `columns` are those that it reads."""

    function: Function
    call: str
    columns: frozenset[str]

    @property
    def is_order_dependent(self) -> bool:
        """Whether a float depends on the order of additions, and that order is left open."""
        return self.function.name in _ROUNDED and not ("OVER" in self.call and "ORDER BY id" in self.call)

    @property
    def is_approximate(self) -> bool:
        """Whether only the last digits of a float may differ."""
        return "last digits" in self.function.note or self.is_order_dependent

    @property
    def is_refused(self) -> bool:
        """What is not supported of a function that is."""
        return (self.call.startswith("try_sum(") and "w" in self.columns) or (
            "OVER" in self.call and not self.function.allows_over
        )


def some(cases: Iterator[Case], each: int) -> Iterator[Case]:
    """So many calls of each form, of types that take turns."""
    turn = itertools.count()
    for _, found in itertools.groupby(cases, key=lambda c: (c.function.name, re.sub(r"\b[a-z]\b", "", c.call[:40]))):
        same = list(found)
        for _ in range(min(each, len(same))):
            yield same[next(turn) % len(same)]


def plain() -> Iterator[Case]:
    for function in AGGREGATES:
        yield from _of(function)


def filtered() -> Iterator[Case]:
    for case in plain():
        yield Case(case.function, f"{case.call} FILTER (WHERE id % 3 <> 0)", case.columns)


def distinct() -> Iterator[Case]:
    """Each call of one argument list or more; Spark has no DISTINCT for count(*) and for orders of their own."""
    for case in plain():
        if "(*" not in case.call and "(0.3)" not in case.call and case.function.name != "mode":
            yield Case(case.function, case.call.replace("(", "(DISTINCT ", 1), case.columns)


def framed_filtered() -> Iterator[Case]:
    for case in framed():
        if not case.function.needs_over:
            yield Case(case.function, case.call.replace(" OVER", " FILTER (WHERE id % 3 <> 0) OVER"), case.columns)


def framed(frames: tuple[str, ...] = FRAMES) -> Iterator[Case]:
    """Each call over a window; without `frames` of its own one frame after the other."""
    cases = [c for f in (*AGGREGATES, *WINDOW_FUNCTIONS) for c in _of(f)]
    for number, case in enumerate(cases):
        some = [frames[number % len(frames)]] if frames is FRAMES else frames
        for frame in some:
            if case.function.name in _WHOLE:
                frame = ""
            if case.function.needs_over and not frame.startswith("ORDER"):
                frame = "ORDER BY id"
            if case.function.name in _FRAMELESS:
                frame = re.sub(" (ROWS|RANGE) .*", "", frame)
            yield Case(case.function, f"{case.call} OVER (PARTITION BY g {frame})", case.columns)


_WHOLE = ("median", "percentile_cont", "percentile_disc", "listagg")
"""Spark takes no order and no frame for them."""

_FRAMELESS = ("row_number", "rank", "dense_rank", "percent_rank", "cume_dist", "ntile", "lag", "lead")


def _of(function: Function) -> Iterator[Case]:
    """The function's forms for every type of their first argument; the second one is of another type."""
    for form in function.forms:
        families = re.findall(r"{(\w+)}", form)
        if "WITHIN" in form and len(families) > 1:
            families = families[:1]  # the same argument again
        seen = set()
        for place, first in enumerate(TYPES[families[0]] if families else " "):
            chosen = [first, *(TYPES[f][(place + 1) % len(TYPES[f])] for f in families[1:])]
            names = itertools.cycle(chosen)
            call = re.sub(r"{\w+}", lambda _, names=names: next(names), form)  # type: ignore[misc]
            if call not in seen:
                seen.add(call)
                yield Case(function, call, frozenset(c for c in chosen if c.strip()))


# -- rows --------------------------------------------------------------------------------------------------------------

ORDERED = 100
"""The group whose sums depend on the order of additions: only a window's with an order is determined."""

_NAN, _INF = float("nan"), float("inf")
_DAY = dt.date(2024, 2, 28)


def row(id_: int, g: int, k: int, **other: Any) -> dict[str, Any]:
    """A row whose values follow from k."""
    moment = dt.datetime(2024, 2, 28, 23, 59, 59) + dt.timedelta(hours=7 * k)
    made = {"id": id_, "g": g, "b": k % 2 == 0, "t": k, "i": 3 * k - 4, "l": 1000 + k, "f": 0.1 * k, "d": 0.7 * k - 1}
    made |= {"m": Decimal(k) / 100, "w": Decimal(10**20 + k) / 10**4, "s": "abcdefgh"[k % 8], "y": bytes([k])}
    made |= {"a": _DAY + dt.timedelta(k), "z": moment.replace(tzinfo=dt.UTC), "n": moment, "u": float(id_)}
    return made | other


def rows() -> list[dict[str, Any]]:
    numbers = itertools.count(1)

    def of(g: int, ks: tuple[int, ...], **other: Any) -> list[dict[str, Any]]:
        return [row(next(numbers), g, k, **other) for k in ks]

    def doubles(g: int, *values: float | None) -> list[dict[str, Any]]:
        return [row(next(numbers), g, k, d=v, f=v) for k, v in enumerate(values)]

    found = of(0, (0, 5, 3, 8, 1, 13, 7, 2)) + of(1, (4,)) + of(2, (6, 6, 6)) + of(4, (9, 2, 2, 9, 1, 1, 1))
    found += [{"id": next(numbers), "g": 3} for _ in range(2)]
    found += [{"id": next(numbers), "g": 4} for _ in range(2)] + of(4, (5, 3))
    found += (
        doubles(5, 1.5, _NAN, 2.5, None) + doubles(6, 1.0, _INF, 2.0, -4.0, 7.0) + doubles(7, _INF, 1.0, -_INF, 3.0)
    )
    found += doubles(8, 0.0, -0.0, -0.0) + doubles(9, -_INF, 1.0, 2.5) + doubles(ORDERED, 1e16, 1.0, -1e16, 0.25, 3.0)
    found += [row(next(numbers), 11, k, d=1e4 + 0.5 * k * k, f=4096.0 + k) for k in (1, 2, 3, 5, 8)]
    low, high, most = dt.date(1, 1, 1), dt.date(9999, 12, 31), Decimal("9999999.99")
    none = dict.fromkeys("tildfm")  # what is left of a sum of extremes depends on the order of additions
    found += [
        row(next(numbers), 12, 1, w=None, t=127, i=2**31 - 1, l=2**63 - 1, d=1e100, f=3e38, a=high, u=_NAN, m=most),
        row(next(numbers), 12, 2, w=None, t=-128, i=-(2**31), l=-(2**63), d=-1e100, f=-3e38, a=low, u=_INF, m=-most),
        row(next(numbers), 12, 3, s="", y=b"", w=Decimal("9" * 30 + ".9999"), u=-_INF, **none),
        row(next(numbers), 12, 4, s="ßΩ😀", w=Decimal("-" + "9" * 30 + ".9999"), u=None, **none),
        row(next(numbers), 13, 5, d=1.7976931348623157e308, f=1e-45),
        row(next(numbers), 13, 5, d=1.7976931348623157e308, f=-1e-45),
        *doubles(15, _INF),
        *doubles(16, _NAN),
        row(next(numbers), 14, 5, d=5e-324, f=3.4028234663852886e38),
    ]
    return found


def changes() -> tuple[list[dict[str, Any]], list[int]]:
    """Rows to put and keys to delete: each kind of trouble goes from its group, and comes to another."""
    by_group: dict[int, list[dict[str, Any]]] = {}
    for one in rows():
        by_group.setdefault(one["g"], []).append(one)
    gone = [r["id"] for g in (1, 7, 16) for r in by_group[g]][:-1]  # two groups end
    gone += [r["id"] for g in (5, 6, 8) for r in by_group[g][1:2]]  # NaN, an infinity and a zero go
    puts = [r | {"g": 2} for r in by_group[0][:2]] + [r | {"d": None, "i": None, "s": "x"} for r in by_group[0][3:4]]
    puts += [row(1000 + k, g, k) for k, g in enumerate((20, 20, 4, 3, 14))]
    puts += [row(2000, 0, 3, d=_NAN, f=_INF), row(2001, 4, 3, d=_INF, f=-_INF), {"id": 2002, "g": 21}]
    return puts, gone
