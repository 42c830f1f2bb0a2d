"""Sums in a write call of few rows: the law of `few` for counts, sums and averages, on the bytes of the rows.

    rows before −1, rows after +1 ──filter──▶ by group: what to add ──▶ the group's numbers ──▶ its row of the state,
                                                                                                and of the view

A group's rows differ from those before in nothing but their numbers, so they are taken apart once, and packed again.
What is known of a group stays for the next write call, while nobody else has written: the store sees to that. Python's
own loops are cheapest here: a put has used the processor's cache for other things, and each library's call is cold.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from operator import add, itemgetter
from typing import Any, Protocol

from viewkeeper.expressions.tree import Expr
from viewkeeper.model import types
from viewkeeper.model.encoding.keys import plain_key
from viewkeeper.model.encoding.row_slots import OtherColumns, SlotReader, Slots, plain
from viewkeeper.model.encoding.rows import encode_plain, layout_of
from viewkeeper.model.schema import Table

Rewritten = tuple[Table, list[bytes], list[bytes], list[bytes]]
"""Keys of a table, and their rows before and from now on; an empty one is none."""
Measures = Sequence[tuple[str, str, str, str, str, int, int]]
"""Each one's name, function, argument, its count and sum, and the least and greatest sum that fits."""

_EXACT, _WIDE = 1 << 53, "16s"
_MOST, _LONGEST = 1_000, 4_096
"""Groups that stay, and the bytes of a row that may."""
_UNREAD = (b"",)
COMPARED = {
    "EqualTo": operator.eq,
    "LessThan": operator.lt,
    "LessThanOrEqual": operator.le,
    "GreaterThan": operator.gt,
    "GreaterThanOrEqual": operator.ge,
}


class AtHand(Protocol):
    """Rows of a store, and what is left of them from one write call to the next."""

    at_hand: MutableMapping[int, Any]
    """By view, what the write call before has left here, if nobody has written since."""

    def each(self, table: Table, keys: Sequence[bytes]) -> list[bytes]:
        """The row of each encoded key, as it was when the write call began; empty where there is none."""


class _DoesNotFit(Exception):
    """Left to others."""


class _Row:
    """A group's row in a table: as the store has it, and taken apart."""

    __slots__ = ("key", "known", "nulls", "slots", "tail")

    def __init__(self, table: Table, key: bytes, known: bytes, whole: bytes) -> None:
        layout = layout_of(table, len(table.places))
        self.key, self.known = key, known
        self.slots = list(layout.form.unpack_from(whole))
        self.nulls = int.from_bytes(self.slots[2], "little")
        self.tail = whole[layout.width :]

    def packed(self, pack: Callable[..., bytes]) -> bytes:
        slots = self.slots
        slots[2] = self.nulls.to_bytes(len(slots[2]), "little")
        return pack(*slots) + self.tail


class _Group:
    """Its rows, and its numbers."""

    __slots__ = ("numbers", "state", "view")

    def __init__(self, state: _Row, view: _Row, numbers: list[int]) -> None:
        self.state, self.view, self.numbers = state, view, numbers

    @property
    def size(self) -> int:
        return len(self.state.tail) + len(self.view.tail)


@dataclass(frozen=True)
class _Reading:
    """How the rows of a base table are looked at."""

    table: Table
    reader: SlotReader
    group_of: Callable[[Slots], Any]
    group_in: Callable[[bytes, Slots], Any] | None
    """The same of a row that begins clean, and was unpacked only; None: all have to be read."""
    tests: Sequence[Callable[[Slots], bool]]
    counted: Sequence[tuple[int, int]]
    """For each number that counts values, its place and that of their column."""
    summed: Sequence[tuple[int, int, bool]]
    """For each that sums them the same, and whether it does so as doubles."""


