"""Queries that differ in constants have one plan: the second text needs Catalyst to check that, the third needs none.

    first    text ──▶ Catalyst ──▶ plan           an example: its template, its constants, its plan
    second   other constants ──▶ Catalyst         every literal of the plan is one of the constants in both, or the same
    third    other constants                      put into the plan of the example

What a literal of the plan comes from is not guessed but kept open: all constants that give its value in every example
are candidates, and where those give different values for a new text, the text goes the long way, which rules some out.
A constant that was the same in all examples is not known to matter, and stays as it is. `constants` says which ones
may be others at all, and in what they must be alike (digits, range, order); texts that are not alike have examples of
their own. Views of the catalog are examples too, so a new process need not ask Catalyst again.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from viewkeeper.model.catalog.catalog import Catalog, View
from viewkeeper.model.schema import Column, Table, column_of
from viewkeeper.model.types import BINARY, STRING, decimal_digits, is_float, of
from viewkeeper.plan.families.detect import Opened, opened
from viewkeeper.plan.families.text_templates import Constant, Template, template_of
from viewkeeper.plan.logical import nodes
from viewkeeper.plan.logical.nodes import Query

_KEPT = 1000
_LOOKED_AT = 500
"""Views of a catalog, the newest, among which examples are looked for."""


@dataclass
class _Known:
    """Of one template: the plan of its first example, and what the others have shown."""

    plan: Any
    """As JSON, with a place number instead of each literal's value."""
    values: list[Any]
    types: list[str]
    candidates: list[frozenset[int]]
    first: tuple[Constant, ...]
    tables: tuple[Table, ...]
    varied: frozenset[int] = frozenset()
    """The constants that were others in another example."""
    broken: bool = False
    opened: dict[tuple[str, ...], _Places | None] = field(default_factory=dict)
    """By key: as the plan of members of a family, and which literals stand open in it."""


@dataclass(frozen=True)
class _Places:
    """`open_`: for each parameter the literal that it is, of the plan's; `fixed`: what the others are."""

    sample: Opened
    open_: tuple[int, ...]
    fixed: tuple[tuple[int, Any], ...]


@dataclass
class Templates:
    """What is known of the queries of one database, in this process."""

    _known: OrderedDict[Any, _Known] = field(default_factory=OrderedDict)
    _seen: set[int] = field(default_factory=set)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def find(self, text: str, catalog: Catalog) -> Query | None:
        """The plan of a query, if it follows from others; None: ask Catalyst, and let this learn from the answer."""
        found = self._literals(text, catalog)
        return None if found is None else _query(found[0].plan, found[1])

    def member(self, text: str, catalog: Catalog, key: tuple[str, ...]) -> Opened | None:
        """A query as a member of a family, if it follows from others and is one. No plan is made for it."""
        found = self._literals(text, catalog)
        if found is None:
            return None
        known, values = found
        if key not in known.opened:
            known.opened[key] = _places(known, values, key)
        places = known.opened[key]
        if places is None or any(values[i] != value for i, value in places.fixed):
            return opened(_query(known.plan, values), key) if places is not None else None
        return places.sample.having([values[i] for i in places.open_])

    def _literals(self, text: str, catalog: Catalog) -> tuple[_Known, list[Any]] | None:
        """What is known of a query's template, and the literals of its plan."""
        template = template_of(text)
        if template is None:
            return None
        tables = _tables(template, catalog)
        with self._lock:
            known = self._known.get(template.key)
            if known is None or known.tables != tables:
                self._look(catalog)
                known = self._known.get(template.key)
            if known is None or known.broken or known.tables != tables:
                return None
            self._known.move_to_end(template.key)
            values = _values(known, template.constants)
        return None if values is None else (known, values)

    def learn(self, text: str, catalog: Catalog, query: Query) -> None:
        """What Catalyst made of a text."""
        template = template_of(text)
        if template is not None:
            with self._lock:
                self._add(template, _tables(template, catalog), _said(query))

    def _look(self, catalog: Catalog) -> None:
        """Views that are there are examples: of texts whose names mean one thing, whatever columns came since."""
        for view in _newest(catalog, _LOOKED_AT):
            if view.table.id in self._seen:
                continue
            self._seen.add(view.table.id)
            template = None if view.names else template_of(view.query)  # what they mean now is another query
            if template is None:
                continue
            tables = _tables(template, catalog)
            if view.reads <= {t.id for t in tables} and not _ambiguous(template, tables):
                plan = json.loads(json.dumps({"root": view.plan["root"], "output": view.plan["output"]}))
                self._add(template, tables, plan)

    def _add(self, template: Template, tables: tuple[Table, ...], plan: Any) -> None:
        values: list[Any] = []
        types: list[str] = []
        blank = _blanked(plan, values, types)
        known = self._known.get(template.key)
        if known is None or known.tables != tables:
            candidates = [_candidates(template.constants, t, v) for t, v in zip(types, values, strict=True)]
            self._known[template.key] = _Known(blank, values, types, candidates, template.constants, tables)
            if len(self._known) > _KEPT:
                self._known.popitem(last=False)
            return
        if known.plan != blank or known.types != types:
            known.broken = True
            return
        for place, (type_, value) in enumerate(zip(types, values, strict=True)):
            left = known.candidates[place] & _candidates(template.constants, type_, value)
            if not left and value != known.values[place]:
                known.broken = True
                return
            known.candidates[place] = left
        known.varied |= _other(known, template.constants)


