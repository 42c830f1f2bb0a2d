"""One query as one DuckDB statement in which no name is the user's.

    FROM      t1, t2 … are the inputs; their columns are q1, q2 …, whatever they are called in the store
    SELECT    without aggregates:   SELECT list FROM … WHERE …
              with aggregates:      SELECT list FROM (SELECT keys, calls FROM … WHERE … GROUP BY keys) WHERE having
    ORDER BY  as Spark does where nothing is said: NULLs first where it ascends, last where it descends

Conditions that can fail (a division, an overflow) are not taken: Spark may look at other rows than DuckDB, earlier.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from viewkeeper.errors import UnknownName
from viewkeeper.expressions import can_raise, predicate, render
from viewkeeper.model import types
from viewkeeper.model.catalog.catalog import Catalog, View
from viewkeeper.model.schema import Table
from viewkeeper.plan.functions import aggregate_sql
from viewkeeper.plan.logical.nodes import Call, Expr, column
from viewkeeper.read.access.predicates import NULL, Term, by_condition
from viewkeeper.sql.embedded.coercion import NotProven
from viewkeeper.sql.embedded.typing import Field, Scope

_SELECT = {"type", "modifiers", "cte_map", "select_list", "from_table", "where_clause", "having"}
_SELECT |= {"group_expressions", "group_sets", "aggregate_handling"}
_JOINS = {"INNER": "JOIN", "LEFT": "LEFT JOIN", "RIGHT": "RIGHT JOIN", "FULL": "FULL JOIN"}
_NAMED = ("count", "sum", "avg", "min", "max")
_MOST_ROWS = 2**31 - 1
"""Spark's largest limit; what it says of a larger one is for it to say."""


@dataclass(frozen=True)
class Input:
    """A table that the statement reads under a name, and what its columns are called there."""

    name: str
    table: Table
    columns: Mapping[str, str]
    """By the name inside."""
    terms: tuple[Term, ...] = ()
    """Which of its rows can be of use: all of these must be true for them."""


@dataclass(frozen=True)
class Relation:
    text: str
    fields: tuple[Field, ...]


