"""Views that differ in constants are gathered: a statement makes a member of a family instead of a view by itself.

    CREATE … v1 AS … x < 5      ┐            family   SELECT p.*, b.* FROM parameters p, (… x < p.¤p0) b
    CREATE … v2 AS … x < 7      ├─ gather ─▶ parameters   5, 7, …
    …                           ┘            v1 = the rows of the family whose keys begin with 5

A family is an ordinary view over an ordinary table of parameters (`plan.families`), both without a name that users see;
what they see are its members: a name, the text as written, and the part of the family's rows that is theirs. A member
is known by the bytes that its keys begin with, so views that are equal are two names of one part.

When it is worthwhile a cost model says (`plan.families.costs`): from some twenty or thirty different views of one
template on, and of more if many are equal. Fewer are loaded faster each by itself, with shared paths. Views that were
there before stay as they are; those that come join the family. What a family does not have (an index, views over it, a
cut or an option of its own) a member gets by leaving it: `Definer.leave`.

Order of steps: the parameters are written first, the names last. What a crash leaves is parameters without a name,
which nobody sees; `swept` takes them away.
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
"""In a family's stored plan: that of one member, with parameters for its constants."""
_DECIMAL_CONTEXT = Context(prec=60)
_MAX_SINGLE_LOOKUPS = 8
"""Members of which each is looked for among all others; for more, these are listed first."""


@dataclass(frozen=True)
class MemberCandidate:
    """A statement whose view could be a member."""

    statement: CreateView
    query_template: QueryTemplate
    view_id: int
    """The id that it was given."""


@dataclass
class FamilyAssignment:
    """What is made: families (with their tables of parameters), and who is in which."""

    families: list[View] = field(default_factory=list)
    members: list[View] = field(default_factory=list)
    parameter_rows: dict[int, tuple[Table, list[View]]] = field(default_factory=dict)
    """By table of parameters, the members whose values are to be written there."""
    standalone: list[MemberCandidate] = field(default_factory=list)


def assign_families(
    store: Store, catalog: Catalog, candidates: Sequence[MemberCandidate], sizes: Mapping[int, int]
) -> FamilyAssignment:
    """Who becomes a member of which family. Nothing is written."""
    made = FamilyAssignment()
    groups: dict[str, list[MemberCandidate]] = {}
    for one in candidates:
        groups.setdefault(one.query_template.template_key, []).append(one)
    for template, group in groups.items():
        family = _find_or_plan_family(store, catalog, template, group, sizes)
        if family is None:
            made.standalone += group
            continue
        view, parameters = family
        if view.table.id not in catalog.views_by_id:
            made.families.append(view)
        read = [catalog.find_table_by_id(number) for number in sorted(view.reads - {parameters.id})]
        names = tuple(current_names(table) for table in read if table is not None)
        members = [replace(_make_member(view, parameters, one), text_names=names) for one in group]
        made.members += members
        made.parameter_rows[parameters.id] = (parameters, members)
    return made


def _find_or_plan_family(
    store: Store, catalog: Catalog, template: str, group: Sequence[MemberCandidate], sizes: Mapping[int, int]
) -> tuple[View, Table] | None:
    there = catalog.templates.get(template, ())
    if there and there[-1].is_hidden_family:
        view = there[-1]
        return None if view.suspended is not None else (view, catalog.tables_by_id[view.parameter_table_id])
    rows = sum(sizes.get(n.table, 0) for n in group[0].query_template.query.root.walk() if isinstance(n, Scan))
    different = len({one.query_template.values for one in group}) + len(there)
    if not is_family_cheaper(len(group) + len(there), different, rows):
        return None
    with suppress(Unsupported):
        return _plan_family(store, catalog, group[0], sizes)
    return None


def _plan_family(
    store: Store, catalog: Catalog, sample: MemberCandidate, sizes: Mapping[int, int]
) -> tuple[View, Table] | None:
    """A family for views like this one; None if its rows would not be those of its members side by side."""
    number = reserve_ids(store, 2)
    name = f"_family_{number}"
    while catalog.find(name) is not None or catalog.find(parameter_table_name(name)) is not None:
        name += "_"
    opened, key = sample.query_template, sample.statement.key
    names = [c.name for c in opened.parameters]
    options = ((FAMILY_OPTION, name), (HIDDEN_PARAMETERS, "true"))
    parameters = Table(
        number + 1, parameter_table_name(name), opened.parameters, tuple(map(KeyPart, names)), options=options
    )
    query = lift(opened.query, parameters)
    read = (catalog.views_by_id.get(n.table) for n in query.root.walk() if isinstance(n, Scan))
    tables = {t.id: t for t in (*catalog.tables, *(v.table for v in read if v is not None), parameters)}
    sizes = {**sizes, parameters.id: 0}
    whole = (*names, *key) if key or not isinstance(query.root, Sort) else ()
    table, plan = plan_view(name, number, query, whole, tables, CatalogPlans(catalog), sizes, {}, dry_run_operators)
    alone, _ = plan_view(name, number, opened.bound_query, key, tables, CatalogPlans(catalog), sizes, {})
    if not _has_member_shape(table, alone, len(names)):
        return None
    stored = {**plan.to_json(), MEMBER_PLAN: opened.to_json()}
    view = View(
        table, "", stored, parameter_table_id=parameters.id, parameter_count=len(names), template=opened.template_key
    )
    return view, parameters


