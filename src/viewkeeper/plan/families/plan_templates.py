"""Plan templates: derive the plan of a query from the plans of queries that differ only in constants.

    first    text ──▶ Catalyst ──▶ plan           an example: its template, its constants, its plan
    second   other constants ──▶ Catalyst         confirms that each literal of the plan is a constant, or is fixed
    third    other constants                      are put into the plan of the example, without Catalyst

The origin of a literal in the plan is not guessed: all constants that give its value in every example remain
candidates. If the candidates give different values for a new text, Catalyst plans it, and the new example excludes some
of them. A constant that was equal in all examples is not known to affect the plan, so its value must match.
`text_templates` defines which constants may vary, and in what they must agree (digits, range, order); texts that do not
agree have separate examples. Views of the catalog serve as examples, too, so a new process need not ask Catalyst again.
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
"""Number of a catalog's newest views in which examples are searched."""


@dataclass
class _PlanTemplate:
    """For one text template: the plan of its first example, and what further examples have shown."""

    plan: Any
    """As JSON, with the values of literals left out."""
    values: list[Any]
    types: list[str]
    candidates: list[frozenset[int]]
    first_constants: tuple[Constant, ...]
    tables: tuple[Table, ...]
    variable_constants: frozenset[int] = frozenset()
    """Indexes of the constants that differed in another example."""
    is_contradictory: bool = False
    family_templates: dict[tuple[str, ...], _ParameterLiterals | None] = field(default_factory=dict)
    """By key: the query as a family member, and which literals are its parameters; None if it must stay separate."""


@dataclass(frozen=True)
class _ParameterLiterals:
    """`parameters`: by parameter, the index of its literal in the plan; `fixed_values`: index and value of the
    others."""

    template: QueryTemplate
    parameters: tuple[int, ...]
    fixed_values: tuple[tuple[int, Any], ...]


@dataclass
class TemplateCache:
    """The plan templates of one database, in this process."""

    _templates: OrderedDict[Any, _PlanTemplate] = field(default_factory=OrderedDict)
    _learned_views: set[int] = field(default_factory=set)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def find(self, text: str, catalog: Catalog) -> Query | None:
        """Return the plan of a query if it follows from examples.

        If None, ask Catalyst and call `learn` with the answer.
        """
        match = self._match(text, catalog)
        return None if match is None else _query_from_json(match[0].plan, match[1])

    def find_member(self, text: str, catalog: Catalog, key: tuple[str, ...]) -> QueryTemplate | None:
        """Return a query as a family member if this follows from examples, without building its plan; else None."""
        match = self._match(text, catalog)
        if match is None:
            return None
        plan_template, values = match
        if key not in plan_template.family_templates:
            plan_template.family_templates[key] = _find_parameters(plan_template, values, key)
        literals = plan_template.family_templates[key]
        if literals is None or any(values[i] != value for i, value in literals.fixed_values):
            return (
                make_query_template(_query_from_json(plan_template.plan, values), key) if literals is not None else None
            )
        return literals.template.with_values([values[i] for i in literals.parameters])

    def _match(self, text: str, catalog: Catalog) -> tuple[_PlanTemplate, list[Any]] | None:
        """Return the plan template of a query and the values of the plan's literals, else None."""
        template = extract_template(text)
        if template is None:
            return None
        tables = _named_tables(template, catalog)
        with self._lock:
            plan_template = self._templates.get(template.key)
            if plan_template is None or plan_template.tables != tables:
                self._learn_from_catalog(catalog)
                plan_template = self._templates.get(template.key)
            if plan_template is None or plan_template.is_contradictory or plan_template.tables != tables:
                return None
            self._templates.move_to_end(template.key)
            values = _literal_values(plan_template, template.constants)
        return None if values is None else (plan_template, values)

    def learn(self, text: str, catalog: Catalog, query: Query) -> None:
        """Record Catalyst's plan of a text as an example."""
        template = extract_template(text)
        if template is not None:
            with self._lock:
                self._add_example(template, _named_tables(template, catalog), _query_to_json(query))

    def _learn_from_catalog(self, catalog: Catalog) -> None:
        """Use existing views as examples.

        The names in their texts must be unambiguous, whatever columns were added since.
        """
        for view in _newest_views(catalog, _MAX_SCANNED_VIEWS):
            if view.table.id in self._learned_views:
                continue
            self._learned_views.add(view.table.id)
            # with `text_names` the text's names have another meaning today
            template = None if view.text_names else extract_template(view.query)
            if template is None:
                continue
            tables = _named_tables(template, catalog)
            if view.reads <= {t.id for t in tables} and not _has_ambiguous_names(template, tables):
                plan = json.loads(json.dumps({"root": view.plan["root"], "output": view.plan["output"]}))
                self._add_example(template, tables, plan)

    def _add_example(self, template: TextTemplate, tables: tuple[Table, ...], plan: Any) -> None:
        values: list[Any] = []
        types: list[str] = []
        blanked = _blank_literals(plan, values, types)
        existing = self._templates.get(template.key)
        if existing is None or existing.tables != tables:
            candidates = [_candidate_constants(template.constants, t, v) for t, v in zip(types, values, strict=True)]
            self._templates[template.key] = _PlanTemplate(
                blanked, values, types, candidates, template.constants, tables
            )
            if len(self._templates) > _MAX_TEMPLATES:
                self._templates.popitem(last=False)
            return
        if existing.plan != blanked or existing.types != types:
            existing.is_contradictory = True
            return
        for index, (type_, value) in enumerate(zip(types, values, strict=True)):
            remaining = existing.candidates[index] & _candidate_constants(template.constants, type_, value)
            if not remaining and value != existing.values[index]:
                existing.is_contradictory = True
                return
            existing.candidates[index] = remaining
        existing.variable_constants |= _changed_constants(existing, template.constants)


