"""Every store: the catalog changes atomically, batches publish whole and in order, one maintainer at a time."""

from __future__ import annotations

import pyarrow as pa
import pytest
from tests.contract.conftest import ITEMS, PAIRS, Opener, items, no_change, pairs, put, read, summed

from viewkeeper.errors import MaintainerBusy, NameTaken
from viewkeeper.model import types
from viewkeeper.model.catalog.catalog import Catalog, View
from viewkeeper.model.schema import WEIGHT, Column, KeyPart, Table
from viewkeeper.resources.memory import MemoryBudget
from viewkeeper.resources.prepared_statements import PreparedStatements
from viewkeeper.runtime.upserts import resolve_upserts
from viewkeeper.store.contract.store import Batch, Store, ViewChange

TOTALS = Table(
    7, "totals", (Column("category", types.STRING), Column("n", types.BIGINT)), (KeyPart("category"),), is_view=True
)
VIEW = View(TOTALS, "SELECT category, count(*) AS n FROM items GROUP BY category", {"nodes": [], "é": 1})


def totals(**counts: int) -> ViewChange:
    rows = pa.table([list(counts), list(counts.values())], schema=TOTALS.arrow)
    return ViewChange(TOTALS, rows, TOTALS.arrow.empty_table().select(["category"]))


def test_the_catalog_is_replaced_by_the_change(store: Store, opener: Opener) -> None:
    other = opener()
    assert other.catalog() == store.catalog()
    changed = store.change_catalog(lambda catalog: catalog.with_view(VIEW))
    assert changed.view("TOTALS") == VIEW
    assert other.catalog() == changed == store.catalog()


def test_a_failing_change_leaves_the_catalog(store: Store) -> None:
    before = store.catalog()
    with pytest.raises(NameTaken):
        store.change_catalog(lambda catalog: catalog.with_table(ITEMS))
    assert store.catalog() == before
    assert store.change_catalog(no_change) == before
    put(store, items((1,)))
    assert len(read(store)) == 1


def test_nothing_is_published_at_first(store: Store) -> None:
    assert store.published_batch() is None


def test_a_commit_publishes_rows_record_and_catalog_together(store: Store, opener: Opener) -> None:
    put(store, items((1, "a")))
    record = {"runs": [{"file": "x", "rows": 3}], "fingerprint": "é"}
    store.commit(Batch(1, 1, record), [totals(a=1, b=2)], lambda catalog: catalog.with_view(VIEW))
    for reader in (store, opener("r")):
        assert reader.published_batch() == Batch(1, 1, record)
        assert reader.catalog().view("totals") == VIEW
        assert read(reader, TOTALS) == [{"category": "a", "n": 1}, {"category": "b", "n": 2}]
        assert reader.get(TOTALS, ("b",)) == {"category": "b", "n": 2}


def test_a_commit_replaces_and_deletes_rows(store: Store) -> None:
    store.commit(Batch(1, 0, {}), [totals(a=1, b=2)])
    gone = pa.table({"category": ["a", "nothing"]})
    store.commit(Batch(2, 0, {}), [ViewChange(TOTALS, totals(b=3).puts, gone)])
    assert read(store, TOTALS) == [{"category": "b", "n": 3}]
    assert store.count(TOTALS) == 1


def test_the_one_row_of_a_view_without_a_key_comes_and_goes(store: Store) -> None:
    """As an aggregate without GROUP BY whose HAVING lets it through, and then does not."""
    total = Table(7, "total", (Column("n", types.BIGINT),), (), is_view=True)
    row = pa.table([[5]], schema=total.arrow)
    store.commit(Batch(1, 0, {}), [ViewChange(total, row, row.select([]).slice(0, 0))])
    assert store.get(total, ()) == {"n": 5}
    with PreparedStatements(threads=1) as duck:
        gone = resolve_upserts(duck, store, total, [row.append_column(WEIGHT, pa.array([-1]))], MemoryBudget(1 << 28))
    assert isinstance(gone, ViewChange)
    store.commit(Batch(2, 0, {}), [gone])
    assert read(store, total) == []
    assert store.get(total, ()) is None
    assert store.count(total) == 0


def test_a_views_changes_are_in_the_feed(store: Store) -> None:
    if not store.capabilities.before_images:
        pytest.skip("the store keeps no log of views")
    put(store, items((1, "a")))
    store.commit(
        Batch(1, 1, {}), [totals(a=1), ViewChange(PAIRS, PAIRS.arrow.empty_table(), pairs().select(["word", "n"]))]
    )
    after = store.head()
    store.commit(Batch(2, 1, {}), [totals(a=2)])
    assert after == 2
    assert store.head() == 3
    assert summed(store.changes(TOTALS, ["category", "n"], 0, after)) == {("a", 1): 1}
    assert summed(store.changes(TOTALS, ["category", "n"], after, 3)) == {("a", 1): -1, ("a", 2): 1}
    assert store.pending(1, [ITEMS.id]).calls == 0
    assert store.pending(1, [TOTALS.id]).calls == 2


@pytest.mark.parametrize("number", [0, 1, 3])
def test_a_batch_out_of_turn_is_refused_whole(store: Store, number: int) -> None:
    store.commit(Batch(1, 0, {}), [totals(a=1)])
    with pytest.raises(MaintainerBusy, match=f"Batch {number}"):
        store.commit(Batch(number, 0, {}), [totals(a=9)], lambda catalog: catalog.with_view(VIEW))
    assert store.published_batch() == Batch(1, 0, {})
    assert store.catalog().find("totals") is None
    assert read(store, TOTALS) == [{"category": "a", "n": 1}]


def test_a_failing_catalog_change_undoes_the_commit(store: Store) -> None:
    def fail(catalog: Catalog) -> Catalog:
        return catalog.with_table(ITEMS)

    with pytest.raises(NameTaken):
        store.commit(Batch(1, 0, {}), [totals(a=1)], fail)
    assert store.published_batch() is None
    assert read(store, TOTALS) == []
    store.commit(Batch(1, 0, {}), [totals(a=1)])


def test_one_maintainer_at_a_time(store: Store, opener: Opener) -> None:
    lease = store.acquire_lease()
    with pytest.raises(MaintainerBusy, match="process"):
        opener().acquire_lease()
    lease.release()
    lease.release()
    opener().acquire_lease().release()
