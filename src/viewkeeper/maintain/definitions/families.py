"""View families: views that differ only in constants become members of a family instead of separate views.

    CREATE … v1 AS … x < 5      ┐            family   SELECT p.*, b.* FROM parameters p, (… x < p.¤p0) b
    CREATE … v2 AS … x < 7      ├─ assign ─▶ parameters   5, 7, …
    …                           ┘            v1 = the rows of the family whose keys begin with 5

A family is an ordinary view over an ordinary table of parameters (`plan.families`). Both have names that users do not
see. Users see the members: a name, the text as written, and a part of the family's rows. A member is identified by the
prefix of its rows' encoded keys, so equal views are two names of one part.

A cost model decides when a family is created (`plan.families.cost`): from about twenty or thirty different views of one
template on, and from more if many are equal. Fewer views are loaded faster separately, with shared paths. Existing
views stay separate; new ones join the family. If a member needs something that a family does not support (an index,
views over it, a cut or an option of its own), it leaves the family: `Definer.detach_member`.

Order of steps: the parameters are written first, the members' catalog entries last. A crash leaves parameters without a
member, which have no visible effect; `sweep_parameters` deletes them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, field, replace
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa

from viewkeeper import failpoints
from viewkeeper.commit.deferred_cleanup import DeferredCleanup
from viewkeeper.errors import Unsupported
from viewkeeper.maintain.definitions.new_views import reserve_ids
from viewkeeper.model import types
from viewkeeper.model.catalog.catalog import Catalog, View
from viewkeeper.model.encoding.keys import encode_keys, encode_plain_column
from viewkeeper.model.schema import FIRST_NAME_OPTION, HIDDEN_PARAMETERS, KeyPart, Table
from viewkeeper.plan.compile.compiler import ViewPlan
from viewkeeper.plan.dataflow.cache import CatalogPlans
from viewkeeper.plan.families.cost import is_family_cheaper
from viewkeeper.plan.families.detect import QueryTemplate
from viewkeeper.plan.families.lift import lift
from viewkeeper.plan.logical.nodes import Query, Scan, Sort
from viewkeeper.plan.planner import dry_run_operators, plan_view
from viewkeeper.store.contract.store import Store
from viewkeeper.syntax.family_text import FAMILY_OPTION, parameter_table_name
from viewkeeper.syntax.statements import CreateView
from viewkeeper.syntax.view_text import current_names

MEMBER_PLAN = "member"
"""Key in a family's stored plan for the plan of one member, with parameters in place of its constants."""
_DECIMAL_CONTEXT = Context(prec=60)
_MAX_SINGLE_LOOKUPS = 8
"""Up to this many members are looked up one by one; for more, the set of all key prefixes is built first."""


@dataclass(frozen=True)
class MemberCandidate:
    """A statement whose view may become a family member."""

    statement: CreateView
    query_template: QueryTemplate
    view_id: int
    """The reserved id of the view."""


@dataclass
class FamilyAssignment:
    """New families with their parameter tables, new members, and candidates that remain separate views."""

    families: list[View] = field(default_factory=list)
    members: list[View] = field(default_factory=list)
    parameter_rows: dict[int, tuple[Table, list[View]]] = field(default_factory=dict)
    """By id of the parameter table: the table, and the members whose values are written to it."""
    standalone: list[MemberCandidate] = field(default_factory=list)


def assign_families(
    store: Store, catalog: Catalog, candidates: Sequence[MemberCandidate], sizes: Mapping[int, int]
) -> FamilyAssignment:
    """Assign candidates to existing or new families, or to none. Nothing is written."""
    assignment = FamilyAssignment()
    groups: dict[str, list[MemberCandidate]] = {}
    for candidate in candidates:
        groups.setdefault(candidate.query_template.template_key, []).append(candidate)
    for template, group in groups.items():
        family = _find_or_plan_family(store, catalog, template, group, sizes)
        if family is None:
            assignment.standalone += group
            continue
        view, parameters = family
        if view.table.id not in catalog.views_by_id:
            assignment.families.append(view)
        tables = [catalog.find_table_by_id(number) for number in sorted(view.reads - {parameters.id})]
        names = tuple(current_names(table) for table in tables if table is not None)
        members = [replace(_make_member(view, parameters, candidate), text_names=names) for candidate in group]
        assignment.members += members
        assignment.parameter_rows[parameters.id] = (parameters, members)
    return assignment


