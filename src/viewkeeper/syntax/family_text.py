"""The text of a view family: `:name` stands for a parameter, and `lateral_query` makes a query that Spark can run.

    SELECT ¤p.*, ¤b.* FROM `q.parameters` ¤p, LATERAL ( … ¤p.day … ) ¤b        :day became ¤p.day

The query defines the meaning of a family, also for `audit`. An internal alias (`¤p`) cannot be a user's column.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from viewkeeper.errors import BadStatement
from viewkeeper.model.names import backticked
from viewkeeper.syntax.lexer import SqlToken, find_parameters, lex

PARAMETERS_SUFFIX = ".parameters"
"""The name of a family's table of parameters is the family's name with this suffix."""

FAMILY_OPTION = "_family"
"""The option of such a table that has the family's name."""

ROWS_ALIAS, MEMBER_ALIAS = "¤b", "¤p"


def parameter_table_name(view: str) -> str:
    return view + PARAMETERS_SUFFIX


def lateral_query(view: str, body: str, names: Sequence[str]) -> str:
    """Return the family as a query over its table of parameters. An unused parameter is an error, because members that
    differ only in it would be equal."""
    declared = {name.lower(): name for name in names}
    unused = dict(declared)
    parts, position = [], 0
    for mark, word in find_parameters(list(lex(body))):
        if word.value.lower() not in declared:
            raise BadStatement(
                f":{word.value} is none of the parameters of {view} (line {word.line}).",
                hint=f"Parameters are: {', '.join(names)}.",
            )
        parts += [body[position : mark.start], f"`{MEMBER_ALIAS}`.{backticked(declared[word.value.lower()])}"]
        position = word.end
        unused.pop(word.value.lower(), None)
    if unused:
        name = next(iter(unused.values()))
        raise BadStatement(
            f"The query of {view} does not use its parameter {name}.",
            hint=f"Write :{name} where its value belongs, or leave it out of PARAMETERS.",
        )
    text = "".join([*parts, body[position:]])
    table = backticked(parameter_table_name(view))
    return (
        f"SELECT `{MEMBER_ALIAS}`.*, `{ROWS_ALIAS}`.* FROM {table} `{MEMBER_ALIAS}`, LATERAL ({text}\n) `{ROWS_ALIAS}`"
    )


def declared_parameters(text_tokens: Sequence[SqlToken]) -> frozenset[str]:
    """Return the parameters that a statement declares, in lower case; empty if it does not create a family."""
    words = [t.value.upper() if t.kind == "word" else "" for t in text_tokens[:12]]
    if words[:1] != ["CREATE"] or "MATERIALIZED" not in words[:4] or "PARAMETERS" not in words:
        return frozenset()
    names, depth = set(), 0
    for previous, token in pairwise(text_tokens[words.index("PARAMETERS") :]):
        if previous.kind == "sign" and previous.value in "(,":
            depth += previous.value == "("
            if depth == 1:
                names.add(token.value.lower())
        if token.kind == "sign" and token.value == ")":
            depth -= 1
            if not depth:
                break
    return frozenset(names)
