"""Catalyst expressions as DuckDB SQL with exactly Spark's semantics (ANSI mode, UTC).

    rules/table.py                  Catalyst class → rule; the list of what a view may use
    rules/rule.py                   the parts of a rule
    rules/*.py                      writers of DuckDB text that need more than one line, by topic
    backends/duckdb_functions.py    macros and exact functions for a DuckDB connection; the fingerprint
    backends/duckdb_errors.py       DuckDB's runtime errors as Viewkeeper's
    backends/vector_*.py            evaluation over Arrow and numpy, without DuckDB

`render` writes an expression bottom-up. Every value has the DuckDB type of its Catalyst type. Where a part can fail,
the text makes DuckDB evaluate this part only when Spark would.
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
"""The Catalyst classes that can be rendered."""

SUPPORTED: tuple[tuple[str, str, str], ...] = tuple((r.op, r.sql, r.note) for r in RULES.values() if r.sql)
"""(Catalyst class, SQL syntax, note for users) of each documented rule, for the reference page."""


def render(expr: Expr) -> str:
    """Return DuckDB text for `expr`, of the DuckDB type of its type. Raise Unsupported if there is no rule."""
    rule = _find_rule(expr)
    if expr.op in ("And", "Or"):
        parts = logic.operands(expr)
        return logic.chain(expr.op, parts, [render(p) for p in parts], can_raise)
    texts = [render(a) for a in expr.args]
    failing = [can_raise(a) for a in expr.args]
    lazy = rule.stops_at_null == "no"
    isolated = {i for i, fails in enumerate(failing) if fails and rule.isolates_failing_args(expr)}
    long = {i for i, t in enumerate(texts) if len(t) > _MAX_INLINE_LENGTH and (not lazy or i == 0 or not failing[i])}
    bound = isolated | long
    names = {i: _variable_name(texts[i]) for i in bound}
    references = [names.get(i, t) for i, t in enumerate(texts)]
    text = (_render_guarded(expr, references) if lazy and any(failing[1:]) else None) or rule.duckdb(expr, references)
    if not rule.is_typed and expr.type != types.VOID:  # raise_error takes the type of its context
        text = cast(text, expr.type)
    order = list(range(len(texts)))[:: -1 if rule.stops_at_null == "right" else 1]
    for position in reversed(range(len(order))):
        i = order[position]
        if not lazy and expr.args[i].nullable and any(failing[j] for j in order[position + 1 :]):
            text = f"(CASE WHEN {references[i]} IS NULL THEN NULL ELSE {text} END)"
        if i in names:
            text = _bind(names[i], texts[i], text, inline=i not in isolated)
    return text


_MAX_INLINE_LENGTH = 300
"""A longer argument text is bound to a variable and evaluated once, instead of being repeated."""


def _variable_name(text: str) -> str:
    return f"v{zlib.crc32(text.encode()):08x}"


def _bind(variable: str, value: str, text: str, inline: bool) -> str:
    """Return `text` with a variable bound to `value`: a lambda over a list of one element is SQL's only "let"."""
    if inline and text.count(variable) < 2:
        return text.replace(variable, value)
    return f"list_transform([{value}], lambda {variable}: {text})[1]"


def render_predicate(condition: Expr) -> str:
    """Return DuckDB text for a Filter's condition. Spark tests its conjuncts in order and drops a row at the first one
    that is not true, so that after a NULL conjunct the next ones are not evaluated."""
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
    """Raise Unsupported if a part of `expr` cannot be rendered."""
    render(expr)


def can_raise(expr: Expr) -> bool:
    """Return whether the evaluation of `expr` may fail on some values."""
    return next(failing(expr), None) is not None


def failing(expr: Expr) -> Iterator[Expr]:
    """Yield the parts of an expression that may fail on some values of their arguments."""
    todo = [expr]
    while todo:  # not recursive, because a chain of ORs can be thousands of levels deep
        e = todo.pop()
        if _find_rule(e).raises(e):
            yield e
        todo.extend(e.args)


def _find_rule(expr: Expr) -> Rule:
    rule = RULES.get(expr.op)
    if rule is None:
        supported = ", ".join(sql for _, sql, _ in SUPPORTED)
        raise Unsupported(
            f"The expression {_display_name(expr)} is not supported in a view.", hint=f"Supported: {supported}."
        )
    if reason := rule.refuse(expr):
        raise Unsupported(f"{reason} is not supported in a view.")
    return rule


def _display_name(expr: Expr) -> str:
    """Return the name in Spark SQL; for a Java method, with underscores: `parseUrl` → parse_url."""
    if isinstance(expr.value, str):
        return expr.value
    op = expr.op.rsplit(".", 1)[-1]
    return "".join(f"_{c}" if c.isupper() and i and not op[i - 1].isupper() else c for i, c in enumerate(op)).lower()


def _render_guarded(expr: Expr, texts: list[str]) -> str | None:
    """Return a CASE for a COALESCE or IN whose later arguments can fail, None for other expressions."""
    match expr.op:
        case "Coalesce":
            return logic.guarded_coalesce(texts)
        case "In":
            return logic.guarded_in(texts)
    return None
