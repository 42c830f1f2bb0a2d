"""The text of a view's query over tables that were altered since the query was written.

A stored view refers to ids: its plan identifies tables by number and columns by internal name, which no ALTER TABLE
changes. Its text has the names of the time at which it was written. Where these are out of date, the view keeps their
meaning (`model.catalog.view.TextNames`), with which the text is interpreted:

    SELECT * FROM items                     written when items had the columns id and price
    WITH `items` AS (SELECT `id`, `cost` AS `price` FROM `goods`)
    SELECT * FROM items                     the same query after RENAME TO, RENAME COLUMN and ADD COLUMN

`exact_query` returns this form. By construction it is equivalent to the view's plan, and an audit runs it.
`renamed_text` writes the new names in place of the old ones, where no word of the text can have another meaning.
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
"""Words of queries that refer to all columns of a table without naming them."""
_BEFORE_STAR = frozenset({"SELECT", "DISTINCT", "ALL", ",", ".", "("})


def exact_query(catalog: Catalog, view: View) -> str:
    """Return the query that is equivalent to the view's plan over the tables in their current form."""
    return _prefix_ctes(catalog, view.text_names, view.query)


def display_query(catalog: Catalog, view: View) -> str:
    """Return the query as a user would write it now; for a family, the query of its members."""
    text, unresolved = view.family_query or view.query, []
    for names in view.text_names:
        table = catalog.find_table_by_id(names.table_id)
        if table is None or is_current(names, table):
            continue
        outputs = [c.name for c in view.table.columns[view.parameter_count :]]
        renamed = None
        if not (_has_changed_columns(names, table) and has_whole_rows(text, names.name)):
            others = [
                t for t in map(catalog.find_table_by_id, tables_read_by(catalog, view) - {table.id}) if t is not None
            ]
            renamed = rename_in_query(text, names, table, _other_column_names(view, others), outputs)
        if renamed is None:
            unresolved.append(names)
        else:
            text = renamed
    return _prefix_ctes(catalog, unresolved, text)


def current_names(table: Table) -> TextNames:
    """Return the names in a text that is written over the current table."""
    return TextNames(
        table.id, table.name, tuple((c.name, table.first_internal_name(c.internal_name)) for c in table.columns)
    )


def is_current(names: TextNames, table: Table) -> bool:
    """Return whether a text over the current table would have the same meaning."""
    return names.name == table.name and not _has_changed_columns(names, table)


def tables_read_by(catalog: Catalog, view: View) -> frozenset[int]:
    """Return the ids of the tables and views that a view's text may name."""
    family = catalog.views_by_id.get(view.table.family) if view.is_member else None
    return view.reads if family is None else family.reads - {family.parameter_table_id}


def save_names(catalog: Catalog, table: Table, words: Sequence[str]) -> Catalog:
    """Return the catalog with the current names saved in the views whose meaning an ALTER of the table may change.

    These are the views whose texts contain one of these words, or refer to whole rows. Indexes and clustered views are
    generated again instead.
    """
    current = current_names(table)
    for view in _readers(catalog, table):
        if view.index is not None or view.cluster is not None or any(n.table_id == table.id for n in view.text_names):
            continue
        if can_mean(view.family_query or view.query, words, table.name):
            catalog = catalog.with_replaced_view(replace(view, text_names=(*view.text_names, current)))
    return catalog


def drop_current_names(catalog: Catalog, view: View) -> View:
    """Return a new view without saved names of tables that were not altered while it was created."""
    pairs = ((n, catalog.find_table_by_id(n.table_id)) for n in view.text_names)
    return replace(view, text_names=tuple(n for n, table in pairs if table is not None and not is_current(n, table)))


def refresh_names(catalog: Catalog, view: View) -> View:
    """Return an existing view with its current name and the current meaning of its text."""
    current = catalog.views_by_id.get(view.table.id)
    return view if current is None else replace(view, text_names=current.text_names, table=current.table)


def can_mean(text: str, words: Sequence[str], table: str) -> bool:
    """Return whether a text has one of these words as a name, or refers to all columns of a table implicitly."""
    names = {word.lower() for word in words}
    return any(t.value.lower() in names for t in _name_tokens(text)) or has_whole_rows(text, table)


