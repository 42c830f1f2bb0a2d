"""What the names of strategies mean."""

from __future__ import annotations

from viewkeeper.model.catalog.strategies import STRATEGIES, find_strategy


def named(**wanted: bool) -> set[str]:
    return {name for name, s in STRATEGIES.items() if all(getattr(s, k) == v for k, v in wanted.items())}


def test_each_name_says_when_a_view_is_cut() -> None:
    assert named(is_per_call=True) == {"IN", "SNI", "SCI"}
    assert named(is_scheduled=True) == {"SN", "SC", "ISN", "ISC"}
    assert named(is_per_call=False, is_scheduled=False) == {"IMB", "SNIMB", "SCIMB"}


def test_each_name_says_what_is_read() -> None:
    assert named(reads_live=True) == {"SC", "ISC"}
    assert named(tracks_keys=True) == {"ISN", "ISC"}
    assert named(has_persistent_state=True) == {"IN", "SNI", "SCI", "ISN", "ISC"}


def test_whoever_is_not_cut_with_the_batches_runs_beside_them() -> None:
    assert named(has_own_cut=True) == {"SN", "SC", "ISN", "ISC", "IN", "SNI", "SCI"}


def test_names_are_found_in_either_case() -> None:
    assert find_strategy("isn") is STRATEGIES["ISN"]
    assert find_strategy("often") is None
