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
from viewkeeper.model.schema import Column, Table, column_from_json
from viewkeeper.model.types import BINARY, STRING, decimal_digits, is_float, parse_type
from viewkeeper.plan.families.detect import QueryTemplate, make_query_template
from viewkeeper.plan.families.text_templates import Constant, TextTemplate, extract_template
from viewkeeper.plan.logical import nodes
from viewkeeper.plan.logical.nodes import Query

_MAX_TEMPLATES = 1000
_MAX_SCANNED_VIEWS = 500
"""Views of a catalog, the newest, among which examples are looked for."""


@dataclass
class _PlanTemplate:
    """Of one template: the plan of its first example, and what the others have shown."""

    plan: Any
    """As JSON, with a place number instead of each literal's value."""
    values: list[Any]
    types: list[str]
    candidates: list[frozenset[int]]
    first_constants: tuple[Constant, ...]
    tables: tuple[Table, ...]
    variable_constants: frozenset[int] = frozenset()
    """The constants that were others in another example."""
    is_contradictory: bool = False
    family_templates: dict[tuple[str, ...], _ParameterLiterals | None] = field(default_factory=dict)
    """By key: as the plan of members of a family, and which literals stand open in it."""


@dataclass(frozen=True)
class _ParameterLiterals:
    """`open_`: for each parameter the literal that it is, of the plan's; `fixed`: what the others are."""

    template: QueryTemplate
    parameters: tuple[int, ...]
    fixed_values: tuple[tuple[int, Any], ...]


@dataclass
class TemplateCache:
    """What is known of the queries of one database, in this process."""

    _templates: OrderedDict[Any, _PlanTemplate] = field(default_factory=OrderedDict)
    _learned_views: set[int] = field(default_factory=set)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def find(self, text: str, catalog: Catalog) -> Query | None:
        """The plan of a query, if it follows from others; None: ask Catalyst, and let this learn from the answer."""
        found = self._match(text, catalog)
        return None if found is None else _query_from_json(found[0].plan, found[1])

    def find_member(self, text: str, catalog: Catalog, key: tuple[str, ...]) -> QueryTemplate | None:
        """A query as a member of a family, if it follows from others and is one. No plan is made for it."""
        found = self._match(text, catalog)
        if found is None:
            return None
        known, values = found
        if key not in known.family_templates:
            known.family_templates[key] = _find_parameters(known, values, key)
        places = known.family_templates[key]
        if places is None or any(values[i] != value for i, value in places.fixed_values):
            return make_query_template(_query_from_json(known.plan, values), key) if places is not None else None
        return places.template.with_values([values[i] for i in places.parameters])

    def _match(self, text: str, catalog: Catalog) -> tuple[_PlanTemplate, list[Any]] | None:
        """What is known of a query's template, and the literals of its plan."""
        template = extract_template(text)
        if template is None:
            return None
        tables = _named_tables(template, catalog)
        with self._lock:
            known = self._templates.get(template.key)
            if known is None or known.tables != tables:
                self._learn_from_catalog(catalog)
                known = self._templates.get(template.key)
            if known is None or known.is_contradictory or known.tables != tables:
                return None
            self._templates.move_to_end(template.key)
            values = _literal_values(known, template.constants)
        return None if values is None else (known, values)

    def learn(self, text: str, catalog: Catalog, query: Query) -> None:
        """What Catalyst made of a text."""
        template = extract_template(text)
        if template is not None:
            with self._lock:
                self._add_example(template, _named_tables(template, catalog), _query_to_json(query))

    def _learn_from_catalog(self, catalog: Catalog) -> None:
        """Views that are there are examples: of texts whose names mean one thing, whatever columns came since."""
        for view in _newest_views(catalog, _MAX_SCANNED_VIEWS):
            if view.table.id in self._learned_views:
                continue
            self._learned_views.add(view.table.id)
            template = None if view.text_names else extract_template(view.query)  # what they mean now is another query
            if template is None:
                continue
            tables = _named_tables(template, catalog)
            if view.reads <= {t.id for t in tables} and not _has_ambiguous_names(template, tables):
                plan = json.loads(json.dumps({"root": view.plan["root"], "output": view.plan["output"]}))
                self._add_example(template, tables, plan)

    def _add_example(self, template: TextTemplate, tables: tuple[Table, ...], plan: Any) -> None:
        values: list[Any] = []
        types: list[str] = []
        blank = _blank_literals(plan, values, types)
        known = self._templates.get(template.key)
        if known is None or known.tables != tables:
            candidates = [_candidate_constants(template.constants, t, v) for t, v in zip(types, values, strict=True)]
            self._templates[template.key] = _PlanTemplate(blank, values, types, candidates, template.constants, tables)
            if len(self._templates) > _MAX_TEMPLATES:
                self._templates.popitem(last=False)
            return
        if known.plan != blank or known.types != types:
            known.is_contradictory = True
            return
        for place, (type_, value) in enumerate(zip(types, values, strict=True)):
            left = known.candidates[place] & _candidate_constants(template.constants, type_, value)
            if not left and value != known.values[place]:
                known.is_contradictory = True
                return
            known.candidates[place] = left
        known.variable_constants |= _changed_constants(known, template.constants)