def has_whole_rows(text: str, table: str) -> bool:
    """Return whether a text may refer to all columns of a table: by `*`, a NATURAL JOIN, PIVOT, TABLE t, a pipe, or a
    list of column aliases."""
    tokens = list(lex(text))
    keywords = [t.value.upper() if t.kind in ("word", "sign") else "" for t in tokens]
    if keywords[:1] == ["FROM"] or not _WHOLE_ROWS.isdisjoint(keywords) or ("|", ">") in set(pairwise(keywords)):
        return True
    for at, word in enumerate(keywords):
        previous = keywords[at - 1] if at else ""
        if word == "*" and previous in _BEFORE_STAR and not (previous == "(" and keywords[at - 2] == "COUNT"):
            return True
        if tokens[at].value.lower() == table.lower() and tokens[at].kind in ("word", "name"):
            alias = at + 1 + (keywords[at + 1 : at + 2] == ["AS"])
            if keywords[alias + 1 : alias + 2] == ["("] and tokens[alias].kind in ("word", "name"):
                return True
    return False


def _name_tokens(text: str) -> Iterator[SqlToken]:
    return (t for t in lex(text) if t.kind in ("word", "name"))


def _readers(catalog: Catalog, table: Table) -> list[View]:
    """Return the views whose texts may name a table, including members of families."""
    readers = [catalog.views_by_id[i] for i in catalog.readers.get(table.id, ())]
    return [m for v in readers for m in (catalog.members.get(v.table.id, ()) if v.is_hidden_family else (v,))]


def _has_changed_columns(names: TextNames, table: Table) -> bool:
    current = current_names(table).columns
    present = {internal for _, internal in current}
    return tuple(pair for pair in names.columns if pair[1] in present) != current


def _other_column_names(view: View, tables: Sequence[Table]) -> frozenset[str]:
    """Return the column names of other tables, both the current ones and those in the text."""
    current = {c.name.lower() for table in tables for c in table.columns}
    ids = {table.id for table in tables}
    return frozenset(current | {name.lower() for n in view.text_names if n.table_id in ids for name, _ in n.columns})


# -- the exact form ----------------------------------------------------------------------------------------------------


def _prefix_ctes(catalog: Catalog, saved_names: Sequence[TextNames], text: str) -> str:
    """Return a text with common table expressions for the tables whose names changed."""
    altered = {
        n.name: (n, table)
        for n in saved_names
        if (table := catalog.find_table_by_id(n.table_id)) and not is_current(n, table)
    }
    if not altered:
        return text
    parts = _cte_list(altered)
    words = [t.value.upper() for t in lex(text)]
    if words[:1] != ["WITH"]:
        return f"WITH {parts}\n{text}"
    defined = {words[at].lower() for at in range(len(words)) if words[at + 1 : at + 3] == ["AS", "("]}
    if words[1:2] == ["RECURSIVE"] or defined & {name.lower() for name in altered}:
        return f"WITH {parts}\nSELECT * FROM (\n{text}\n)"
    start = next(lex(text)).end
    return f"{text[:start]} {parts},{text[start:]}"


def _cte_list(tables_by_name: Mapping[str, tuple[TextNames, Table]]) -> str:
    """Return the common table expressions. If the name of one is the name of another's table, all get temporary names
    first."""
    names = {name.lower() for name in tables_by_name}
    has_conflict = any(t.name.lower() in names - {n.name.lower()} for n, t in tables_by_name.values())
    if not has_conflict:
        return ", ".join(
            f"{backticked(name)} AS ({_cte_select(*definition)})" for name, definition in tables_by_name.items()
        )
    used = names | {t.name.lower() for _, t in tables_by_name.values()}
    free = (name for name in (f"t{i}" for i in count()) if name not in used)
    temporary = {name: next(free) for name in tables_by_name}
    first = [f"{temporary[name]} AS ({_cte_select(*definition)})" for name, definition in tables_by_name.items()]
    return ", ".join([*first, *(f"{backticked(name)} AS (SELECT * FROM {temporary[name]})" for name in tables_by_name)])


def _cte_select(names: TextNames, table: Table) -> str:
    current = {internal: name for name, internal in current_names(table).columns}
    pairs = [(current[internal], name) for name, internal in names.columns if internal in current]
    items = (backticked(new) + ("" if new == old else f" AS {backticked(old)}") for new, old in pairs)
    return f"SELECT {', '.join(items)} FROM {backticked(table.name)}"
