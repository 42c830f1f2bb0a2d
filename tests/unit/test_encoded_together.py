"""The changes of many small views as bytes, against each by itself."""

from __future__ import annotations

from decimal import Decimal
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from viewkeeper.errors import TooLarge
from viewkeeper.model import types
from viewkeeper.model.encoding.keys import encode_keys
from viewkeeper.model.encoding.rows import encode_rows
from viewkeeper.model.schema import Column, KeyPart, Table
from viewkeeper.store.contract.store import ViewChange
from viewkeeper.store.ordered import change_encoding, row_images, write_call
from viewkeeper.store.ordered.change_encoding import encode_view_changes
from viewkeeper.store.ordered.row_images import sort_by_key
from viewkeeper.store.ordered.write_call import encode_change_rows

COLUMNS = (("k", types.STRING), ("i", types.INT), ("d", types.parse_type("decimal(20,2)")), ("n", types.BIGINT))


def table(number: int, key: tuple[str, ...], *, descending: bool = False, bag: bool = False) -> Table:
    named = tuple(Column(f"{name}_{number}", kind) for name, kind in COLUMNS)
    keys = tuple(KeyPart(f"{name}_{number}", descending, nulls_last=descending) for name in key)
    return Table(number, f"v{number}", named, keys, is_view=True, is_bag=bag)


def changed(of: Table, chance: Random, puts: int, deletes: int) -> ViewChange:
    def value(kind: Any) -> Any:
        if chance.random() < 0.2:
            return None
        number = chance.randrange(-50, 50)
        return f"k{number}" if kind == types.STRING else Decimal(number) if types.decimal_digits(kind) else number

    rows = [{c.name: 1 if c.name == "¤count" else value(c.type) for c in of.stored_columns} for _ in range(60)]
    unique = list({tuple(row[k.column] for k in of.key): row for row in rows}.values())
    schema = pa.schema([of.arrow.field(k.column) for k in of.key])
    gone = [{name: row[name] for name in schema.names} for row in unique[puts : puts + deletes]]
    return ViewChange(of, pa.Table.from_pylist(unique[:puts], of.arrow), pa.Table.from_pylist(gone, schema))


def ordered(found: Any) -> dict[int, list[tuple[bytes, bytes]]]:
    listed: dict[int, list[tuple[bytes, bytes]]] = {}
    for of, keys, after in found:
        keys, after = sort_by_key(of, keys, after)
        listed.setdefault(of.id, []).extend(zip(keys.to_pylist(), after.to_pylist(), strict=True))
    return listed


def apart(changes: list[ViewChange]) -> Any:
    return ((c.table, *piece) for c in changes for piece in encode_change_rows(c.table, c.puts, c.deletes))


@pytest.mark.parametrize("few", [3, 256])
def test_together_as_apart(few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_encoding, "_MAX_GROUPED_ROWS", few)
    chance = Random(few)
    changes = []
    for number in range(1, 60):
        kind = number % 6
        of = table(
            number, [("k",), ("k", "i"), ("i",), ("k",), ("d", "k"), ()][kind], descending=kind == 3, bag=kind == 1
        )
        changes.append(changed(of, chance, chance.randrange(4) if of.key else 1, chance.randrange(3) if of.key else 0))
    assert ordered(encode_view_changes(changes)) == ordered(apart(changes))


def test_keys_of_a_table_come_in_order() -> None:
    chance = Random(7)
    changes = [changed(table(number, ("k", "i")), chance, 5, 2) for number in range(1, 9)]
    for _, keys, _ in encode_view_changes(changes):
        assert keys.to_pylist() == sorted(keys.to_pylist())


def test_a_row_that_is_too_large_is_named_by_its_table(monkeypatch: pytest.MonkeyPatch) -> None:
    chance = Random(1)
    changes = [changed(table(number, ("k",)), chance, 2, 0) for number in (1, 2, 3)]
    rows = [{"k_2": "x" * 500, "i_2": 1, "d_2": None, "n_2": None}]
    changes[1] = ViewChange(changes[1].table, pa.Table.from_pylist(rows, changes[1].table.arrow), changes[1].deletes)
    for module in (row_images, change_encoding):
        monkeypatch.setattr(module, "MAX_KEY_BYTES", 400)
    with pytest.raises(TooLarge, match="v2"):
        list(encode_view_changes(changes))


def test_slices_of_a_large_call_are_the_same_by_two_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    of, chance = table(1, ("i", "k")), Random(8)
    numbers = chance.sample(range(1000), 500)
    rows = [{"k_1": f"k{n % 7}", "i_1": n, "d_1": Decimal(n), "n_1": None if n % 5 else n} for n in numbers]
    puts, gone = pa.Table.from_pylist(rows[:400], of.arrow), pa.Table.from_pylist(rows[400:], of.arrow)
    monkeypatch.setattr(write_call, "_SLICE_ROWS", 37)
    by_two = list(encode_change_rows(of, puts, gone.select(["i_1", "k_1"])))
    monkeypatch.setattr(write_call, "_MIN_PARALLEL_SLICES", 1000)
    by_one = list(encode_change_rows(of, puts, gone.select(["i_1", "k_1"])))
    assert len(by_two) == 11 + 3
    assert [(k.to_pylist(), a.to_pylist()) for k, a in by_two] == [(k.to_pylist(), a.to_pylist()) for k, a in by_one]
    keys = [key for piece, _ in by_two[:11] for key in piece.to_pylist()]
    assert keys == sorted(keys)


def test_a_row_that_is_too_large_is_refused_from_a_thread_too(monkeypatch: pytest.MonkeyPatch) -> None:
    of = table(1, ("k",))
    monkeypatch.setattr(write_call, "_SLICE_ROWS", 2)
    rows = [{"k_1": "x" * (1 << 17) if n == 11 else f"k{n}", "i_1": n, "d_1": None, "n_1": None} for n in range(20)]
    with pytest.raises(TooLarge, match="key of v1"):
        list(encode_change_rows(of, pa.Table.from_pylist(rows, of.arrow), of.arrow.empty_table().select(["k_1"])))


@pytest.mark.parametrize("chunks", [1, 3, 100])
def test_in_several_chunks_as_in_one(chunks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few large chunks, of which each slice takes its rows, and many small ones."""
    monkeypatch.setattr(write_call, "_SLICE_ROWS", 16)
    of = table(1, ("n", "k"))
    numbers = [n * 7_919 % 100_003 for n in range(100)]
    rows = [dict(zip(of.arrow.names, (f"k{n}", n, Decimal(n), n), strict=True)) for n in numbers]
    whole = pa.Table.from_pylist(rows, of.arrow)
    step = -(-whole.num_rows // chunks)
    puts = pa.concat_tables([whole.slice(start, step) for start in range(0, whole.num_rows, step)])
    none = pa.schema([of.arrow.field(k.column) for k in of.key]).empty_table()
    keys, after = (pa.concat_arrays(each) for each in zip(*encode_change_rows(of, puts, none), strict=True))
    assert len(keys) == 100
    assert keys.to_pylist() == sorted(keys.to_pylist())
    assert {of.id: list(zip(keys.to_pylist(), after.to_pylist(), strict=True))} == ordered(
        [(of, encode_keys(of, whole), encode_rows(of, whole))]
    )