def _find_or_plan_family(
    store: Store, catalog: Catalog, template: str, group: Sequence[MemberCandidate], sizes: Mapping[int, int]
) -> tuple[View, Table] | None:
    similar = catalog.templates.get(template, ())
    if similar and similar[-1].is_hidden_family:
        view = similar[-1]
        return None if view.suspended is not None else (view, catalog.tables_by_id[view.parameter_table_id])
    rows = sum(sizes.get(node.table, 0) for node in group[0].query_template.query.root.walk() if isinstance(node, Scan))
    different = len({candidate.query_template.values for candidate in group}) + len(similar)
    if not is_family_cheaper(len(group) + len(similar), different, rows):
        return None
    with suppress(Unsupported):
        return _plan_family(store, catalog, group[0], sizes)
    return None


def _plan_family(
    store: Store, catalog: Catalog, sample: MemberCandidate, sizes: Mapping[int, int]
) -> tuple[View, Table] | None:
    """Plan a family for views like this one; None if the family's rows would not be the union of its members' rows."""
    number = reserve_ids(store, 2)
    name = f"_family_{number}"
    while catalog.find(name) is not None or catalog.find(parameter_table_name(name)) is not None:
        name += "_"
    template, key = sample.query_template, sample.statement.key
    names = [c.name for c in template.parameters]
    options = ((FAMILY_OPTION, name), (HIDDEN_PARAMETERS, "true"))
    parameters = Table(
        number + 1, parameter_table_name(name), template.parameters, tuple(map(KeyPart, names)), options=options
    )
    query = lift(template.query, parameters)
    views = (catalog.views_by_id.get(node.table) for node in query.root.walk() if isinstance(node, Scan))
    tables = {t.id: t for t in (*catalog.tables, *(v.table for v in views if v is not None), parameters)}
    sizes = {**sizes, parameters.id: 0}
    family_key = (*names, *key) if key or not isinstance(query.root, Sort) else ()
    table, plan = plan_view(
        name, number, query, family_key, tables, CatalogPlans(catalog), sizes, {}, dry_run_operators
    )
    member_table, _ = plan_view(name, number, template.bound_query, key, tables, CatalogPlans(catalog), sizes, {})
    if not _has_member_shape(table, member_table, len(names)):
        return None
    stored = {**plan.to_json(), MEMBER_PLAN: template.to_json()}
    view = View(
        table, "", stored, parameter_table_id=parameters.id, parameter_count=len(names), template=template.template_key
    )
    return view, parameters


def _has_member_shape(table: Table, member_table: Table, parameter_count: int) -> bool:
    """Whether a family's table is a member's table with the parameters before its columns and its key."""
    own_columns = [(c.name, c.type) for c in table.columns[parameter_count:]]
    prefix = tuple(KeyPart(c.name) for c in table.columns[:parameter_count])
    is_equal = own_columns == [(c.name, c.type) for c in member_table.columns] and table.key == (
        *prefix,
        *member_table.key,
    )
    return is_equal and table.is_bag == member_table.is_bag


def _make_member(family: View, parameters: Table, candidate: MemberCandidate) -> View:
    table, parameter_count = family.table, family.parameter_count
    values, nullable = candidate.query_template.values, [c.nullable for _, c in candidate.query_template.query.output]
    member_table = Table(
        candidate.view_id,
        candidate.statement.name,
        tuple(replace(c, nullable=n) for c, n in zip(table.columns[parameter_count:], nullable, strict=True)),
        table.key[parameter_count:],
        True,
        table.is_bag,
        ((FIRST_NAME_OPTION, table.name),),
        tuple(enumerate(table.columns[:parameter_count])),
        table.id,
        b"".join(encode_plain_column(parameters, i, p) for i, p in enumerate(_plain_values(parameters, values))),
    )
    return View(
        member_table,
        candidate.statement.query,
        {},
        template=candidate.query_template.template_key,
        parameter_values=values,
    )


def member_query(catalog: Catalog, member: View) -> Query | None:
    """Return a member's own query; None if the family was created by a version that did not store it."""
    family = catalog.views_by_id[member.table.family]
    if MEMBER_PLAN not in family.plan:
        return None
    query = ViewPlan.from_json(family.plan[MEMBER_PLAN]).query
    parameters = catalog.tables_by_id[family.parameter_table_id]
    return QueryTemplate(
        query, tuple(c.type for c in parameters.columns), member.parameter_values, member.template
    ).bound_query


# -- parameters as rows -----------------------------------------------------------------------------------------------


def write_parameters(store: Store, assignment: FamilyAssignment) -> None:
    """Create the parameter tables of new families, and write the values of all members."""
    for parameters, members in assignment.parameter_rows.values():
        if parameters.id not in store.catalog().tables_by_id:
            store.change_catalog(lambda catalog, created=parameters: catalog.with_table(created))  # type: ignore[misc]
            failpoints.hit("members.table")
        rows = parameter_rows(parameters, members)
        store.write(parameters, rows, rows.slice(0, 0))
    failpoints.hit("members.written")


