"""Definitions: what CREATE, ALTER and DROP do to the catalog, and how a query becomes a view.

options of a view    store = 'none'       keep no rows; changes stream to subscribers, `read` works the rows out
                     store = 'lazy'       keep no rows either: what is asked for is worked out (`plan.narrowing`)
                     load_rate = n        scan at most n rows a second when the view is loaded
                     share = false        look its rows up and add them up by itself, and not together with other views
                     lookahead = 'none'   how far lookups see whether a row leads anywhere: none, local, global, auto
                     presum = 'none'      whether rows are summed before they are joined: none, auto, always
                     sync = true          keep it in the transaction of each write to its table (`synchronous`)
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
"""Views that a refusal names."""
_VIEW_OPTIONS = frozenset(
    {"store", "load_rate", "strategy", "interval", "hbase.encoding", "share", "lookahead", "presum", "sync"}
)


def create_table(store: Store, statement: statements.CreateTable) -> None:
    def change(catalog: Catalog) -> Catalog:
        if statement.if_not_exists and isinstance(catalog.find(statement.name), Table):
            return catalog
        key = tuple(KeyPart(name) for name in statement.key)
        options = tuple(sorted(statement.options.items()))
        return catalog.with_table(Table(catalog.next_id, statement.name, statement.columns, key, options=options))

    store.change_catalog(change)


def drop_table(store: Store, table: Table) -> None:
    """Of a table without indexes: nobody maintains anything of it."""

    def change(catalog: Catalog) -> Catalog:
        refuse_used(catalog, table)
        return catalog.without(table.id)

    store.change_catalog(change)
    DeferredCleanup(store).drop_rows(table, "table.dropped")


def create_parameter_table(store: Store, statement: statements.CreateView) -> Table:
    """The table of a family's parameters. One that an interrupted CREATE or DROP has left goes first."""
    name = parameter_table_name(statement.name)
    found = store.catalog().find(name)
    if isinstance(found, Table) and FAMILY_OPTION in dict(found.options) and not _reader_names(store.catalog(), found):
        drop_table(store, store.catalog().table(name))
    names = tuple(c.name for c in statement.parameters)
    create_table(store, statements.CreateTable(name, statement.parameters, names, {FAMILY_OPTION: statement.name}))
    failpoints.hit("family.parameters")
    return store.catalog().table(name)


def refuse_parameter_table(table: Table) -> None:
    """A family's parameters are those that it was created with."""
    if FAMILY_OPTION in dict(table.options):
        raise BadValue(
            f"{table.name} has the parameters of a family of views, whose columns do not change.",
            hint="Put and delete its rows; drop the family and create it again for other parameters.",
        )


def refuse_parameter_table_drop(catalog: Catalog, table: Table) -> None:
    """A family's parameters go with it, and not before."""
    family = dict(table.options).get(FAMILY_OPTION)
    if family is not None and catalog.find(family) is not None:
        raise InUse(
            f"{table.name} has the parameters of the family {family}, and goes with it.",
            hint=f"DROP MATERIALIZED VIEW {family} drops both; DELETE FROM {table.name} takes members out.",
        )


def join_names(names: Sequence[str]) -> str:
    """The first of many names, and how many more there are."""
    return ", ".join(names[:_MAX_NAMED_VIEWS]) + (
        f" and {len(names) - _MAX_NAMED_VIEWS:,} more" if len(names) > _MAX_NAMED_VIEWS else ""
    )


def scans(root: Node) -> list[Scan]:
    return [node for node in root.walk() if isinstance(node, Scan)]


def refuse_altered(catalog: Catalog, view: View) -> None:
    """While a view was planned and loaded, tables and columns that it reads may have been dropped."""
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
    """InUse if a view reads it, or one of its indexes."""
    indexes = {v.table.id: v.table for v in catalog.indexes.get(table.id, ())}
    users = [n for n in _reader_names(catalog, table) if catalog.table(n).id not in indexes]
    users += [name for index in indexes.values() for name in _reader_names(catalog, index)]
    if users:
        raise InUse(f"{table.name} is used by {join_names(users)}.", hint="Drop what uses it first.")


def refuse_shape_change(catalog: Catalog, old: View, new: View) -> None:
    """A view that others read may be replaced only by one with the same columns and key."""
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
    """The names of the views whose queries name it, as users know them."""
    read = (catalog.views_by_id[i] for i in catalog.readers.get(table.id, ()))
    return sorted(
        m.table.name for v in read for m in (catalog.members.get(v.table.id, ()) if v.is_hidden_family else (v,))
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
    asked = options.get("strategy", DEFAULT_STRATEGY)
    strategy = find_strategy(asked)
    if strategy is None:
        raise BadValue(f"There is no strategy {asked.upper()!r}.", hint=f"Strategies: {', '.join(STRATEGIES)}.")
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
    """What says how a view is kept, which a lazy one is not."""
    unfit = [name for name in ("strategy", "interval", "sync", "lookahead", "presum") if name in options]
    if unfit:
        raise Unsupported(
            f"A lazy view is worked out when it is read: {', '.join(unfit)} would say how it is kept.",
            hint=f"Leave out {', '.join(unfit)}, or store = 'lazy'.",
        )


def has_same_shape(new: Table, old: Table) -> bool:
    kept, before = (new.is_stored, new.is_lazy), (old.is_stored, old.is_lazy)
    return (new.columns, new.key, new.is_bag, kept) == (old.columns, old.key, old.is_bag, before)


def _shape_text(table: Table) -> str:
    columns = ", ".join(f"{c.name} {c.type.sql}" for c in table.columns)
    return f"{columns}; key {', '.join(k.column for k in table.key)}"