@dataclass
class Builder:
    """Writes the statement of one query, from its innermost relation out."""

    catalog: Catalog
    inputs: list[Input] = field(default_factory=list)
    used: set[str] = field(default_factory=set)
    terms: list[Term] = field(default_factory=list)
    """What conditions say of single columns, called as inside: rows for which it is not true are of no use."""
    padded: set[str] = field(default_factory=set)
    """Columns that an outer join may fill with NULLs."""
    _names: int = 0

    # -- FROM ---------------------------------------------------------------------------------------------------------

    def relation(self, node: Mapping[str, Any], ctes: Mapping[str, Any]) -> Relation:
        if node.get("sample") or node.get("column_name_alias") or node.get("at_clause"):
            raise NotProven("a relation with clauses")
        if node["type"] == "JOIN":
            return self._join(node, ctes)
        if node["type"] == "SUBQUERY":
            return self._inner(node["subquery"]["node"], node.get("alias", ""), ctes)
        if node["type"] != "BASE_TABLE" or len(node["qualified_name"]["path"]) != 1:
            raise NotProven(f"{node['type']} is no table or view of this database")
        name = node["table_name"]
        if name.lower() in ctes:
            inner, outer = ctes[name.lower()]
            return self._inner(inner, node.get("alias", name), outer)
        return self._table(name, node.get("alias", name))

    def _table(self, name: str, alias: str) -> Relation:
        found = self.catalog.find(name)
        if found is None:  # Spark would not know it either
            raise UnknownName(f"There is no table or view {name!r}.")
        table = found.table if isinstance(found, View) else found
        inside = {self._name("q"): c for c in table.columns}
        made = Input(self._name("t"), table, {q: c.name for q, c in inside.items()})
        self.inputs.append(made)
        return Relation(made.name, tuple(Field(alias, c.name, q, c.type, c.nullable) for q, c in inside.items()))

    def _inner(self, node: Mapping[str, Any], alias: str, ctes: Mapping[str, Any]) -> Relation:
        made = self.query(node, ctes)
        fields = tuple(replace(f, relation=alias) for f in made.fields)
        return Relation(f"({made.text}) AS {self._name('r')}", fields)

    def _join(self, node: Mapping[str, Any], ctes: Mapping[str, Any]) -> Relation:
        left, right = self.relation(node["left"], ctes), self.relation(node["right"], ctes)
        fields = (*left.fields, *right.fields)
        if node.get("using_columns") or node["ref_type"] not in ("REGULAR", "CROSS"):
            raise NotProven("a join that is not ON a condition")
        if node["ref_type"] == "CROSS":
            return Relation(f"({left.text} CROSS JOIN {right.text})", fields)
        kind = node["join_type"]
        if kind not in _JOINS or "condition" not in node:
            raise NotProven(f"a join of kind {kind}")
        read = Scope(fields).read(node["condition"])
        condition = self._condition(read)
        # A row that does not pass joins nothing; only that of a side which is kept whole is there all the same.
        kept = {"LEFT": left.fields, "RIGHT": right.fields, "FULL": fields}.get(kind, ())
        self._narrow(read, {f.inside for f in kept})
        self.padded |= {f.inside for f in {"LEFT": right.fields, "RIGHT": left.fields, "FULL": fields}.get(kind, ())}
        if kind in ("RIGHT", "FULL"):
            fields = (*(replace(f, nullable=True) for f in left.fields), *fields[len(left.fields) :])
        if kind in ("LEFT", "FULL"):
            fields = (*fields[: len(left.fields)], *(replace(f, nullable=True) for f in right.fields))
        return Relation(f"({left.text} {_JOINS[kind]} {right.text} ON {condition})", fields)

    # -- SELECT -------------------------------------------------------------------------------------------------------

    def query(self, node: Mapping[str, Any], ctes: Mapping[str, Any]) -> Relation:
        if node["type"] != "SELECT_NODE" or not node.keys() <= _SELECT:
            raise NotProven(f"{node['type']} with {', '.join(sorted(node.keys() - _SELECT)) or 'its parts'}")
        if node["aggregate_handling"] != "STANDARD_HANDLING" or node.get("group_sets", [[]])[1:]:
            raise NotProven("GROUP BY ALL or grouping sets")
        for cte in node["cte_map"].get("map", ()):
            if cte["value"].get("aliases") or cte["value"]["query_node"]["type"] != "SELECT_NODE":
                raise NotProven("a WITH that is no plain query")
            ctes = {**ctes, cte["key"].lower(): (cte["value"]["query_node"], ctes)}
        source = self.relation(node["from_table"], ctes)
        where = ""
        if "where_clause" in node:
            condition = Scope(source.fields).read(node["where_clause"])
            where = f" WHERE {self._condition(condition)}"
            self._narrow(condition)
        listed = _expanded(node["select_list"], source.fields)
        grouped = Grouped(self, source.fields, node.get("group_expressions", ()), listed)
        read = [grouped.read(item) for item in listed]
        having = grouped.read(node["having"]) if "having" in node else None
        sorts = [(self._sorted(o["expression"], listed, read, grouped), _direction(o)) for o in _orders(node)]
        exprs = [grouped.over(e) for e in read]
        orders = [(self._text(grouped.over(e)), way) for e, way in sorts]
        if grouped.active:
            parts = [f"{self._text(k)} AS {q}" for q, k in grouped.keys.items()]
            parts += [f"{self._call(c)} AS {c.name}" for c in grouped.calls]
            by = f" GROUP BY {', '.join(str(i + 1) for i in range(len(grouped.keys)))}" if grouped.keys else ""
            text = f"FROM (SELECT {', '.join(parts)} FROM {source.text}{where}{by}) AS {self._name('r')}"
            text += f" WHERE {self._condition(grouped.over(having))}" if having is not None else ""
        elif having is not None:
            raise NotProven("HAVING without groups")
        else:
            text = f"FROM {source.text}{where}"
        fields = tuple(
            Field("", name, self._name("q"), e.type, e.nullable)
            for name, e in zip(map(_shown, listed), exprs, strict=True)
        )
        return self._finished(node, text, fields, exprs, orders)

    def _narrow(self, condition: Expr, kept: Collection[str] = ()) -> None:
        """Note what a condition says of single columns, but of those that are `kept`. Above an outer join too: a row
        that it makes passes no comparison. Only IS NULL it may pass."""
        said = by_condition(condition).terms
        self.terms += [t for t in said if t.column not in kept and (t.op != NULL or t.column not in self.padded)]

    def _finished(
        self,
        node: Mapping[str, Any],
        text: str,
        fields: Sequence[Field],
        exprs: Sequence[Expr],
        orders: Sequence[tuple[str, str]],
    ) -> Relation:
        kinds = [m["type"] for m in node.get("modifiers", ())]
        distinct = ""
        if "DISTINCT_MODIFIER" in kinds:
            distinct = "DISTINCT "
            wanted = {self._text(e) for e in exprs}
            if any(m.get("distinct_on_targets") for m in node["modifiers"]) or any(
                types.is_float(e.type) for e in exprs
            ):
                raise NotProven("DISTINCT of floats, or DISTINCT ON")
            if any(text not in wanted for text, _ in orders):
                raise NotProven("ORDER BY of what DISTINCT leaves out")
        columns = ", ".join(f"{self._text(e)} AS {f.inside}" for f, e in zip(fields, exprs, strict=True))
        sorted_ = f" ORDER BY {', '.join(' '.join(o) for o in orders)}" if orders else ""
        return Relation(f"SELECT {distinct}{columns} {text}{sorted_}{_limit(node)}", tuple(fields))

    def _sorted(
        self, node: Mapping[str, Any], listed: Sequence[Mapping[str, Any]], exprs: Sequence[Expr], grouped: Grouped
    ) -> Expr:
        """An item of ORDER BY: a place in the list, a name in the list, or an expression over what the list is over."""
        if node["class"] == "CONSTANT":
            return exprs[_place(node, len(exprs))]
        if node["class"] == "COLUMN_REF" and len(node["column_names"]) == 1:
            name = node["column_names"][0].lower()
            found = {e for item, e in zip(listed, exprs, strict=True) if _shown(item).lower() == name}
            if len(found) > 1:
                raise NotProven(f"{name} is ambiguous")
            if found:
                return found.pop()
        return grouped.read(node)

    # -- texts --------------------------------------------------------------------------------------------------------

    def _text(self, expr: Expr) -> str:
        self.used |= expr.columns()
        return render(expr)

    def _call(self, call: Call) -> str:
        for arg in call.args:
            self.used |= arg.columns()
        return aggregate_sql(call)

    def _condition(self, expr: Expr) -> str:
        if expr.type != types.BOOLEAN or can_raise(expr):
            raise NotProven("a condition that can fail")
        self.used |= expr.columns()
        return predicate(expr)

    def _name(self, kind: str) -> str:
        self._names += 1
        return f"{kind}{self._names}"


