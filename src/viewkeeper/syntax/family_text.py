"""The text of a family: `:name` stands for a parameter, and the whole is a query that Spark can run.

    SELECT _p.*, ¤b.* FROM `q.parameters` _p, LATERAL ( … :day … ) ¤b

That query says what a family means, also to `audit`; a name of ours (`_p`) cannot be a user's column, and Spark looks
for it outside of the parentheses only.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from viewkeeper.errors import BadStatement
from viewkeeper.model.names import backticked
from viewkeeper.syntax.lexer import SqlToken, find_parameters, lex

PARAMETERS_SUFFIX = ".parameters"
"""What the table of a family's parameters is called, after the family."""

FAMILY_OPTION = "_family"
"""The option of such a table: the family's name."""

ROWS_ALIAS, MEMBER_ALIAS = "¤b", "¤p"


def parameter_table_name(view: str) -> str:
    return view + PARAMETERS_SUFFIX


def lateral_query(view: str, body: str, names: Sequence[str]) -> str:
    """The family as a query over its table of parameters. Each of them is used: without it, members would be equal."""
    known = {name.lower(): name for name in names}
    unused = dict(known)
    parts, at = [], 0
    for mark, word in find_parameters(list(lex(body))):
        if word.value.lower() not in known:
            raise BadStatement(
                f":{word.value} is none of the parameters of {view} (line {word.line}).",
                hint=f"Parameters are: {', '.join(names)}.",
            )
        parts += [body[at : mark.start], f"`{MEMBER_ALIAS}`.{backticked(known[word.value.lower()])}"]
        at = word.end
        unused.pop(word.value.lower(), None)
    if unused:
        name = next(iter(unused.values()))
        raise BadStatement(
            f"The query of {view} does not use its parameter {name}.",
            hint=f"Write :{name} where its value belongs, or leave it out of PARAMETERS.",
        )
    text = "".join([*parts, body[at:]])
    table = backticked(parameter_table_name(view))
    return (
        f"SELECT `{MEMBER_ALIAS}`.*, `{ROWS_ALIAS}`.* FROM {table} `{MEMBER_ALIAS}`, LATERAL ({text}\n) `{ROWS_ALIAS}`"
    )


def declared_parameters(text_tokens: Sequence[SqlToken]) -> frozenset[str]:
    """The names of the parameters that a statement declares, in lower case; none if it makes no family."""
    words = [t.value.upper() if t.kind == "word" else "" for t in text_tokens[:12]]
    if words[:1] != ["CREATE"] or "MATERIALIZED" not in words[:4] or "PARAMETERS" not in words:
        return frozenset()
    names, depth = set(), 0
    for before, token in pairwise(text_tokens[words.index("PARAMETERS") :]):
        if before.kind == "sign" and before.value in "(,":
            depth += before.value == "("
            if depth == 1:
                names.add(token.value.lower())
        if token.kind == "sign" and token.value == ")":
            depth -= 1
            if not depth:
                break
    return frozenset(names)
