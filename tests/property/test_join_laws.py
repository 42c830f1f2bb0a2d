"""The laws by which joins are maintained, against the difference of two recomputes, over every small thing drawn.

A law that is wrong must be refuted by the same draws: those that were tried and given up are tested to be wrong, so
that the draws are known to be strong enough.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from random import Random

import pytest

from . import join_laws as laws
from .join_laws import Condition, Relation, Row, add, equal, negated, null_safe

DRAWS = 20_000 if os.environ.get("VK_PROFILE") == "deep" else 400
KEYS = (None, 0, 0, 1, 2)


def first(row: Row) -> object:
    return row[0]


ON = equal(first, first)


def residual(left: Row, right: Row) -> bool:
    """An equality and a condition over both sides."""
    return bool(ON(left, right)) and None not in (left[1], right[1]) and left[1] <= right[1]


CONDITIONS: dict[str, Condition] = {
    "equality": ON,
    "residual": residual,
    "null-safe": null_safe(first, first),
    "none": lambda left, right: True,
    "left only": lambda left, right: bool(ON(left, right)) and left[1] == 1,
    "right only": lambda left, right: bool(ON(left, right)) and right[1] == 1,
}


def relation(rng: Random, unique: bool = False) -> Relation:
    """Up to four rows of a key and a value, some of them more than once."""
    rows = [(rng.choice(KEYS), rng.choice((None, 0, 1, 2))) for _ in range(rng.choice((0, 1, 2, 3, 4)))]
    if unique:
        return Counter(dict.fromkeys({row[0]: row for row in rows if row[0] is not None}.values(), 1))
    return Counter(rows)


def draws(unique: bool = False, count: int = DRAWS) -> Iterator[tuple[Relation, Relation, Relation]]:
    """L, R, and how R changes: to another relation that shares some of its rows."""
    rng = Random(30)
    for _ in range(count):
        right, other = relation(rng, unique), relation(rng, unique)
        if not unique and rng.random() < 0.5:
            other = add(right, other)
        yield relation(rng), right, add(other, negated(right))


def recomputed(join: Callable[[Relation], Relation], right: Relation, change: Relation) -> Relation:
    return add(join(add(right, change)), negated(join(right)))


@pytest.mark.parametrize("unique", [False, True])
def test_left_join_on_equalities_changes_by_presence_of_the_key(unique: bool) -> None:
    for left, right, change in draws(unique):
        expected = recomputed(lambda r, left=left: laws.left_join(left, r, ON, 2), right, change)
        present = laws.unique_presence_change(change, first) if unique else laws.presence_change(right, change, first)
        assert laws.left_join_change(left, change, ON, present, first, 2) == expected


@pytest.mark.parametrize("unique", [False, True])
def test_anti_semi_and_existence_joins_on_equalities_change_by_presence_of_the_key(unique: bool) -> None:
    for left, right, change in draws(unique):
        present = laws.unique_presence_change(change, first) if unique else laws.presence_change(right, change, first)
        gained = laws.by_presence(left, present, first)
        assert recomputed(lambda r, left=left: laws.semi(left, r, ON), right, change) == gained
        assert recomputed(lambda r, left=left: laws.anti(left, r, ON), right, change) == negated(gained)
        marked = add(
            Counter({(*row, True): weight for row, weight in gained.items()}),
            Counter({(*row, False): -weight for row, weight in gained.items()}),
        )
        assert recomputed(lambda r, left=left: laws.existence(left, r, ON), right, change) == marked


@pytest.mark.parametrize("name", CONDITIONS)
def test_joins_on_any_condition_change_by_the_matches_of_each_row(name: str) -> None:
    on = CONDITIONS[name]
    for left, right, change in draws():
        expected = recomputed(lambda r, left=left: laws.left_join(left, r, on, 2), right, change)
        assert laws.residual_left_join_change(left, right, change, on, 2) == expected
        expected = recomputed(lambda r, left=left: laws.anti(left, r, on), right, change)
        assert laws.unmatched_change(left, right, change, on) == expected


@pytest.mark.parametrize("name", CONDITIONS)
def test_joins_are_linear_in_the_left_side(name: str) -> None:
    on = CONDITIONS[name]
    for right, left, change in draws():
        for join in (
            lambda x, right=right: laws.left_join(x, right, on, 2),
            lambda x, right=right: laws.anti(x, right, on),
            lambda x, right=right: laws.existence(x, right, on),
        ):
            assert recomputed(join, left, change) == add(join(_part(change, 1)), negated(join(_part(change, -1))))


def _part(change: Relation, sign: int) -> Relation:
    return Counter({row: sign * weight for row, weight in change.items() if sign * weight > 0})


@pytest.mark.parametrize("name", CONDITIONS)
def test_full_join_is_the_left_join_and_what_the_right_side_has_unmatched(name: str) -> None:
    """Both terms read one change of X: `Δ(X ⟕ R) + pad(Δ(R ▷ X))`."""
    on = CONDITIONS[name]
    turned: Condition = lambda a, b: on(b, a)  # noqa: E731
    for right, left, change in draws():
        expected = recomputed(lambda x, right=right: laws.full_join(x, right, on, (2, 2)), left, change)
        from_left = recomputed(lambda x, right=right: laws.left_join(x, right, on, 2), left, change)
        unmatched = laws.unmatched_change(right, left, change, turned)
        assert add(from_left, laws.padded_left(unmatched, 2)) == expected


def test_conditions_of_one_side_move_to_where_they_belong() -> None:
    """Those of R into R before its presence is counted, those of L to the probe."""
    for left, right, _ in draws():
        whole = laws.left_join(left, right, CONDITIONS["right only"], 2)
        filtered = Counter({row: w for row, w in right.items() if row[1] == 1})
        assert laws.left_join(left, filtered, ON, 2) == whole
        meets = Counter({row: w for row, w in left.items() if row[1] == 1})
        rest = add(left, negated(meets))
        probed = add(laws.left_join(meets, right, ON, 2), laws.padded(rest, 2))
        assert probed == laws.left_join(left, right, CONDITIONS["left only"], 2)


def test_a_chain_of_full_joins_using_one_key_is_one_join_by_that_key() -> None:
    rng = Random(31)
    for _ in range(DRAWS):
        parts = [relation(rng) for _ in range(rng.choice((2, 3, 4)))]
        expected, width = parts[0], 2
        for part in parts[1:]:
            joined = laws.full_join(expected, part, ON, (width, 2))
            expected = add(*(Counter({_coalesced(row, width): weight}) for row, weight in joined.items()))
            width += 1
        assert laws.full_by_key((part, 2) for part in parts) == expected


def _coalesced(row: Row, at: int) -> Row:
    """USING: one key of the two, and the second is no column of its own."""
    return (row[0] if row[0] is not None else row[at], *row[1:at], *row[at + 1 :])


def test_lookups_backward_along_equalities_are_inner_and_all_others_outer() -> None:
    """`L ⟕ A ON l.0 = a.0 ⟕ B ON a.1 = b.0`, changes of A and of B, each at the others fixed."""
    rng = Random(32)
    to_b = equal(lambda row: row[3], first)
    for left, a, change in draws():
        b = relation(rng)
        both = lambda x, y, left=left: laws.left_join(laws.left_join(left, x, ON, 2), y, to_b, 2)  # noqa: E731
        present = laws.presence_change(a, change, first)
        onward = laws.left_join_change(left, change, ON, present, first, 2)
        from_a = add(
            laws.left_join(_part(onward, 1), b, to_b, 2), negated(laws.left_join(_part(onward, -1), b, to_b, 2))
        )
        assert from_a == recomputed(lambda x, b=b, both=both: both(x, b), a, change)
        backward = laws.inner(left, a, ON)  # rows that were padded cannot meet B: their key is NULL
        change_of_b = _other(rng, b)
        present = laws.presence_change(b, change_of_b, first)
        from_b = laws.left_join_change(backward, change_of_b, to_b, present, lambda row: row[3], 2)
        assert from_b == recomputed(lambda y, a=a, both=both: both(a, y), b, change_of_b)


def _other(rng: Random, before: Relation) -> Relation:
    return add(relation(rng), negated(before))


def test_not_in_changes_by_three_presences() -> None:
    """That of the value, that of any NULL, and that of any row at all."""
    for left, right, change in draws():
        new = add(right, change)
        signs: Relation = Counter()
        for row, weight in left.items():
            kept = [
                (row[0],) not in laws.presence(r, first)
                and not any(other[0] is None for other in r)
                and (row[0] is not None or not r)
                for r in (right, new)
            ]
            signs[row] = weight * (kept[1] - kept[0])
        expected = recomputed(lambda r, left=left: laws.not_in(left, r, first, first), right, change)
        assert add(signs) == expected


# What was tried and is wrong: the draws must say so.


def test_presence_of_the_key_is_not_enough_under_a_residual() -> None:
    def follows(left: Relation, right: Relation, change: Relation) -> bool:
        present = laws.presence_change(right, change, first)
        expected = recomputed(lambda r: laws.left_join(left, r, residual, 2), right, change)
        return laws.left_join_change(left, change, residual, present, first, 2) == expected

    assert not all(follows(*drawn) for drawn in draws())


def test_a_right_side_that_is_a_join_cannot_be_looked_up_in_two_outer_steps() -> None:
    """`L ⟕ (A ⋈ B)` is one node: `(L ⟕ A) ⟕ B` keeps rows of A that meet nothing in B."""
    rng, to_b = Random(33), equal(lambda row: row[1], first)
    after = equal(lambda row: row[3], first)

    def follows() -> bool:
        left, a, b = relation(rng), relation(rng), relation(rng)
        one = laws.left_join(left, laws.inner(a, b, to_b), ON, 4)
        return one == laws.left_join(laws.left_join(left, a, ON, 2), b, after, 2)

    assert not all(follows() for _ in range(DRAWS))


def test_a_null_safe_key_over_a_padded_column_cannot_be_looked_up_backward_by_inner_joins() -> None:
    rng, to_b = Random(34), null_safe(lambda row: row[3], first)

    def follows() -> bool:
        left, a, b = relation(rng), relation(rng), relation(rng)
        change = _other(rng, b)
        backward = laws.inner(left, a, ON)
        found = laws.residual_left_join_change(backward, b, change, to_b, 2)
        return found == recomputed(lambda y: laws.left_join(laws.left_join(left, a, ON, 2), y, to_b, 2), b, change)

    assert not all(follows() for _ in range(DRAWS))