class Grouped:
    """Expressions over groups: what is a key, or an aggregate, becomes a column of the grouped relation."""

    def __init__(
        self, builder: Builder, fields: tuple[Field, ...], keys: Sequence[Any], listed: Sequence[Mapping[str, Any]]
    ) -> None:
        self.builder, self.fields = builder, fields
        self.calls: list[Call] = []
        self.keys: dict[str, Expr] = {}
        for node in keys:
            expr = self._key(node, listed)
            if types.is_float(expr.type):
                raise NotProven("GROUP BY of a float")
            self.keys[builder._name("k")] = expr
        self.active = bool(keys)

    def read(self, node: Mapping[str, Any]) -> Expr:
        return Scope(self.fields, self._called).read(node)

    def over(self, expr: Expr) -> Expr:
        """What was read, once it is known whether there are groups."""
        return self._over_groups(expr) if self.active else expr

    def _key(self, node: Mapping[str, Any], listed: Sequence[Mapping[str, Any]]) -> Expr:
        scope = Scope(self.fields)
        if node["class"] == "CONSTANT":
            node = listed[_place(node, len(listed))]
        elif node["class"] == "COLUMN_REF" and scope.find(node["column_names"]) is None:
            named = [item for item in listed if item.get("alias", "").lower() == node["column_names"][-1].lower()]
            if len(named) != 1:
                raise NotProven("a group by an unknown name")
            node = named[0]
        return scope.read(node)

    def _called(self, call: Call) -> Expr:
        self.active = True
        for known in self.calls:
            if replace(known, name="") == call:
                return column(known.name, known.type, known.nullable)
        self.calls.append(replace(call, name=self.builder._name("a")))
        return column(self.calls[-1].name, call.type, call.nullable)

    def _over_groups(self, expr: Expr) -> Expr:
        for name, key in self.keys.items():
            if expr == key:
                return column(name, key.type, key.nullable)
        if expr.op == "column" and not any(expr.value == c.name for c in self.calls):
            raise NotProven("a column that is not grouped by")
        return replace(expr, args=tuple(self._over_groups(a) for a in expr.args))


