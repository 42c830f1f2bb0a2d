"""Builds one DuckDB statement for a query; none of its names is the user's.

    FROM      t1, t2 … are the inputs; their columns are q1, q2 …, whatever their names in the store
    SELECT    without aggregates:   SELECT list FROM … WHERE …
              with aggregates:      SELECT list FROM (SELECT keys, calls FROM … WHERE … GROUP BY keys) WHERE having
    ORDER BY  with Spark's defaults: NULLs first in ascending order, last in descending order

Conditions that can fail (a division, an overflow) are refused: Spark may evaluate them on other rows than DuckDB.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from viewkeeper.errors import UnknownName
from viewkeeper.expressions import can_raise, render, render_predicate
from viewkeeper.model import types
from viewkeeper.model.catalog.catalog import Catalog, View
from viewkeeper.model.schema import Table
from viewkeeper.plan.functions import aggregate_sql
from viewkeeper.plan.logical.nodes import Call, Expr, column
from viewkeeper.read.access.predicates import IS_NULL, SargableTerm, predicate_from_condition
from viewkeeper.sql.embedded.coercion import UnprovenQuery
from viewkeeper.sql.embedded.typing import Scope, ScopeField

_SELECT_FIELDS = {"type", "modifiers", "cte_map", "select_list", "from_table", "where_clause", "having"}
_SELECT_FIELDS |= {"group_expressions", "group_sets", "aggregate_handling"}
_JOINS = {"INNER": "JOIN", "LEFT": "LEFT JOIN", "RIGHT": "RIGHT JOIN", "FULL": "FULL JOIN"}
_NAMED_AGGREGATES = ("count", "sum", "avg", "min", "max")
_MAX_LIMIT = 2**31 - 1
"""Spark's largest limit. Spark reports the error of a larger one."""


@dataclass(frozen=True)
class TableInput:
    """A table that the statement reads under a name, with the names of its columns there."""

    name: str
    table: Table
    columns: Mapping[str, str]
    """Column names by internal name."""
    terms: tuple[SargableTerm, ...] = ()
    """Conditions that all rows needed from the table satisfy."""


@dataclass(frozen=True)
class Relation:
    text: str
    fields: tuple[ScopeField, ...]


