"""Catalog changes of CREATE and DROP, the checks before them, and the options of views.

options of a view    store = 'none'       store no rows; changes stream to subscribers, `read` computes the rows
                     store = 'lazy'       store no rows; requested rows are computed when read (`read.lazy`)
                     load_rate = n        scan at most n rows a second when the view is loaded
                     share = false        share no lookups and aggregates with other views
                     lookahead = 'none'   how far semijoin reduction looks ahead: none, local, global, auto
                     presum = 'none'      whether rows are pre-aggregated before joins: none, auto, always
                     sync = true          maintain the view in the transaction of each write (`synchronous_views`)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from viewkeeper import failpoints
from viewkeeper.commit.deferred_cleanup import DeferredCleanup
from viewkeeper.errors import BadValue, InUse, Unsupported
from viewkeeper.model.catalog.catalog import Catalog, View
from viewkeeper.model.catalog.strategies import DEFAULT_STRATEGY, STRATEGIES, find_strategy, strategy_of
from viewkeeper.model.catalog.view import DEFAULT_LOOKAHEAD, LOOKAHEAD
from viewkeeper.model.schema import LAZY, KeyPart, Table
from viewkeeper.plan.compile.compiled_view import plan_of
from viewkeeper.plan.logical.nodes import Node, Scan
from viewkeeper.plan.rules.preaggregation import DEFAULT_PRESUM, PRESUM_MODES
from viewkeeper.store.contract.store import Store
from viewkeeper.syntax import statements
from viewkeeper.syntax.family_text import FAMILY_OPTION, parameter_table_name

STORE_OPTIONS = ("table", "none", "lazy")
_MAX_NAMED_VIEWS = 10
"""Views that an error message names."""
_VIEW_OPTIONS = frozenset(
    {"store", "load_rate", "strategy", "interval", "hbase.encoding", "share", "lookahead", "presum", "sync"}
)


def create_table(store: Store, statement: statements.CreateTable) -> None:
    def add_table(catalog: Catalog) -> Catalog:
        if statement.if_not_exists and isinstance(catalog.find(statement.name), Table):
            return catalog
        key = tuple(KeyPart(name) for name in statement.key)
        options = tuple(sorted(statement.options.items()))
        return catalog.with_table(Table(catalog.next_id, statement.name, statement.columns, key, options=options))

    store.change_catalog(add_table)


def drop_table(store: Store, table: Table) -> None:
    """Drop a table without indexes, which needs no maintainer."""

    def remove_table(catalog: Catalog) -> Catalog:
        refuse_used(catalog, table)
        return catalog.without(table.id)

    store.change_catalog(remove_table)
    DeferredCleanup(store).drop_rows(table, "table.dropped")


def create_parameter_table(store: Store, statement: statements.CreateView) -> Table:
    """Create a family's parameter table; a leftover of an interrupted CREATE or DROP is dropped first."""
    name = parameter_table_name(statement.name)
    leftover = store.catalog().find(name)
    if (
        isinstance(leftover, Table)
        and FAMILY_OPTION in dict(leftover.options)
        and not _reader_names(store.catalog(), leftover)
    ):
        drop_table(store, store.catalog().table(name))
    names = tuple(c.name for c in statement.parameters)
    create_table(store, statements.CreateTable(name, statement.parameters, names, {FAMILY_OPTION: statement.name}))
    failpoints.hit("family.parameters")
    return store.catalog().table(name)


def refuse_parameter_table(table: Table) -> None:
    """Raise BadValue for a parameter table, whose columns cannot be changed."""
    if FAMILY_OPTION in dict(table.options):
        raise BadValue(
            f"{table.name} has the parameters of a family of views, whose columns do not change.",
            hint="Put and delete its rows; drop the family and create it again for other parameters.",
        )


def refuse_parameter_table_drop(catalog: Catalog, table: Table) -> None:
    """Raise InUse for a parameter table whose family exists; it is dropped with the family."""
    family = dict(table.options).get(FAMILY_OPTION)
    if family is not None and catalog.find(family) is not None:
        raise InUse(
            f"{table.name} has the parameters of the family {family}, and goes with it.",
            hint=f"DROP MATERIALIZED VIEW {family} drops both; DELETE FROM {table.name} takes members out.",
        )


def join_names(names: Sequence[str]) -> str:
    """Join names for a message, shortened to the first `_MAX_NAMED_VIEWS`."""
    return ", ".join(names[:_MAX_NAMED_VIEWS]) + (
        f" and {len(names) - _MAX_NAMED_VIEWS:,} more" if len(names) > _MAX_NAMED_VIEWS else ""
    )


def scans(root: Node) -> list[Scan]:
    return [node for node in root.walk() if isinstance(node, Scan)]


def refuse_altered(catalog: Catalog, view: View) -> None:
    """Raise InUse if a table or column that the view reads was dropped while the view was planned and loaded."""
    for scan in scans(plan_of(view).query.root):
        table = catalog.find_table_by_id(scan.table)
        if table is None:
            raise InUse(f"A table of {view.table.name} was dropped while it was made.", hint="Look at its query.")
        for _, name in scan.fields:
            if name.lower() not in table.internal.by_name:
                raise InUse(
                    f"The column {name} of {table.name} was dropped while {view.table.name} was made.",
                    hint="Look at its query.",
                )


