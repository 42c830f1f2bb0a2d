"""The laws of outer, anti and existence joins in plain Python over small multisets, beside what they must equal.

A relation is a Counter of rows (tuples) with weights; a change is a Counter with weights of either sign. The functions
named after joins recompute; those named `*_change` follow the laws, with R changed at fixed L:

    equalities only     Δ(L ⟕ R) = L ⋈ ΔR − pad(L ⋈ Δpresence(R.key))
                        Δ(L ▷ R) = −L ⋈ Δpresence(R.key),  Δ(L ⋉ R) = +L ⋈ Δpresence(R.key)
    R.key is unique     Δpresence = ΔR projected to the key and consolidated: no state is needed
    with a residual     for each l of L: pad(l) · ([m_new(l) = 0] − [m_old(l) = 0]), m(l) = net weight of R's rows that
                        meet ON
    all are linear in L, X ⟗ R = (X ⟕ R) + pad(R ▷ X), and a chain of FULL JOINs USING one key is one join by that key

None is NULL: it equals nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from itertools import product
from typing import Any

Row = tuple[Any, ...]
Relation = Counter[Row]
Condition = Callable[[Row, Row], bool | None]
Key = Callable[[Row], Any]


def add(*parts: Relation) -> Relation:
    """The sum of weights; rows of weight 0 are left out."""
    total: Relation = Counter()
    for part in parts:
        for row, weight in part.items():
            total[row] += weight
    return Counter({row: weight for row, weight in total.items() if weight})


def negated(relation: Relation) -> Relation:
    return Counter({row: -weight for row, weight in relation.items()})


def padded(relation: Relation, width: int) -> Relation:
    return Counter({(*row, *[None] * width): weight for row, weight in relation.items()})


def padded_left(relation: Relation, width: int) -> Relation:
    return Counter({(*[None] * width, *row): weight for row, weight in relation.items()})


def equal(left: Key, right: Key) -> Condition:
    """`left(l) = right(r)`: not where either is NULL."""
    return lambda a, b: left(a) is not None and left(a) == right(b)


def null_safe(left: Key, right: Key) -> Condition:
    return lambda a, b: left(a) == right(b)


# Recomputing.


def inner(left: Relation, right: Relation, on: Condition) -> Relation:
    pairs = product(left.items(), right.items())
    return add(*(Counter({(*a, *b): v * w}) for (a, v), (b, w) in pairs if on(a, b)))


def matches(row: Row, right: Relation, on: Condition) -> int:
    """Net weight of the rows of `right` that meet ON with `row`."""
    return sum(weight for other, weight in right.items() if on(row, other))


def left_join(left: Relation, right: Relation, on: Condition, width: int) -> Relation:
    return add(inner(left, right, on), padded(anti(left, right, on), width))


def full_join(left: Relation, right: Relation, on: Condition, widths: tuple[int, int]) -> Relation:
    unmatched = anti(right, left, lambda a, b: on(b, a))
    return add(left_join(left, right, on, widths[1]), padded_left(unmatched, widths[0]))


def anti(left: Relation, right: Relation, on: Condition) -> Relation:
    return Counter({row: weight for row, weight in left.items() if weight and not matches(row, right, on)})


def semi(left: Relation, right: Relation, on: Condition) -> Relation:
    return add(left, negated(anti(left, right, on)))


def existence(left: Relation, right: Relation, on: Condition) -> Relation:
    """Each row with whether it has a match, for EXISTS in an OR."""
    return Counter({(*row, matches(row, right, on) > 0): weight for row, weight in left.items() if weight})


def not_in(left: Relation, right: Relation, value: Key, among: Key) -> Relation:
    """`value(l) NOT IN (SELECT among(r) …)`: true over nothing; never where NULL is compared."""
    values = [among(row) for row, weight in right.items() if weight]
    kept = (
        row
        for row in left
        if not values or (value(row) is not None and None not in values and value(row) not in values)
    )
    return Counter({row: left[row] for row in kept if left[row]})


# The laws: what the join gains when `right` becomes `right + change`.


def presence(relation: Relation, key: Key) -> Relation:
    """Each key of which there is a row, once; NULL is no key."""
    weights: Counter[Any] = Counter()
    for row, weight in relation.items():
        if key(row) is not None:
            weights[key(row)] += weight
    return Counter({(value,): 1 for value, weight in weights.items() if weight})


def presence_change(right: Relation, change: Relation, key: Key) -> Relation:
    return add(presence(add(right, change), key), negated(presence(right, key)))


def unique_presence_change(change: Relation, key: Key) -> Relation:
    """The same where each key has one row at most: nothing of what was there is asked for."""
    found = (Counter({(key(row),): weight}) for row, weight in change.items() if key(row) is not None)
    return add(*found)


def by_presence(left: Relation, present: Relation, key: Key) -> Relation:
    """L ⋈ Δpresence: the rows of `left` with the weights of their key."""
    weighted = {row: weight * present[(key(row),)] for row, weight in left.items() if key(row) is not None}
    return Counter({row: weight for row, weight in weighted.items() if weight})


def left_join_change(
    left: Relation, change: Relation, on: Condition, present: Relation, key: Key, width: int
) -> Relation:
    """Equalities only: `present` is Δpresence of the right side's key, `key` the left side's."""
    return add(inner(left, change, on), negated(padded(by_presence(left, present, key), width)))


def unmatched_change(left: Relation, right: Relation, change: Relation, on: Condition) -> Relation:
    """Any condition: rows of `left` that have no match now, less those that had none."""
    new = add(right, change)
    touched = (row for row in left if any(on(row, other) for other in change))
    signs = {row: (not matches(row, new, on)) - (not matches(row, right, on)) for row in touched}
    return Counter({row: left[row] * sign for row, sign in signs.items() if sign})


def residual_left_join_change(left: Relation, right: Relation, change: Relation, on: Condition, width: int) -> Relation:
    return add(inner(left, change, on), padded(unmatched_change(left, right, change, on), width))


def full_by_key(relations: Iterable[tuple[Relation, int]]) -> Relation:
    """A chain of FULL JOINs USING the first column of each, as one join by that key.

    The rows of a key come from the rows of that key alone; a NULL key meets nothing, so its rows stand alone. The
    result has the coalesced key, then the other columns of each relation.
    """
    parts = list(relations)
    keys = {row[0] for relation, _ in parts for row in relation if row[0] is not None}
    found: list[Relation] = []
    for value in keys:
        rows: Relation = Counter({(value,): 1})
        for relation, width in parts:
            own = {row[1:]: weight for row, weight in relation.items() if row[0] == value and weight}
            each = own or {(None,) * (width - 1): 1}
            rows = add(*(Counter({(*a, *b): v * w}) for (a, v), (b, w) in product(rows.items(), each.items())))
        found.append(rows)
    for number, (relation, _) in enumerate(parts):
        before = sum(width - 1 for _, width in parts[:number])
        after = sum(width - 1 for _, width in parts[number + 1 :])
        for row, weight in relation.items():
            if row[0] is None:
                found.append(Counter({(None, *[None] * before, *row[1:], *[None] * after): weight}))
    return add(*found)