@dataclass
class StatementBuilder:
    """Builds the statement of one query, from its innermost relation outwards."""

    catalog: Catalog
    inputs: list[TableInput] = field(default_factory=list)
    used_columns: set[str] = field(default_factory=set)
    terms: list[SargableTerm] = field(default_factory=list)
    """Conditions on single columns, by internal name: rows that do not satisfy them are not needed."""
    null_padded: set[str] = field(default_factory=set)
    """Columns that an outer join may fill with NULLs."""
    _name_count: int = 0

    # -- FROM ---------------------------------------------------------------------------------------------------------

    def build_relation(self, node: Mapping[str, Any], ctes: Mapping[str, Any]) -> Relation:
        if node.get("sample") or node.get("column_name_alias") or node.get("at_clause"):
            raise UnprovenQuery("a relation with clauses")
        if node["type"] == "JOIN":
            return self._build_join(node, ctes)
        if node["type"] == "SUBQUERY":
            return self._build_subquery(node["subquery"]["node"], node.get("alias", ""), ctes)
        if node["type"] != "BASE_TABLE" or len(node["qualified_name"]["path"]) != 1:
            raise UnprovenQuery(f"{node['type']} is no table or view of this database")
        name = node["table_name"]
        if name.lower() in ctes:
            inner, outer = ctes[name.lower()]
            return self._build_subquery(inner, node.get("alias", name), outer)
        return self._build_table(name, node.get("alias", name))

    def _build_table(self, name: str, alias: str) -> Relation:
        found = self.catalog.find(name)
        if found is None:  # Spark would not know it either
            raise UnknownName(f"There is no table or view {name!r}.")
        table = found.table if isinstance(found, View) else found
        by_internal_name = {self._new_name("q"): c for c in table.columns}
        table_input = TableInput(self._new_name("t"), table, {q: c.name for q, c in by_internal_name.items()})
        self.inputs.append(table_input)
        return Relation(
            table_input.name,
            tuple(ScopeField(alias, c.name, q, c.type, c.nullable) for q, c in by_internal_name.items()),
        )

    def _build_subquery(self, node: Mapping[str, Any], alias: str, ctes: Mapping[str, Any]) -> Relation:
        inner = self.build_query(node, ctes)
        fields = tuple(replace(f, relation=alias) for f in inner.fields)
        return Relation(f"({inner.text}) AS {self._new_name('r')}", fields)

    def _build_join(self, node: Mapping[str, Any], ctes: Mapping[str, Any]) -> Relation:
        left, right = self.build_relation(node["left"], ctes), self.build_relation(node["right"], ctes)
        fields = (*left.fields, *right.fields)
        if node.get("using_columns") or node["ref_type"] not in ("REGULAR", "CROSS"):
            raise UnprovenQuery("a join that is not ON a condition")
        if node["ref_type"] == "CROSS":
            return Relation(f"({left.text} CROSS JOIN {right.text})", fields)
        kind = node["join_type"]
        if kind not in _JOINS or "condition" not in node:
            raise UnprovenQuery(f"a join of kind {kind}")
        read = Scope(fields).read(node["condition"])
        condition = self._render_condition(read)
        # A row that fails the condition joins nothing. Only rows of a preserved side are in the result all the same.
        preserved = {"LEFT": left.fields, "RIGHT": right.fields, "FULL": fields}.get(kind, ())
        self._collect_terms(read, {f.internal_name for f in preserved})
        self.null_padded |= {
            f.internal_name for f in {"LEFT": right.fields, "RIGHT": left.fields, "FULL": fields}.get(kind, ())
        }
        if kind in ("RIGHT", "FULL"):
            fields = (*(replace(f, nullable=True) for f in left.fields), *fields[len(left.fields) :])
        if kind in ("LEFT", "FULL"):
            fields = (*fields[: len(left.fields)], *(replace(f, nullable=True) for f in right.fields))
        return Relation(f"({left.text} {_JOINS[kind]} {right.text} ON {condition})", fields)

    # -- SELECT -------------------------------------------------------------------------------------------------------

    def build_query(self, node: Mapping[str, Any], ctes: Mapping[str, Any]) -> Relation:
        if node["type"] != "SELECT_NODE" or not node.keys() <= _SELECT_FIELDS:
            raise UnprovenQuery(f"{node['type']} with {', '.join(sorted(node.keys() - _SELECT_FIELDS)) or 'its parts'}")
        if node["aggregate_handling"] != "STANDARD_HANDLING" or node.get("group_sets", [[]])[1:]:
            raise UnprovenQuery("GROUP BY ALL or grouping sets")
        for cte in node["cte_map"].get("map", ()):
            if cte["value"].get("aliases") or cte["value"]["query_node"]["type"] != "SELECT_NODE":
                raise UnprovenQuery("a WITH that is no plain query")
            ctes = {**ctes, cte["key"].lower(): (cte["value"]["query_node"], ctes)}
        source = self.build_relation(node["from_table"], ctes)
        where = ""
        if "where_clause" in node:
            condition = Scope(source.fields).read(node["where_clause"])
            where = f" WHERE {self._render_condition(condition)}"
            self._collect_terms(condition)
        items = _expand_stars(node["select_list"], source.fields)
        grouped = GroupedScope(self, source.fields, node.get("group_expressions", ()), items)
        read = [grouped.read(item) for item in items]
        having = grouped.read(node["having"]) if "having" in node else None
        sorts = [
            (self._order_expression(o["expression"], items, read, grouped), _direction(o)) for o in _order_items(node)
        ]
        exprs = [grouped.rewrite(e) for e in read]
        orders = [(self._render(grouped.rewrite(e)), direction) for e, direction in sorts]
        if grouped.has_groups:
            parts = [f"{self._render(k)} AS {q}" for q, k in grouped.keys.items()]
            parts += [f"{self._render_aggregate(c)} AS {c.name}" for c in grouped.calls]
            group_by = f" GROUP BY {', '.join(str(i + 1) for i in range(len(grouped.keys)))}" if grouped.keys else ""
            text = f"FROM (SELECT {', '.join(parts)} FROM {source.text}{where}{group_by}) AS {self._new_name('r')}"
            text += f" WHERE {self._render_condition(grouped.rewrite(having))}" if having is not None else ""
        elif having is not None:
            raise UnprovenQuery("HAVING without groups")
        else:
            text = f"FROM {source.text}{where}"
        fields = tuple(
            ScopeField("", name, self._new_name("q"), e.type, e.nullable)
            for name, e in zip(map(_item_name, items), exprs, strict=True)
        )
        return self._build_select(node, text, fields, exprs, orders)

    def _collect_terms(self, condition: Expr, preserved: Collection[str] = ()) -> None:
        """Collect the terms of a condition, except on the `preserved` columns. They hold above an outer join too: a row
        that the join pads with NULLs passes no comparison. Only IS NULL can be true for it."""
        terms = predicate_from_condition(condition).terms
        self.terms += [
            t for t in terms if t.column not in preserved and (t.op != IS_NULL or t.column not in self.null_padded)
        ]

    def _build_select(
        self,
        node: Mapping[str, Any],
        text: str,
        fields: Sequence[ScopeField],
        exprs: Sequence[Expr],
        orders: Sequence[tuple[str, str]],
    ) -> Relation:
        kinds = [m["type"] for m in node.get("modifiers", ())]
        distinct = ""
        if "DISTINCT_MODIFIER" in kinds:
            distinct = "DISTINCT "
            rendered = {self._render(e) for e in exprs}
            if any(m.get("distinct_on_targets") for m in node["modifiers"]) or any(
                types.is_float(e.type) for e in exprs
            ):
                raise UnprovenQuery("DISTINCT of floats, or DISTINCT ON")
            if any(text not in rendered for text, _ in orders):
                raise UnprovenQuery("ORDER BY of what DISTINCT leaves out")
        columns = ", ".join(f"{self._render(e)} AS {f.internal_name}" for f, e in zip(fields, exprs, strict=True))
        sorted_ = f" ORDER BY {', '.join(' '.join(o) for o in orders)}" if orders else ""
        return Relation(f"SELECT {distinct}{columns} {text}{sorted_}{_limit_clause(node)}", tuple(fields))

    def _order_expression(
        self,
        node: Mapping[str, Any],
        select_list: Sequence[Mapping[str, Any]],
        exprs: Sequence[Expr],
        scope: GroupedScope,
    ) -> Expr:
        """An item of ORDER BY: a position in the list, a name in the list, or an expression over the source."""
        if node["class"] == "CONSTANT":
            return exprs[_list_index(node, len(exprs))]
        if node["class"] == "COLUMN_REF" and len(node["column_names"]) == 1:
            name = node["column_names"][0].lower()
            found = {e for item, e in zip(select_list, exprs, strict=True) if _item_name(item).lower() == name}
            if len(found) > 1:
                raise UnprovenQuery(f"{name} is ambiguous")
            if found:
                return found.pop()
        return scope.read(node)

    # -- rendering ----------------------------------------------------------------------------------------------------

    def _render(self, expr: Expr) -> str:
        self.used_columns |= expr.columns()
        return render(expr)

    def _render_aggregate(self, call: Call) -> str:
        for arg in call.args:
            self.used_columns |= arg.columns()
        return aggregate_sql(call)

    def _render_condition(self, expr: Expr) -> str:
        if expr.type != types.BOOLEAN or can_raise(expr):
            raise UnprovenQuery("a condition that can fail")
        self.used_columns |= expr.columns()
        return render_predicate(expr)

    def _new_name(self, prefix: str) -> str:
        self._name_count += 1
        return f"{prefix}{self._name_count}"