def _places(known: _Known, values: list[Any], key: tuple[str, ...]) -> _Places | None:
    """Which literals of a plan stand open: found by giving each its own number for a value."""
    sample = opened(_query(known.plan, values), key)
    texts = [_is_text(t) for t in known.types]
    numbered = opened(_query(known.plan, [str(i) if texts[i] else i for i in range(len(values))]), key)
    if sample is None or numbered is None or len(sample.values) != len(numbered.values):
        return None
    open_ = tuple(int(v) for v in numbered.values)
    fixed = tuple((i, v) for i, v in enumerate(values) if i not in open_)
    return _Places(sample, open_, fixed)


def _is_text(name: str) -> bool:
    """Whether literals of a type are kept as text."""
    type_ = of(name)
    return type_ in (STRING, BINARY) or is_float(type_) or bool(decimal_digits(type_))


def _values(known: _Known, constants: tuple[Constant, ...]) -> list[Any] | None:
    """The literals of the plan for these constants, if all is shown that it takes."""
    other = _other(known, constants)
    matters = frozenset[int]().union(*known.candidates)
    if not other <= known.varied & matters:
        return None
    found: list[Any] = []
    for type_, value, candidates in zip(known.types, known.values, known.candidates, strict=True):
        given = [constants[i].rendered(of(type_)) for i in candidates]
        if any(g is None or g != given[0] for g in given):
            return None
        found.append(given[0] if given else value)
    return found


def _other(known: _Known, constants: tuple[Constant, ...]) -> frozenset[int]:
    pairs = enumerate(zip(known.first, constants, strict=True))
    return frozenset(i for i, (first, now) in pairs if first.value != now.value)


def _candidates(constants: tuple[Constant, ...], type_: str, value: Any) -> frozenset[int]:
    if value is None or isinstance(value, bool):
        return frozenset()
    return frozenset(i for i, c in enumerate(constants) if c.rendered(of(type_)) == value)


def _tables(template: Template, catalog: Catalog) -> tuple[Table, ...]:
    """The tables and views that the text may name, by their names."""
    found = (catalog.find(word) for word in sorted(template.words))
    return tuple(f.table if isinstance(f, View) else f for f in found if f is not None)


def _ambiguous(template: Template, tables: tuple[Table, ...]) -> bool:
    names = [name for table in tables for name in table.by_name]
    return any(names.count(word) > 1 for word in template.words)


def _newest(catalog: Catalog, most: int) -> Iterable[View]:
    return sorted(catalog.views, key=lambda v: v.table.id, reverse=True)[:most]


# -- plans as JSON -----------------------------------------------------------------------------------------------------


def _said(query: Query) -> Any:
    output = [[name, c.name, str(c.type), c.nullable] for name, c in query.output]
    return json.loads(json.dumps({"root": nodes.node_to_json(query.root), "output": output}))


def _query(plan: Any, values: list[Any]) -> Query:
    filled = _filled(plan, iter(values))
    output: tuple[tuple[str, Column], ...] = tuple((name, column_of(c)) for name, *c in filled["output"])
    return Query(nodes.node_from_json(filled["root"]), output)


def _is_literal(data: Any) -> bool:
    return isinstance(data, list) and len(data) == 5 and data[0] == "literal" and data[2] == []


def _blanked(data: Any, values: list[Any], types: list[str]) -> Any:
    if _is_literal(data):
        types.append(data[1])
        values.append(data[3])
        return ["literal", data[1], [], None, data[4]]
    if isinstance(data, list):
        return [_blanked(d, values, types) for d in data]
    if isinstance(data, Mapping):
        return {k: _blanked(v, values, types) for k, v in data.items()}
    return data


def _filled(data: Any, values: Iterator[Any]) -> Any:
    if _is_literal(data):
        return [*data[:3], next(values), data[4]]
    if isinstance(data, list):
        return [_filled(d, values) for d in data]
    if isinstance(data, Mapping):
        return {k: _filled(v, values) for k, v in data.items()}
    return data