def _has_member_shape(table: Table, member_table: Table, parameter_count: int) -> bool:
    """Whether a family's table is a member's, with the parameters before its columns and its key."""
    mine = [(c.name, c.type) for c in table.columns[parameter_count:]]
    prefix = tuple(KeyPart(c.name) for c in table.columns[:parameter_count])
    same = mine == [(c.name, c.type) for c in member_table.columns] and table.key == (*prefix, *member_table.key)
    return same and table.is_bag == member_table.is_bag


def _make_member(family: View, parameters: Table, candidate: MemberCandidate) -> View:
    table, given = family.table, family.parameter_count
    values, nullable = candidate.query_template.values, [c.nullable for _, c in candidate.query_template.query.output]
    shape = Table(
        candidate.view_id,
        candidate.statement.name,
        tuple(replace(c, nullable=n) for c, n in zip(table.columns[given:], nullable, strict=True)),
        table.key[given:],
        True,
        table.is_bag,
        ((FIRST_NAME_OPTION, table.name),),
        tuple(enumerate(table.columns[:given])),
        table.id,
        b"".join(encode_plain_column(parameters, i, p) for i, p in enumerate(_plain_values(parameters, values))),
    )
    return View(
        shape, candidate.statement.query, {}, template=candidate.query_template.template_key, parameter_values=values
    )


def member_query(catalog: Catalog, member: View) -> Query | None:
    """A member's own query, without its family; None if the family was made by a version that did not keep it."""
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
    """The tables of parameters of new families, and the values of all members."""
    for parameters, members in assignment.parameter_rows.values():
        if parameters.id not in store.catalog().tables_by_id:
            store.change_catalog(lambda catalog, new=parameters: catalog.with_table(new))  # type: ignore[misc]
            failpoints.hit("members.table")
        rows = parameter_rows(parameters, members)
        store.write(parameters, rows, rows.slice(0, 0))
    failpoints.hit("members.written")


def delete_parameters(store: Store, parameters: Table, is_unwanted: Callable[[bytes], bool]) -> bool:
    """Delete the parameters whose keys are unwanted; whether there were any."""
    rows = pa.Table.from_batches(list(store.scan(parameters)), parameters.arrow)
    gone = pa.array([is_unwanted(key) for key in encode_keys(parameters, rows).to_pylist()], pa.bool_())
    if gone.true_count:
        store.write(parameters, rows.slice(0, 0), rows.filter(gone))
    return bool(gone.true_count)


MemberKeys = AbstractSet[tuple[int, bytes]]
"""Members that are being made: the number of their family, and the part of it that will be theirs. Their parameters are
written before their names, and are no leftovers."""


def member_keys(members: Sequence[View]) -> MemberKeys:
    return {(m.table.family, m.table.key_prefix) for m in members}


def forget_members(store: Store, members: Sequence[View], in_creation: MemberKeys = frozenset()) -> None:
    """Values that no member has any more: of members that were, or could not be made."""
    catalog = store.catalog()
    for family in dict.fromkeys(m.table.family for m in members):
        found = catalog.views_by_id.get(family)
        parameters = None if found is None else catalog.tables_by_id.get(found.parameter_table_id)
        if parameters is not None:
            own = [m for m in members if m.table.family == family]
            left = (
                {m.table.key_prefix for m in catalog.members.get(family, ())}
                if len(own) > _MAX_SINGLE_LOOKUPS
                else None
            )
            gone = [
                m
                for m in own
                if not _has_namesake(catalog, m, left) and (family, m.table.key_prefix) not in in_creation
            ]
            rows = parameter_rows(parameters, gone)
            store.write(parameters, rows.slice(0, 0), rows)


def _has_namesake(catalog: Catalog, member: View, named_prefixes: set[bytes] | None) -> bool:
    """Whether another member has the same part of the family's rows."""
    prefix = member.table.key_prefix
    return catalog.has_members(member.table.family, prefix) if named_prefixes is None else prefix in named_prefixes


def sweep_parameters(store: Store, in_creation: MemberKeys = frozenset(), *, only_tables: bool = False) -> None:
    """Take away what a process that ended in the middle has left: parameters that nobody's name is for.

    `only_tables`: those of families that are gone.
    """
    catalog = store.catalog()
    families = {v.parameter_table_id: v for v in catalog.views if v.is_hidden_family}
    new = {family for family, _ in in_creation} - {f.table.id for f in families.values()}
    for table in (t for t in catalog.tables if t.is_hidden):
        family = families.get(table.id)
        if family is None and new:  # it may be one of a family that is being made
            continue
        if family is None:
            store.change_catalog(lambda now, gone=table: now.without(gone.id))  # type: ignore[misc]
            DeferredCleanup(store).drop_rows(table, "table.dropped")
        if family is None or only_tables:
            continue
        named = {m.table.key_prefix for m in catalog.members.get(family.table.id, ())}
        named |= {prefix for number, prefix in in_creation if number == family.table.id}
        delete_parameters(store, table, lambda key, named=named: key not in named)  # type: ignore[misc]


def parameter_rows(parameters: Table, members: Sequence[View]) -> pa.Table:
    """The parameters of members, each once, as rows of their table."""
    distinct = {m.table.key_prefix: m.parameter_values for m in members}
    plain = [_plain_values(parameters, values) for values in distinct.values()]
    columns = zip(*plain, strict=True) if plain else ([] for _ in parameters.columns)
    arrays = [_parameter_array(c.type, list(found)) for c, found in zip(parameters.columns, columns, strict=True)]
    return pa.Table.from_arrays(arrays, schema=parameters.arrow)


def _plain_values(parameters: Table, values: Sequence[Any]) -> list[Any]:
    """Literals of a plan as codecs have values."""
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