class Tally:
    """An aggregate by plain columns, and the end of a view that shows its groups: for each column of the view `taken`
    has that of the group's row. `keys` are the columns of the base table that are the group's `names`, `conditions` are
    what a row must pass, and `fed` has for each accumulator its kind, the column that it is fed by, and its name."""

    def __init__(
        self,
        names: Sequence[str],
        keys: Sequence[str],
        conditions: Sequence[Expr],
        fed: Sequence[tuple[str, str, str]],
        measures: Measures,
        state: Table,
        view: Table,
        taken: Sequence[str],
    ) -> None:
        self._names, self._keys, self._conditions, self._fed = names, keys, conditions, fed
        self._state, self._view = state, view
        shown = list(zip((c.name for c in view.columns), taken, strict=True))
        self._grouping = [(column, source) for column, source in shown if source in names]
        self._named = {state.id: _bits(state, names), view.id: _bits(view, [column for column, _ in self._grouping])}
        kept = layout_of(state, len(state.places))
        self._first = 3 + kept.names.index("¤n")
        """Of the state's slots, the first number."""
        self._wide = [at for at, code in enumerate(kept.codes[self._first - 3 :]) if code == _WIDE]
        place = {"¤n": 0} | {name: at for at, (_, _, name) in enumerate(fed, 1)}
        read = {measure[0]: measure for measure in measures}
        end = layout_of(view, len(view.places))
        self._measures: list[tuple[int, bool, str, int, int | None, int, int]] = []
        for column, source in shown:
            if source not in names:
                at = end.names.index(column)
                _, function, _, counts, total, least, most = read[source]
                sums = place[total] if total else None
                self._measures.append((at, end.codes[at] == _WIDE, function, place[counts], sums, least, most))
        self._reading: _Reading | None = None

    def changes(
        self, table: Table, before: Iterable[bytes], after: Iterable[bytes], lying: AtHand
    ) -> list[Rewritten] | None:
        """What changed rows, as they were and are (empty: none), do to the state and to the view; None if that is left
        to others: what does not fit, is damaged, or was written before a column was added."""
        at_hand: dict[Any, _Group] = lying.at_hand.pop(self._view.id, {})
        try:
            deltas = self._deltas(self._read(table), before, after)
            new = self._looked_up(table, [group for group in deltas if group not in at_hand], lying)
            changed = self._step([(at_hand.get(group) or new[group], delta) for group, delta in deltas.items()])
        except (_DoesNotFit, OtherColumns, OverflowError, struct.error):
            return None
        if len(at_hand) + len(new) > _MOST:
            at_hand.clear()
        at_hand |= {group: found for group, found in new.items() if found.size <= _LONGEST}
        lying.at_hand[self._view.id] = at_hand
        return changed

    def _read(self, table: Table) -> _Reading:
        """Worked out once for a table as it is."""
        if self._reading is None or self._reading.table is not table:
            compared = [str(condition.args[0].value) for condition in self._conditions]
            reader = SlotReader(table, [*self._keys, *(source for _, source, _ in self._fed), *compared])
            places = reader.places
            strings = any(condition.args[0].type == types.STRING for condition in self._conditions)
            group_in = None if strings or len(self._keys) > 1 else reader.column(self._keys[0])
            group_of = itemgetter(*(places[name] for name in self._keys))
            tests = [_test(condition, places) for condition in self._conditions]
            fed = [(at, places[source], kind) for at, (kind, source, _) in enumerate(self._fed, 1)]
            counted = [(at, source) for at, source, kind in fed if kind == "count"]
            summed = [(at, source, kind == "double") for at, source, kind in fed if kind != "count"]
            self._reading = _Reading(table, reader, group_of, group_in, tests, counted, summed)
        return self._reading

    def _deltas(self, how: _Reading, before: Iterable[bytes], after: Iterable[bytes]) -> dict[Any, list[int]]:
        """What the rows add to the numbers of each group that they are in."""
        read, unpack, clean = how.reader.read, how.reader.unpack, how.reader.clean
        group_of, group_in, tests, counted, summed = how.group_of, how.group_in, how.tests, how.counted, how.summed
        nothing = [0] * (1 + len(self._fed))
        deltas: dict[Any, list[int]] = {}
        for weight, rows in ((-1, before), (1, after)):
            for row in filter(None, rows):
                slots: Slots = unpack(row) if group_in is not None else _UNREAD
                quick = slots[0] == clean
                if not quick:
                    slots = read(row)
                if tests and not all(test(slots) for test in tests):
                    continue
                group = group_in(row, slots) if quick and group_in is not None else group_of(slots)
                delta = deltas.get(group)
                if delta is None:
                    delta = deltas[group] = nothing.copy()
                delta[0] += weight
                for at, source in counted:
                    if slots[source] is not None:
                        delta[at] += weight
                for at, source, double in summed:
                    if (value := slots[source]) is not None:
                        delta[at] += weight * value
                        if double and not -_EXACT <= value <= _EXACT:
                            raise _DoesNotFit
        return deltas

    def _looked_up(self, table: Table, groups: Sequence[Any], lying: AtHand) -> dict[Any, _Group]:
        """Groups as the store has them."""
        if not groups:
            return {}
        kinds = [table.by_name[name.lower()].type for name in self._keys]
        columns = zip(*groups, strict=True) if len(kinds) > 1 else [groups]
        values = [[plain(kind, slot) for slot in column] for kind, column in zip(kinds, columns, strict=True)]
        named = [dict(zip(self._names, row, strict=True)) for row in zip(*values, strict=True)]
        shown = [{column: row[source] for column, source in self._grouping} for row in named]
        both = zip(self._rows(self._state, named, lying), self._rows(self._view, shown, lying), strict=True)
        return {group: self._group(state, view) for group, (state, view) in zip(groups, both, strict=True)}

    def _rows(self, table: Table, named: Sequence[Mapping[str, Any]], lying: AtHand) -> Iterable[_Row]:
        keys = [plain_key(table, row) for row in named]
        for key, known, row in zip(keys, lying.each(table, keys), named, strict=True):
            found = _Row(table, key, known, known or encode_plain(table, row))
            found.nulls &= self._named[table.id]  # its numbers are given, or said to be NULL, when it is packed
            yield found

    def _group(self, state: _Row, view: _Row) -> _Group:
        numbers: list[Any] = state.slots[self._first :] if state.known else [0] * (1 + len(self._fed))
        for at in self._wide if state.known else ():
            numbers[at] = int.from_bytes(numbers[at], "little", signed=True)
        return _Group(state, view, numbers)

    def _step(self, groups: Sequence[tuple[_Group, Sequence[int]]]) -> list[Rewritten]:
        """Add to the numbers of groups; what becomes of their rows."""
        kept: Rewritten = (self._state, [], [], [])
        shown: Rewritten = (self._view, [], [], [])
        pack, pack_shown = (layout_of(t, len(t.places)).form.pack for t in (self._state, self._view))
        for group, delta in groups:
            group.numbers = numbers = list(map(add, group.numbers, delta))
            if numbers[0] < 0:
                raise _DoesNotFit
            row = group.state
            row.slots[self._first :] = numbers
            for at in self._wide:
                row.slots[self._first + at] = numbers[at].to_bytes(16, "little", signed=True)
            _put(pack, kept, row, any(numbers))
            row = group.view
            for at, wide, function, counts, total, least, most in self._measures:
                value: Any = numbers[counts]
                if total is not None:
                    bit = 1 << at
                    row.nulls = row.nulls & ~bit if value else row.nulls | bit
                    value = _read_sum(function, value, numbers[total], least, most) if value else 0
                row.slots[3 + at] = value.to_bytes(16, "little", signed=True) if wide else value
            _put(pack_shown, shown, row, numbers[0] > 0)
        return [shown, kept]


def _put(pack: Callable[..., bytes], rewritten: Rewritten, row: _Row, there: bool) -> None:
    """Note what becomes of a row."""
    _, keys, before, after = rewritten
    keys.append(row.key)
    before.append(row.known)
    row.known = row.packed(pack) if there else b""
    after.append(row.known)


def _bits(table: Table, names: Sequence[str]) -> int:
    """Of these columns, those that say that they are NULL."""
    columns = layout_of(table, len(table.places)).names
    return sum(1 << columns.index(name) for name in names)


def _read_sum(function: str, count: int, total: int, least: int, most: int) -> Any:
    if function == "Average":
        return float(total) / count
    if not least <= total <= most:
        raise _DoesNotFit
    return total


def _test(condition: Expr, places: Mapping[str, int]) -> Callable[[Slots], bool]:
    """As Spark compares: strings by their bytes; a comparison with NULL does not pass."""
    column = condition.args[0]
    at = places[str(column.value)]
    if condition.op == "IsNotNull":
        return lambda slots: slots[at] is not None
    compare, literal = COMPARED[condition.op], condition.args[1].value
    value = str(literal).encode() if column.type == types.STRING else literal
    return lambda slots: slots[at] is not None and compare(slots[at], value)
