"""The text of a view's query, over tables that were altered since it was written.

A view is stored by ids: its plan names tables by number and columns by their name inside, which no ALTER TABLE changes.
Its text has the names of the time at which it was written. Where these are no longer right, the view keeps what they
meant (`model.views.TextNames`), and the text is read with that:

    SELECT * FROM items                     written when items had the columns id and price
    WITH `items` AS (SELECT `id`, `cost` AS `price` FROM `goods`)
    SELECT * FROM items                     the same query after RENAME TO, RENAME COLUMN and ADD COLUMN

`exact_query` gives this form. It means the view's plan by construction, and is what an audit runs. `plan.renamed_text`
writes the new names in place of the old ones, where no word of the text can mean anything else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count, pairwise

from viewkeeper.model.catalog.catalog import Catalog, View
from viewkeeper.model.catalog.view import TextNames
from viewkeeper.model.names import backticked
from viewkeeper.model.schema import Table
from viewkeeper.syntax.lexer import SqlToken, lex
from viewkeeper.syntax.renamed_text import rename_in_query

_WHOLE_ROWS = frozenset({"NATURAL", "PIVOT", "UNPIVOT", "TABLE"})
"""Words of queries that mean all columns of a table without naming them."""
_BEFORE_STAR = frozenset({"SELECT", "DISTINCT", "ALL", ",", ".", "("})


def exact_query(catalog: Catalog, view: View) -> str:
    """The query that means the view's plan over the tables as they are now."""
    return _prefix_ctes(catalog, view.text_names, view.query)


def display_query(catalog: Catalog, view: View) -> str:
    """The query as a user would write it now; of a family, the query of its members."""
    text, left = view.family_query or view.query, []
    for names in view.text_names:
        table = catalog.find_table_by_id(names.table_id)
        if table is None or is_current(names, table):
            continue
        outputs = [c.name for c in view.table.columns[view.parameter_count :]]
        better = None
        if not (_has_changed_columns(names, table) and has_whole_rows(text, names.name)):
            others = [
                t for t in map(catalog.find_table_by_id, tables_read_by(catalog, view) - {table.id}) if t is not None
            ]
            better = rename_in_query(text, names, table, _other_column_names(view, others), outputs)
        if better is None:
            left.append(names)
        else:
            text = better
    return _prefix_ctes(catalog, left, text)


def current_names(table: Table) -> TextNames:
    """What a text means that is written over a table as it is."""
    return TextNames(
        table.id, table.name, tuple((c.name, table.first_internal_name(c.internal_name)) for c in table.columns)
    )


def is_current(names: TextNames, table: Table) -> bool:
    """Whether a text over the table as it is now would mean the same."""
    return names.name == table.name and not _has_changed_columns(names, table)


def tables_read_by(catalog: Catalog, view: View) -> frozenset[int]:
    """The tables and views that a view's text may name."""
    family = catalog.views_by_id.get(view.table.family) if view.is_member else None
    return view.reads if family is None else family.reads - {family.parameter_table_id}


def save_names(catalog: Catalog, table: Table, words: Sequence[str]) -> Catalog:
    """With what the texts of views mean by a table that is about to be altered, where that may change: texts that have
    one of these words, or mean whole rows. What is of the table (`indexes`) is written anew instead."""
    kept = current_names(table)
    for view in _readers(catalog, table):
        if view.index is not None or view.cluster is not None or any(n.table_id == table.id for n in view.text_names):
            continue
        if can_mean(view.family_query or view.query, words, table.name):
            catalog = catalog.with_replaced_view(replace(view, text_names=(*view.text_names, kept)))
    return catalog


def drop_current_names(catalog: Catalog, view: View) -> View:
    """A view that is about to be listed: it keeps the names of those tables that were altered while it was made."""
    known = ((n, catalog.find_table_by_id(n.table_id)) for n in view.text_names)
    return replace(view, text_names=tuple(n for n, table in known if table is not None and not is_current(n, table)))


def refresh_names(catalog: Catalog, view: View) -> View:
    """A view that is there, called as it is by now, with what its text means by now."""
    now = catalog.views_by_id.get(view.table.id)
    return view if now is None else replace(view, text_names=now.text_names, table=now.table)


def can_mean(text: str, words: Sequence[str], table: str) -> bool:
    """Whether a text has one of these words as a name, or means all columns of a table without naming them."""
    wanted = {word.lower() for word in words}
    return any(t.value.lower() in wanted for t in _name_tokens(text)) or has_whole_rows(text, table)