class GroupedScope:
    """Expressions over groups: a key or an aggregate becomes a column of the grouped relation."""

    def __init__(
        self,
        builder: StatementBuilder,
        fields: tuple[ScopeField, ...],
        keys: Sequence[Any],
        select_list: Sequence[Mapping[str, Any]],
    ) -> None:
        self.builder, self.fields = builder, fields
        self.calls: list[Call] = []
        self.keys: dict[str, Expr] = {}
        for node in keys:
            expr = self._read_key(node, select_list)
            if types.is_float(expr.type):
                raise UnprovenQuery("GROUP BY of a float")
            self.keys[builder._new_name("k")] = expr
        self.has_groups = bool(keys)

    def read(self, node: Mapping[str, Any]) -> Expr:
        return Scope(self.fields, self._add_call).read(node)

    def rewrite(self, expr: Expr) -> Expr:
        """Rewrite an expression over the groups, if there are any; known only after all expressions were read."""
        return self._rewrite_over_groups(expr) if self.has_groups else expr

    def _read_key(self, node: Mapping[str, Any], select_list: Sequence[Mapping[str, Any]]) -> Expr:
        scope = Scope(self.fields)
        if node["class"] == "CONSTANT":
            node = select_list[_list_index(node, len(select_list))]
        elif node["class"] == "COLUMN_REF" and scope.find_field(node["column_names"]) is None:
            named = [item for item in select_list if item.get("alias", "").lower() == node["column_names"][-1].lower()]
            if len(named) != 1:
                raise UnprovenQuery("a group by an unknown name")
            node = named[0]
        return scope.read(node)

    def _add_call(self, call: Call) -> Expr:
        self.has_groups = True
        for known in self.calls:
            if replace(known, name="") == call:
                return column(known.name, known.type, known.nullable)
        self.calls.append(replace(call, name=self.builder._new_name("a")))
        return column(self.calls[-1].name, call.type, call.nullable)

    def _rewrite_over_groups(self, expr: Expr) -> Expr:
        for name, key in self.keys.items():
            if expr == key:
                return column(name, key.type, key.nullable)
        if expr.op == "column" and not any(expr.value == c.name for c in self.calls):
            raise UnprovenQuery("a column that is not grouped by")
        return replace(expr, args=tuple(self._rewrite_over_groups(a) for a in expr.args))