def _find_parameters(
    plan_template: _PlanTemplate, values: list[Any], key: tuple[str, ...]
) -> _ParameterLiterals | None:
    """Find which literals of a plan are parameters: plan it with the index of each literal as its value."""
    sample = make_query_template(_query_from_json(plan_template.plan, values), key)
    texts = [_is_text(t) for t in plan_template.types]
    numbered = make_query_template(
        _query_from_json(plan_template.plan, [str(i) if texts[i] else i for i in range(len(values))]), key
    )
    if sample is None or numbered is None or len(sample.values) != len(numbered.values):
        return None
    parameters = tuple(int(v) for v in numbered.values)
    fixed_values = tuple((i, v) for i, v in enumerate(values) if i not in parameters)
    return _ParameterLiterals(sample, parameters, fixed_values)


def _is_text(name: str) -> bool:
    """Whether literals of a type are stored as text."""
    type_ = parse_type(name)
    return type_ in (STRING, BINARY) or is_float(type_) or bool(decimal_digits(type_))


def _literal_values(plan_template: _PlanTemplate, constants: tuple[Constant, ...]) -> list[Any] | None:
    """Return the literals of the plan for these constants; None if the examples do not determine them."""
    changed = _changed_constants(plan_template, constants)
    relevant = frozenset[int]().union(*plan_template.candidates)
    if not changed <= plan_template.variable_constants & relevant:
        return None
    literals: list[Any] = []
    for type_, value, candidates in zip(
        plan_template.types, plan_template.values, plan_template.candidates, strict=True
    ):
        candidate_values = [constants[i].as_literal(parse_type(type_)) for i in candidates]
        if any(g is None or g != candidate_values[0] for g in candidate_values):
            return None
        literals.append(candidate_values[0] if candidate_values else value)
    return literals


def _changed_constants(plan_template: _PlanTemplate, constants: tuple[Constant, ...]) -> frozenset[int]:
    pairs = enumerate(zip(plan_template.first_constants, constants, strict=True))
    return frozenset(i for i, (first, constant) in pairs if first.value != constant.value)


def _candidate_constants(constants: tuple[Constant, ...], type_: str, value: Any) -> frozenset[int]:
    if value is None or isinstance(value, bool):
        return frozenset()
    return frozenset(i for i, c in enumerate(constants) if c.as_literal(parse_type(type_)) == value)


def _named_tables(template: TextTemplate, catalog: Catalog) -> tuple[Table, ...]:
    """Return the tables and views that the text may name, in the order of their names."""
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