def delete_parameters(store: Store, parameters: Table, is_unwanted: Callable[[bytes], bool]) -> bool:
    """Delete the parameters whose keys are unwanted; return whether there were any."""
    rows = pa.Table.from_batches(list(store.scan(parameters)), parameters.arrow)
    unwanted = pa.array([is_unwanted(key) for key in encode_keys(parameters, rows).to_pylist()], pa.bool_())
    if unwanted.true_count:
        store.write(parameters, rows.slice(0, 0), rows.filter(unwanted))
    return bool(unwanted.true_count)


MemberKeys = AbstractSet[tuple[int, bytes]]
"""(Family id, key prefix) of members.

The parameters of members in creation are written before their catalog entries, and must not be swept.
"""


def member_keys(members: Sequence[View]) -> MemberKeys:
    return {(m.table.family, m.table.key_prefix) for m in members}


def forget_members(store: Store, members: Sequence[View], in_creation: MemberKeys = frozenset()) -> None:
    """Delete parameters of members that were removed, or not created, unless another member has the same."""
    catalog = store.catalog()
    for family in dict.fromkeys(m.table.family for m in members):
        family_view = catalog.views_by_id.get(family)
        parameters = None if family_view is None else catalog.tables_by_id.get(family_view.parameter_table_id)
        if parameters is not None:
            removed = [m for m in members if m.table.family == family]
            remaining_prefixes = (
                {m.table.key_prefix for m in catalog.members.get(family, ())}
                if len(removed) > _MAX_SINGLE_LOOKUPS
                else None
            )
            unused = [
                m
                for m in removed
                if not _has_namesake(catalog, m, remaining_prefixes) and (family, m.table.key_prefix) not in in_creation
            ]
            rows = parameter_rows(parameters, unused)
            store.write(parameters, rows.slice(0, 0), rows)


def _has_namesake(catalog: Catalog, member: View, named_prefixes: set[bytes] | None) -> bool:
    """Whether a member of the catalog has the same part of the family's rows."""
    prefix = member.table.key_prefix
    return catalog.has_members(member.table.family, prefix) if named_prefixes is None else prefix in named_prefixes


def sweep_parameters(store: Store, in_creation: MemberKeys = frozenset(), *, only_tables: bool = False) -> None:
    """Delete parameters without a member, which a process has left that ended between the steps.

    With `only_tables`, only the parameter tables of families that no longer exist.
    """
    catalog = store.catalog()
    families = {v.parameter_table_id: v for v in catalog.views if v.is_hidden_family}
    new_families = {family for family, _ in in_creation} - {f.table.id for f in families.values()}
    for table in (t for t in catalog.tables if t.is_hidden):
        family = families.get(table.id)
        if family is None and new_families:  # the table may belong to a family in creation
            continue
        if family is None:
            store.change_catalog(lambda current, dropped=table: current.without(dropped.id))  # type: ignore[misc]
            DeferredCleanup(store).drop_rows(table, "table.dropped")
        if family is None or only_tables:
            continue
        used_prefixes = {m.table.key_prefix for m in catalog.members.get(family.table.id, ())}
        used_prefixes |= {prefix for number, prefix in in_creation if number == family.table.id}
        delete_parameters(store, table, lambda key, used_prefixes=used_prefixes: key not in used_prefixes)  # type: ignore[misc]


def parameter_rows(parameters: Table, members: Sequence[View]) -> pa.Table:
    """Return the distinct parameters of members as rows of their table."""
    distinct = {m.table.key_prefix: m.parameter_values for m in members}
    plain_rows = [_plain_values(parameters, values) for values in distinct.values()]
    columns = zip(*plain_rows, strict=True) if plain_rows else ([] for _ in parameters.columns)
    arrays = [
        _parameter_array(c.type, list(values_of_column))
        for c, values_of_column in zip(parameters.columns, columns, strict=True)
    ]
    return pa.Table.from_arrays(arrays, schema=parameters.arrow)


def _plain_values(parameters: Table, values: Sequence[Any]) -> list[Any]:
    """Return a plan's literals as values of the row encoding."""
    return [_plain_value(c.type, value) for c, value in zip(parameters.columns, values, strict=True)]


def _plain_value(type_: types.Type, value: Any) -> Any:
    if digits := types.decimal_digits(type_):
        return int(Decimal(value).scaleb(digits[1], _DECIMAL_CONTEXT))
    return float(value) if types.is_float(type_) else value


def _parameter_array(type_: types.Type, values: list[Any]) -> pa.Array:
    target = types.arrow(type_)
    if digits := types.decimal_digits(type_):
        return pa.array([Decimal(v).scaleb(-digits[1], _DECIMAL_CONTEXT) for v in values], target)
    if type_ == types.DATE:
        return pa.array(values, pa.int32()).cast(target)
    return pa.array(values, pa.int64()).cast(target) if type_ in types.TIMES else pa.array(values, target)