def _expand_stars(select_list: Sequence[Mapping[str, Any]], fields: Sequence[ScopeField]) -> list[Mapping[str, Any]]:
    """The list with each star replaced by its columns."""
    found: list[Mapping[str, Any]] = []
    for item in select_list:
        if item["class"] != "STAR":
            found.append(item)
            continue
        if not item.keys() <= {"class", "type", "relation_name"}:
            raise UnprovenQuery("a star with clauses")
        relation = item.get("relation_name", "").lower()
        matching = [f for f in fields if relation in ("", f.relation.lower())]
        if not matching:
            raise UnprovenQuery(f"there is no relation {relation}")
        found += [{"class": "COLUMN_REF", "type": "COLUMN_REF", "column_names": _qualified_name(f)} for f in matching]
    return found


def _qualified_name(source_field: ScopeField) -> list[str]:
    return [source_field.relation, source_field.name] if source_field.relation else [source_field.name]


def _item_name(item: Mapping[str, Any]) -> str:
    """The name that Spark gives an item of the list; only simple ones are supported."""
    if item.get("alias"):
        return str(item["alias"])
    if item["class"] == "COLUMN_REF":
        return str(item["column_names"][-1])
    if item["class"] == "FUNCTION" and item["function_name"] == "count_star":
        return "count(1)"
    arguments = [a["expression"] for a in item.get("arguments", ())]
    function = item.get("function_name", "").lower()
    if function in _NAMED_AGGREGATES and len(arguments) == 1 and arguments[0]["class"] == "COLUMN_REF":
        return f"{function}({'DISTINCT ' if item.get('distinct') else ''}{arguments[0]['column_names'][-1]})"
    raise UnprovenQuery("an expression without a name (write AS name)")


def _list_index(node: Mapping[str, Any], length: int) -> int:
    """The list position that a number means, from 0."""
    literal = node["literal"]
    if literal.get("kind") != "INTEGER" or not 1 <= int(literal["text"]) <= length:
        raise UnprovenQuery("a constant that is no place in the list")
    return int(literal["text"]) - 1


def _direction(order: Mapping[str, Any]) -> str:
    descends = order["type"] == "DESCENDING"
    nulls = order["null_order"].removeprefix("NULLS ")
    if nulls not in ("FIRST", "LAST"):
        nulls = "LAST" if descends else "FIRST"
    return f"{'DESC' if descends else 'ASC'} NULLS {nulls}"


def _order_items(node: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [o for m in node.get("modifiers", ()) if m["type"] == "ORDER_MODIFIER" for o in m["orders"]]


def _limit_clause(node: Mapping[str, Any]) -> str:
    text = ""
    for modifier in node.get("modifiers", ()):
        if modifier["type"] == "LIMIT_MODIFIER":
            if modifier.get("limit_type", "ROW_COUNT") != "ROW_COUNT":
                raise UnprovenQuery("a limit that is no number of rows")
            for word in ("limit", "offset"):
                if word in modifier:
                    literal = modifier[word].get("literal", {})
                    if literal.get("kind") != "INTEGER" or int(literal["text"]) > _MAX_LIMIT:
                        raise UnprovenQuery("a limit that is no number")
                    text += f" {word.upper()} {int(literal['text'])}"
        elif modifier["type"] not in ("ORDER_MODIFIER", "DISTINCT_MODIFIER"):
            raise UnprovenQuery(f"{modifier['type']} is not known here")
    return text
