"""The rows of the rule table: a `Rule` defines how one Catalyst class is written in DuckDB.

A rule's `duckdb` gets the expression and the texts of its arguments. Each text has its DuckDB type and is safe in any
context (a call, a CAST, or parenthesized). `duckdb` returns text whose value, cast to the expression's type, is exactly
Spark's value. Expressions that cannot be written exactly are rejected by `refuse`, or have no rule.

**Errors.** `raises` returns whether the operation itself can fail, given values as arguments. Spark evaluates the
arguments of most operations from left to right and stops at the first NULL, so `NULL + 1/0` is NULL; divisions start
at the right. `stops_at_null` states this order, and the renderer writes a CASE where a later argument can fail.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from viewkeeper.expressions.tree import Expr
from viewkeeper.model import types
from viewkeeper.model.types import Kind, Type

Texts = Sequence[str]
DuckDBWriter = Callable[[Expr, Texts], str]
Test = Callable[[Expr], bool]


def never(_: Expr) -> bool:
    return False


def always(_: Expr) -> bool:
    return True


def accept(_: Expr) -> str | None:
    return None


@dataclass(frozen=True)
class Rule:
    """One row of the table. `op` is the Catalyst class, `sql` the syntax for users, `note` a remark for users."""

    op: str
    sql: str
    duckdb: DuckDBWriter
    raises: Test = never
    stops_at_null: Literal["left", "right", "no"] = "left"
    refuse: Callable[[Expr], str | None] = accept
    note: str = ""
    is_typed: bool = False  # the text already has the right type, so no CAST is added
    isolates_failing_args: Test = never
    """Whether an argument that can fail is evaluated separately, before the operation. Otherwise a TRY would catch the
    argument's error as its own, and DuckDB skips a sum of which only NULL-ness is tested."""


def template(text: str) -> DuckDBWriter:
    """Return the writer of a plain call: `{0}`, `{1}` … are the arguments, `{all}` is the list of all."""
    return lambda _, args: text.format(*args, all=", ".join(args))


def duckdb_type(type_: Type) -> str:
    """Return the DuckDB type of a value inside an expression: intervals are numbers of months or microseconds."""
    match type_.kind:
        case Kind.MONTHS:
            return "INTEGER"
        case Kind.MICROSECONDS:
            return "BIGINT"
        case Kind.ARRAY:
            return duckdb_type(type_.element) + "[]"
    return types.duckdb(type_)


def cast(text: str, type_: Type) -> str:
    return f"CAST({text} AS {duckdb_type(type_)})"


def fail(condition: str, message: str) -> str:
    """Return an error as a value of any type. `condition` is Spark's error condition, which `duckdb_errors` parses."""
    return f"error({quote(f'{condition}: {message}')})"


def quote(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def parameter(expr: Expr, position: int = 0, default: Any = None) -> Any:
    """Return a parameter of the expression, one of the fields that the Catalyst reader stores beside the arguments."""
    value = expr.value if isinstance(expr.value, tuple) else (expr.value,)
    return value[position] if position < len(value) and value[position] is not None else default


def constant(expr: Expr) -> Any:
    """Return the value of a literal; None for NULL and for anything but a literal."""
    return expr.value if expr.op == "literal" else None


def is_text_or_bytes_cast(expr: Expr) -> bool:
    """Return whether a cast converts text or bytes."""
    return expr.args[0].type in (types.STRING, types.BINARY)


def is_try(expr: Expr) -> bool:
    """Return whether the operation returns NULL instead of failing (`try_add`, `try_cast`)."""
    return bool(parameter(expr) == "TRY")