def refuse_used(catalog: Catalog, table: Table) -> None:
    """Raise InUse if a view reads the table or one of its indexes."""
    indexes = {v.table.id: v.table for v in catalog.indexes.get(table.id, ())}
    users = [n for n in _reader_names(catalog, table) if catalog.table(n).id not in indexes]
    users += [name for index in indexes.values() for name in _reader_names(catalog, index)]
    if users:
        raise InUse(f"{table.name} is used by {join_names(users)}.", hint="Drop what uses it first.")


def refuse_shape_change(catalog: Catalog, old: View, new: View) -> None:
    """Raise InUse if other views read the view and the new definition has another table (columns or key)."""
    if strategy_of(old).has_own_cut or strategy_of(new).has_own_cut:
        raise Unsupported(
            f"{old.table.name} runs at intervals or call by call, before or after; it cannot be replaced in one batch.",
            hint="Drop it and create it again.",
        )
    if new.table.id == old.table.id:
        return
    users = _reader_names(catalog, old.table)
    if users:
        raise InUse(
            f"{old.table.name} is used by {', '.join(users)}, and the new definition has other columns or"
            f" another key ({_shape_text(new.table)}; before: {_shape_text(old.table)}).",
            hint="Keep its columns, their types and its key, or drop what uses it first.",
        )


def _reader_names(catalog: Catalog, table: Table) -> list[str]:
    """Return the names of the views that read the table; members in place of a family."""
    readers = (catalog.views_by_id[number] for number in catalog.readers.get(table.id, ()))
    return sorted(
        member.table.name
        for view in readers
        for member in (catalog.members.get(view.table.id, ()) if view.is_hidden_family else (view,))
    )


def load_rate(view: View) -> float | None:
    rate = view.options.get("load_rate")
    return None if rate is None else float(rate)


def check_options(raw_options: Mapping[str, str]) -> dict[str, str]:
    options = dict(raw_options)
    if unknown := sorted(set(options) - _VIEW_OPTIONS):
        raise Unsupported(
            f"Views have no option {', '.join(unknown)}.", hint=f"Options: {', '.join(sorted(_VIEW_OPTIONS))}."
        )
    requested = options.get("strategy", DEFAULT_STRATEGY)
    strategy = find_strategy(requested)
    if strategy is None:
        raise BadValue(f"There is no strategy {requested.upper()!r}.", hint=f"Strategies: {', '.join(STRATEGIES)}.")
    if options.get("store") == LAZY:
        _refuse_lazy_conflicts(options)
    if strategy.is_scheduled and options.get("store") == "none":
        raise BadValue(
            f"A view with strategy {strategy.name} must be stored: what changed is the difference to its rows."
        )
    if options.get("store", "table") not in STORE_OPTIONS:
        raise BadValue(f"store = {options['store']!r} is unknown.", hint=f"Write one of {', '.join(STORE_OPTIONS)}.")
    for name in ("share", "sync"):
        if options.get(name, "true").lower() not in ("true", "false"):
            raise BadValue(f"{name} = {options[name]!r} is unknown.", hint="Write true or false.")
    if options.get("lookahead", DEFAULT_LOOKAHEAD).lower() not in LOOKAHEAD:
        raise BadValue(
            f"lookahead = {options['lookahead']!r} is unknown.", hint=f"Write one of {', '.join(LOOKAHEAD)}."
        )
    if options.get("presum", DEFAULT_PRESUM).lower() not in PRESUM_MODES:
        raise BadValue(f"presum = {options['presum']!r} is unknown.", hint=f"Write one of {', '.join(PRESUM_MODES)}.")
    for name in ("load_rate", "interval"):
        try:
            if float(options.get(name, 1)) <= 0:
                raise ValueError
        except ValueError:
            raise BadValue(f"{name} must be a number more than 0, not {options[name]!r}.") from None
    return options


def _refuse_lazy_conflicts(options: Mapping[str, str]) -> None:
    """Raise Unsupported for options of maintained views, which a lazy view does not have."""
    unfit = [name for name in ("strategy", "interval", "sync", "lookahead", "presum") if name in options]
    if unfit:
        raise Unsupported(
            f"A lazy view is worked out when it is read: {', '.join(unfit)} would say how it is kept.",
            hint=f"Leave out {', '.join(unfit)}, or store = 'lazy'.",
        )


def has_same_shape(new: Table, old: Table) -> bool:
    new_storage, old_storage = (new.is_stored, new.is_lazy), (old.is_stored, old.is_lazy)
    return (new.columns, new.key, new.is_bag, new_storage) == (old.columns, old.key, old.is_bag, old_storage)


def _shape_text(table: Table) -> str:
    columns = ", ".join(f"{c.name} {c.type.sql}" for c in table.columns)
    return f"{columns}; key {', '.join(k.column for k in table.key)}"