def _expanded(listed: Sequence[Mapping[str, Any]], fields: Sequence[Field]) -> list[Mapping[str, Any]]:
    """The list with each star as the columns that it stands for."""
    found: list[Mapping[str, Any]] = []
    for item in listed:
        if item["class"] != "STAR":
            found.append(item)
            continue
        if not item.keys() <= {"class", "type", "relation_name"}:
            raise NotProven("a star with clauses")
        relation = item.get("relation_name", "").lower()
        there = [f for f in fields if relation in ("", f.relation.lower())]
        if not there:
            raise NotProven(f"there is no relation {relation}")
        found += [{"class": "COLUMN_REF", "type": "COLUMN_REF", "column_names": _full(f)} for f in there]
    return found


def _full(found: Field) -> list[str]:
    return [found.relation, found.name] if found.relation else [found.name]


def _shown(item: Mapping[str, Any]) -> str:
    """The name that Spark gives an item of the list; only plain ones are known here."""
    if item.get("alias"):
        return str(item["alias"])
    if item["class"] == "COLUMN_REF":
        return str(item["column_names"][-1])
    if item["class"] == "FUNCTION" and item["function_name"] == "count_star":
        return "count(1)"
    arguments = [a["expression"] for a in item.get("arguments", ())]
    function = item.get("function_name", "").lower()
    if function in _NAMED and len(arguments) == 1 and arguments[0]["class"] == "COLUMN_REF":
        return f"{function}({'DISTINCT ' if item.get('distinct') else ''}{arguments[0]['column_names'][-1]})"
    raise NotProven("an expression without a name (write AS name)")


def _place(node: Mapping[str, Any], length: int) -> int:
    """The place in the list that a number names, from 0."""
    literal = node["literal"]
    if literal.get("kind") != "INTEGER" or not 1 <= int(literal["text"]) <= length:
        raise NotProven("a constant that is no place in the list")
    return int(literal["text"]) - 1


def _direction(order: Mapping[str, Any]) -> str:
    descends = order["type"] == "DESCENDING"
    nulls = order["null_order"].removeprefix("NULLS ")
    if nulls not in ("FIRST", "LAST"):
        nulls = "LAST" if descends else "FIRST"
    return f"{'DESC' if descends else 'ASC'} NULLS {nulls}"


def _orders(node: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [o for m in node.get("modifiers", ()) if m["type"] == "ORDER_MODIFIER" for o in m["orders"]]


def _limit(node: Mapping[str, Any]) -> str:
    text = ""
    for modifier in node.get("modifiers", ()):
        if modifier["type"] == "LIMIT_MODIFIER":
            if modifier.get("limit_type", "ROW_COUNT") != "ROW_COUNT":
                raise NotProven("a limit that is no number of rows")
            for word in ("limit", "offset"):
                if word in modifier:
                    literal = modifier[word].get("literal", {})
                    if literal.get("kind") != "INTEGER" or int(literal["text"]) > _MOST_ROWS:
                        raise NotProven("a limit that is no number")
                    text += f" {word.upper()} {int(literal['text'])}"
        elif modifier["type"] not in ("ORDER_MODIFIER", "DISTINCT_MODIFIER"):
            raise NotProven(f"{modifier['type']} is not known here")
    return text
