"""The table of a family's parameters in a query, where its name needs no backticks.

    FROM revenue.parameters p JOIN sales …          FROM `revenue.parameters` p JOIN sales …
    FROM `revenue`.`parameters` p JOIN sales …      the same
    SELECT revenue.parameters.since FROM …          SELECT `revenue.parameters`.since FROM …

Spark and DuckDB take a name of two parts for a table in another database. Here no table's name has two, so where a
relation stands `x.parameters` can only be the table; anywhere else it is a column of `x`, and left as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from viewkeeper.model.names import backticked
from viewkeeper.syntax.family_text import PARAMETERS_SUFFIX, parameter_table_name
from viewkeeper.syntax.lexer import SqlToken, lex

_QUERY_STARTS = frozenset({"SELECT", "UNION", "INTERSECT", "EXCEPT"})
_FROM_ENDS = frozenset({"WHERE", "GROUP", "HAVING", "ORDER", "SORT", "CLUSTER", "DISTRIBUTE", "LIMIT", "WINDOW"})
"""What begins a query, and what ends its FROM."""

_BEFORE_RELATION = frozenset({"FROM", "JOIN", ",", "("})
"""What stands before a relation, within FROM."""


def quote_parameter_tables(query: str) -> str:
    """The query with backticks around the tables of parameters that it reads."""
    if PARAMETERS_SUFFIX[1:] not in query.lower():
        return query
    found = list(lex(query))
    relations = set(_find_parameter_tables(found))
    read = {found[place].value.lower() for place in relations}
    parts, at = [], 0
    for place, token in enumerate(found):
        qualifies = place not in relations and token.value.lower() in read and _keyword_at(found, place + 3) == "."
        if _is_parameter_table(found, place) and (place in relations or qualifies):
            parts += [query[at : token.start], backticked(parameter_table_name(token.value))]
            at = found[place + 2].end
    return "".join([*parts, query[at:]])


def _find_parameter_tables(text_tokens: Sequence[SqlToken]) -> Iterator[int]:
    """Where a relation of two parts begins, the second being that of a table of parameters.

    A parenthesis has a clause of its own: in `extract(YEAR FROM x)` there is no SELECT, so its FROM begins none.
    """
    clauses, before = [""], ""
    for place in range(len(text_tokens)):
        word = _keyword_at(text_tokens, place)
        begins = clauses[-1] == "FROM" and before in _BEFORE_RELATION
        if word == "(":
            clauses.append("FROM" if begins else "")
        elif word == ")":
            del clauses[max(1, len(clauses) - 1) :]
        elif word == "FROM":
            if before != "DISTINCT" and (clauses[-1] or before in ("", "(")):
                clauses[-1] = word
        elif word in _QUERY_STARTS or word in _FROM_ENDS:
            clauses[-1] = word
        elif begins and _is_parameter_table(text_tokens, place) and _keyword_at(text_tokens, place + 3) != ".":
            yield place
        before = word


def _is_parameter_table(text_tokens: Sequence[SqlToken], index: int) -> bool:
    if _keyword_at(text_tokens, index + 1) != "." or index + 2 >= len(text_tokens):
        return False
    family, second = text_tokens[index], text_tokens[index + 2]
    return {family.kind, second.kind} <= {"word", "name"} and second.value.lower() == PARAMETERS_SUFFIX[1:]


def _keyword_at(text_tokens: Sequence[SqlToken], index: int) -> str:
    """A word in capitals or a sign; nothing of names, texts and what is not there."""
    if index >= len(text_tokens) or text_tokens[index].kind not in ("word", "sign"):
        return ""
    return text_tokens[index].value.upper()
