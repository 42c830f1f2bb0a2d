"""Quoting of a family's parameter table in a query, so that users may write its name without backticks.

    FROM revenue.parameters p JOIN sales …          FROM `revenue.parameters` p JOIN sales …
    FROM `revenue`.`parameters` p JOIN sales …      likewise
    SELECT revenue.parameters.since FROM …          SELECT `revenue.parameters`.since FROM …

Spark and DuckDB interpret a name of two parts as a table in another database. Viewkeeper has no such names, so in the
position of a relation `x.parameters` can only be the parameter table. Elsewhere it is a column of `x` and stays
unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from viewkeeper.model.names import backticked
from viewkeeper.syntax.family_text import PARAMETERS_SUFFIX, parameter_table_name
from viewkeeper.syntax.lexer import SqlToken, lex

_QUERY_STARTS = frozenset({"SELECT", "UNION", "INTERSECT", "EXCEPT"})
_FROM_ENDS = frozenset({"WHERE", "GROUP", "HAVING", "ORDER", "SORT", "CLUSTER", "DISTRIBUTE", "LIMIT", "WINDOW"})
"""Words that begin a query, and words that end its FROM clause."""

_BEFORE_RELATION = frozenset({"FROM", "JOIN", ",", "("})
"""Tokens that precede a relation within FROM."""


def quote_parameter_tables(query: str) -> str:
    """Return the query with backticks around the parameter tables that it reads."""
    if PARAMETERS_SUFFIX[1:] not in query.lower():
        return query
    tokens = list(lex(query))
    relations = set(_find_parameter_tables(tokens))
    families = {tokens[index].value.lower() for index in relations}
    parts, position = [], 0
    for index, token in enumerate(tokens):
        qualifies = index not in relations and token.value.lower() in families and _keyword_at(tokens, index + 3) == "."
        if _is_parameter_table(tokens, index) and (index in relations or qualifies):
            parts += [query[position : token.start], backticked(parameter_table_name(token.value))]
            position = tokens[index + 2].end
    return "".join([*parts, query[position:]])


def _find_parameter_tables(text_tokens: Sequence[SqlToken]) -> Iterator[int]:
    """Yield the index of each relation of two parts that is a parameter table.

    A parenthesis has a clause of its own: `extract(YEAR FROM x)` contains no SELECT, so its FROM begins no clause.
    """
    clauses, previous = [""], ""
    for index in range(len(text_tokens)):
        word = _keyword_at(text_tokens, index)
        is_relation = clauses[-1] == "FROM" and previous in _BEFORE_RELATION
        if word == "(":
            clauses.append("FROM" if is_relation else "")
        elif word == ")":
            del clauses[max(1, len(clauses) - 1) :]
        elif word == "FROM":
            if previous != "DISTINCT" and (clauses[-1] or previous in ("", "(")):
                clauses[-1] = word
        elif word in _QUERY_STARTS or word in _FROM_ENDS:
            clauses[-1] = word
        elif is_relation and _is_parameter_table(text_tokens, index) and _keyword_at(text_tokens, index + 3) != ".":
            yield index
        previous = word


def _is_parameter_table(text_tokens: Sequence[SqlToken], index: int) -> bool:
    if _keyword_at(text_tokens, index + 1) != "." or index + 2 >= len(text_tokens):
        return False
    family, second = text_tokens[index], text_tokens[index + 2]
    return {family.kind, second.kind} <= {"word", "name"} and second.value.lower() == PARAMETERS_SUFFIX[1:]


def _keyword_at(text_tokens: Sequence[SqlToken], index: int) -> str:
    """Return a word in capitals or a sign; "" for names, texts and positions outside the statement."""
    if index >= len(text_tokens) or text_tokens[index].kind not in ("word", "sign"):
        return ""
    return text_tokens[index].value.upper()