def _find_parameters(
    plan_template: _PlanTemplate, values: list[Any], key: tuple[str, ...]
) -> _ParameterLiterals | None:
    """Which literals of a plan stand open: found by giving each its own number for a value."""
    sample = make_query_template(_query_from_json(plan_template.plan, values), key)
    texts = [_is_text(t) for t in plan_template.types]
    numbered = make_query_template(
        _query_from_json(plan_template.plan, [str(i) if texts[i] else i for i in range(len(values))]), key
    )
    if sample is None or numbered is None or len(sample.values) != len(numbered.values):
        return None
    open_ = tuple(int(v) for v in numbered.values)
    fixed = tuple((i, v) for i, v in enumerate(values) if i not in open_)
    return _ParameterLiterals(sample, open_, fixed)


def _is_text(name: str) -> bool:
    """Whether literals of a type are kept as text."""
    type_ = parse_type(name)
    return type_ in (STRING, BINARY) or is_float(type_) or bool(decimal_digits(type_))


def _literal_values(plan_template: _PlanTemplate, constants: tuple[Constant, ...]) -> list[Any] | None:
    """The literals of the plan for these constants, if all is shown that it takes."""
    other = _changed_constants(plan_template, constants)
    matters = frozenset[int]().union(*plan_template.candidates)
    if not other <= plan_template.variable_constants & matters:
        return None
    found: list[Any] = []
    for type_, value, candidates in zip(
        plan_template.types, plan_template.values, plan_template.candidates, strict=True
    ):
        given = [constants[i].as_literal(parse_type(type_)) for i in candidates]
        if any(g is None or g != given[0] for g in given):
            return None
        found.append(given[0] if given else value)
    return found


def _changed_constants(plan_template: _PlanTemplate, constants: tuple[Constant, ...]) -> frozenset[int]:
    pairs = enumerate(zip(plan_template.first_constants, constants, strict=True))
    return frozenset(i for i, (first, now) in pairs if first.value != now.value)


def _candidate_constants(constants: tuple[Constant, ...], type_: str, value: Any) -> frozenset[int]:
    if value is None or isinstance(value, bool):
        return frozenset()
    return frozenset(i for i, c in enumerate(constants) if c.as_literal(parse_type(type_)) == value)


def _named_tables(template: TextTemplate, catalog: Catalog) -> tuple[Table, ...]:
    """The tables and views that the text may name, by their names."""
    found = (catalog.find(word) for word in sorted(template.words))
    return tuple(f.table if isinstance(f, View) else f for f in found if f is not None)


def _has_ambiguous_names(template: TextTemplate, tables: tuple[Table, ...]) -> bool:
    names = [name for table in tables for name in table.by_name]
    return any(names.count(word) > 1 for word in template.words)


def _newest_views(catalog: Catalog, limit: int) -> Iterable[View]:
    return sorted(catalog.views, key=lambda v: v.table.id, reverse=True)[:limit]


# -- plans as JSON -----------------------------------------------------------------------------------------------------


def _query_to_json(query: Query) -> Any:
    output = [[name, c.name, str(c.type), c.nullable] for name, c in query.output]
    return json.loads(json.dumps({"root": nodes.node_to_json(query.root), "output": output}))


def _query_from_json(plan: Any, values: list[Any]) -> Query:
    filled = _fill_literals(plan, iter(values))
    output: tuple[tuple[str, Column], ...] = tuple((name, column_from_json(c)) for name, *c in filled["output"])
    return Query(nodes.node_from_json(filled["root"]), output)


def _is_literal(data: Any) -> bool:
    return isinstance(data, list) and len(data) == 5 and data[0] == "literal" and data[2] == []


def _blank_literals(data: Any, values: list[Any], types: list[str]) -> Any:
    if _is_literal(data):
        types.append(data[1])
        values.append(data[3])
        return ["literal", data[1], [], None, data[4]]
    if isinstance(data, list):
        return [_blank_literals(d, values, types) for d in data]
    if isinstance(data, Mapping):
        return {k: _blank_literals(v, values, types) for k, v in data.items()}
    return data


def _fill_literals(data: Any, values: Iterator[Any]) -> Any:
    if _is_literal(data):
        return [*data[:3], next(values), data[4]]
    if isinstance(data, list):
        return [_fill_literals(d, values) for d in data]
    if isinstance(data, Mapping):
        return {k: _fill_literals(v, values) for k, v in data.items()}
    return data
