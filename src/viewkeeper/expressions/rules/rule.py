"""What the table of expressions is made of: a `Rule` says how one Catalyst class is written in DuckDB.

A rule's `write` gets the expression and the texts of its arguments, each already of its DuckDB type and safe to put
anywhere (a call, a CAST, or in parentheses). It gives text whose value, cast to the expression's type, is what Spark
gives. It never approximates: what cannot be written exactly is refused by `refuse`, or has no rule.

**Errors.** `raises` says whether the operation itself, its arguments being values, can fail. Spark evaluates the
arguments of most operations from left to right and stops at the first NULL, so `NULL + 1/0` is NULL; divisions start
at the right. `stops` names that order, and the renderer writes a CASE where a later argument can fail.
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
    """One row of the table. `op` is the Catalyst class, `sql` how a user writes it, `note` what a user should know."""

    op: str
    sql: str
    duckdb: DuckDBWriter
    raises: Test = never
    stops_at_null: Literal["left", "right", "no"] = "left"
    refuse: Callable[[Expr], str | None] = accept
    note: str = ""
    is_typed: bool = False  # `write` gives the right type by itself, no CAST is needed
    isolates_failing_args: Test = never
    """Whether an argument that can fail is evaluated by itself, before it: a TRY would take its error for its own, and
    DuckDB leaves a sum out of which only NULL is asked."""


def template(text: str) -> DuckDBWriter:
    """A writer for a plain call: `{0}`, `{1}` … stand for the arguments, `{all}` for all of them."""
    return lambda _, args: text.format(*args, all=", ".join(args))


def duckdb_type(type_: Type) -> str:
    """The DuckDB type of a value inside an expression: intervals are numbers of months or of microseconds."""
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
    """An error as a value of any type. `condition` is Spark's name for it; `faults` reads it back."""
    return f"error({quote(f'{condition}: {message}')})"


def quote(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def parameter(expr: Expr, position: int = 0, default: Any = None) -> Any:
    """One of the fields that the reader keeps beside the arguments (`catalyst.FIELDS` lists them)."""
    value = expr.value if isinstance(expr.value, tuple) else (expr.value,)
    return value[position] if position < len(value) and value[position] is not None else default


def constant(expr: Expr) -> Any:
    """The value of a literal; None for NULL and for anything that is not a literal."""
    return expr.value if expr.op == "literal" else None


def is_text_or_bytes_cast(expr: Expr) -> bool:
    """Whether a cast reads text or bytes."""
    return expr.args[0].type in (types.STRING, types.BINARY)


def is_try(expr: Expr) -> bool:
    """Whether the operation gives NULL where it would fail (`try_add`, `try_cast`)."""
    return bool(parameter(expr) == "TRY")
