"""Catalyst expressions as DuckDB SQL with exactly Spark's meaning (ANSI mode, UTC).

    table.py        Catalyst class → how it is written; the list of what a view may use
    rule.py         what a row of the table says
    literals, arithmetic, decimals, logic, casts (readings, spellings), strings, patterns, dates, maths
                    the writers that need more than one line
    functions.py    macros and exact functions that a DuckDB connection needs; the fingerprint
    faults.py       DuckDB's runtime errors as ours

`render` goes through the expression from the leaves up. Every value has the DuckDB type of Catalyst's type. Where a
part can fail, the text makes DuckDB look at it only when Spark would.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from viewkeeper.errors import Unsupported
from viewkeeper.expressions.backends.duckdb_errors import translate_error
from viewkeeper.expressions.backends.duckdb_functions import fingerprint, register_functions
from viewkeeper.expressions.rules import logic
from viewkeeper.expressions.rules.rule import Rule, cast
from viewkeeper.expressions.rules.table import RULES
from viewkeeper.expressions.tree import Expr
from viewkeeper.model import types

__all__ = [
    "OPS",
    "SUPPORTED",
    "can_raise",
    "check",
    "failing",
    "fingerprint",
    "register_functions",
    "render",
    "render_predicate",
    "translate_error",
]

OPS = frozenset(RULES)
"""Catalyst's classes that can be rendered."""

SUPPORTED: tuple[tuple[str, str, str], ...] = tuple((r.op, r.sql, r.note) for r in RULES.values() if r.sql)
"""(Catalyst class, how it is written in SQL, what to know), for the reference page."""


def render(expr: Expr) -> str:
    """DuckDB text for `expr`, of the DuckDB type of its type. Raises Unsupported."""
    rule = _find_rule(expr)
    if expr.op in ("And", "Or"):
        parts = logic.operands(expr)
        return logic.chain(expr.op, parts, [render(p) for p in parts], can_raise)
    texts = [render(a) for a in expr.args]
    failing = [can_raise(a) for a in expr.args]
    lazy = rule.stops_at_null == "no"
    before = {i for i, fails in enumerate(failing) if fails and rule.isolates_failing_args(expr)}
    heavy = {i for i, t in enumerate(texts) if len(t) > _MAX_INLINE_LENGTH and (not lazy or i == 0 or not failing[i])}
    once = before | heavy
    names = {i: _variable_name(texts[i]) for i in once}
    shown = [names.get(i, t) for i, t in enumerate(texts)]
    text = (_render_guarded(expr, shown) if lazy and any(failing[1:]) else None) or rule.duckdb(expr, shown)
    if not rule.is_typed and expr.type != types.VOID:  # raise_error has the type of whatever it stands in for
        text = cast(text, expr.type)
    order = list(range(len(texts)))[:: -1 if rule.stops_at_null == "right" else 1]
    for place in reversed(range(len(order))):
        i = order[place]
        if not lazy and expr.args[i].nullable and any(failing[j] for j in order[place + 1 :]):
            text = f"(CASE WHEN {shown[i]} IS NULL THEN NULL ELSE {text} END)"
        if i in names:
            text = _bind(names[i], texts[i], text, inline=i not in before)
    return text


_MAX_INLINE_LENGTH = 300
"""Characters of an argument's text above which it is evaluated once and not wherever it is mentioned."""


def _variable_name(text: str) -> str:
    return f"v{zlib.crc32(text.encode()):08x}"


def _bind(variable: str, value: str, text: str, inline: bool) -> str:
    """`text` with a variable for `value`: a lambda over a list of one element, SQL's only way to say "let"."""
    if inline and text.count(variable) < 2:
        return text.replace(variable, value)
    return f"list_transform([{value}], lambda {variable}: {text})[1]"


def render_predicate(condition: Expr) -> str:
    """DuckDB text for a Filter's condition: Spark tests its conjuncts in order and drops a row at the first that is
    not true, so a NULL conjunct keeps the next from being evaluated."""
    parts = logic.operands(condition) if condition.op == "And" else [condition]
    texts = [render(p) for p in parts]
    failing = [i for i, p in enumerate(parts) if can_raise(p)]
    if not failing or len(parts) == 1:
        return "(" + " AND ".join(texts) + ")"
    cut = min(failing[-1] + 1, len(parts) - 1)
    text = " AND ".join(texts[cut:])
    for head in reversed(texts[:cut]):
        text = f"CASE WHEN {head} THEN {text} ELSE FALSE END"
    return f"({text})"


def check(expr: Expr) -> None:
    """Raise Unsupported if `expr` or a part of it cannot be rendered."""
    render(expr)


def can_raise(expr: Expr) -> bool:
    """Whether evaluating `expr` may fail on some values."""
    return next(failing(expr), None) is not None


def failing(expr: Expr) -> Iterator[Expr]:
    """The parts of an expression that may fail on some values of their arguments."""
    todo = [expr]
    while todo:  # not recursive: a chain of ORs can be thousands deep
        e = todo.pop()
        if _find_rule(e).raises(e):
            yield e
        todo.extend(e.args)


def _find_rule(expr: Expr) -> Rule:
    rule = RULES.get(expr.op)
    if rule is None:
        known = ", ".join(sql for _, sql, _ in SUPPORTED)
        raise Unsupported(
            f"The expression {_display_name(expr)} is not supported in a view.", hint=f"Supported: {known}."
        )
    if reason := rule.refuse(expr):
        raise Unsupported(f"{reason} is not supported in a view.")
    return rule


def _display_name(expr: Expr) -> str:
    """As Spark SQL calls it; a Java method that stands for a function with underscores: `parseUrl` → parse_url."""
    if isinstance(expr.value, str):
        return expr.value
    op = expr.op.rsplit(".", 1)[-1]
    return "".join(f"_{c}" if c.isupper() and i and not op[i - 1].isupper() else c for i, c in enumerate(op)).lower()


def _render_guarded(expr: Expr, texts: list[str]) -> str | None:
    """COALESCE and IN whose later arguments can fail, as a CASE."""
    match expr.op:
        case "Coalesce":
            return logic.guarded_coalesce(texts)
        case "In":
            return logic.guarded_in(texts)
    return None