def has_whole_rows(text: str, table: str) -> bool:
    """Whether a text may mean all columns of a table: by `*`, a NATURAL JOIN, PIVOT, TABLE t, a pipe, or a list of
    names for them."""
    found = list(lex(text))
    spelt = [t.value.upper() if t.kind in ("word", "sign") else "" for t in found]
    if spelt[:1] == ["FROM"] or not _WHOLE_ROWS.isdisjoint(spelt) or ("|", ">") in set(pairwise(spelt)):
        return True
    for at, word in enumerate(spelt):
        before = spelt[at - 1] if at else ""
        if word == "*" and before in _BEFORE_STAR and not (before == "(" and spelt[at - 2] == "COUNT"):
            return True
        if found[at].value.lower() == table.lower() and found[at].kind in ("word", "name"):
            alias = at + 1 + (spelt[at + 1 : at + 2] == ["AS"])
            if spelt[alias + 1 : alias + 2] == ["("] and found[alias].kind in ("word", "name"):
                return True
    return False


def _name_tokens(text: str) -> Iterator[SqlToken]:
    return (t for t in lex(text) if t.kind in ("word", "name"))


def _readers(catalog: Catalog, table: Table) -> list[View]:
    """The views whose texts may name a table, members of families among them."""
    read = [catalog.views_by_id[i] for i in catalog.readers.get(table.id, ())]
    return [m for v in read for m in (catalog.members.get(v.table.id, ()) if v.is_hidden_family else (v,))]


def _has_changed_columns(names: TextNames, table: Table) -> bool:
    now = current_names(table).columns
    there = {inside for _, inside in now}
    return tuple(pair for pair in names.columns if pair[1] in there) != now


def _other_column_names(view: View, tables: Sequence[Table]) -> frozenset[str]:
    """The names of columns of other tables, as they are now and as the text has them."""
    now = {c.name.lower() for table in tables for c in table.columns}
    ids = {table.id for table in tables}
    return frozenset(now | {name.lower() for n in view.text_names if n.table_id in ids for name, _ in n.columns})


# -- the exact form ----------------------------------------------------------------------------------------------------


def _prefix_ctes(catalog: Catalog, saved_names: Sequence[TextNames], text: str) -> str:
    """A text below the tables that its names stand for."""
    known = {
        n.name: (n, table)
        for n in saved_names
        if (table := catalog.find_table_by_id(n.table_id)) and not is_current(n, table)
    }
    if not known:
        return text
    parts = _cte_list(known)
    words = [t.value.upper() for t in lex(text)]
    if words[:1] != ["WITH"]:
        return f"WITH {parts}\n{text}"
    defined = {words[at].lower() for at in range(len(words)) if words[at + 1 : at + 3] == ["AS", "("]}
    if words[1:2] == ["RECURSIVE"] or defined & {name.lower() for name in known}:
        return f"WITH {parts}\nSELECT * FROM (\n{text}\n)"
    start = next(lex(text)).end
    return f"{text[:start]} {parts},{text[start:]}"


def _cte_list(tables_by_name: Mapping[str, tuple[TextNames, Table]]) -> str:
    """The common table expressions. Where one is called as another's table is, all are made under other names first."""
    called = {name.lower() for name in tables_by_name}
    crossed = any(t.name.lower() in called - {n.name.lower()} for n, t in tables_by_name.values())
    if not crossed:
        return ", ".join(f"{backticked(name)} AS ({_cte_select(*one)})" for name, one in tables_by_name.items())
    taken = called | {t.name.lower() for _, t in tables_by_name.values()}
    free = (name for name in (f"t{i}" for i in count()) if name not in taken)
    between = {name: next(free) for name in tables_by_name}
    first = [f"{between[name]} AS ({_cte_select(*one)})" for name, one in tables_by_name.items()]
    return ", ".join([*first, *(f"{backticked(name)} AS (SELECT * FROM {between[name]})" for name in tables_by_name)])


def _cte_select(names: TextNames, table: Table) -> str:
    now = {inside: name for name, inside in current_names(table).columns}
    pairs = [(now[inside], name) for name, inside in names.columns if inside in now]
    listed = (backticked(new) + ("" if new == old else f" AS {backticked(old)}") for new, old in pairs)
    return f"SELECT {', '.join(listed)} FROM {backticked(table.name)}"
