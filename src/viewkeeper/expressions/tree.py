"""Expressions as values: a small frozen class for Catalyst's expressions, convertible to JSON and back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from viewkeeper.model import types
from viewkeeper.model.schema import Column
from viewkeeper.model.types import Type


@dataclass(frozen=True)
class Expr:
    """An expression. `op` is "column" (`value` is its name), "literal" (see below), or the name of a Catalyst class.

    The value of a literal has its JSON form: numbers as int, floats as `repr` text, decimals and strings as text, dates
    as days and timestamps as microseconds since 1970, binary as hex, NULL as None. Other operators keep their
    parameters (a cast's mode, a LIKE's escape character) in `value`.
    """

    op: str
    type: Type
    args: tuple[Expr, ...] = ()
    value: Any = None
    nullable: bool = True

    def walk(self) -> Iterator[Expr]:
        yield self
        for arg in self.args:
            yield from arg.walk()

    def columns(self) -> frozenset[str]:
        return frozenset(e.value for e in self.walk() if e.op == "column")

    def to_json(self) -> list[Any]:
        return [self.op, str(self.type), [a.to_json() for a in self.args], self.value, self.nullable]

    @staticmethod
    def from_json(data: list[Any]) -> Expr:
        op, type_, args, value, nullable = data
        return Expr(op, types.parse_type(type_), tuple(Expr.from_json(a) for a in args), _freeze(value), nullable)


def column(name: str, type_: Type, nullable: bool = True) -> Expr:
    return Expr("column", type_, value=name, nullable=nullable)


@dataclass(frozen=True)
class Named:
    """An expression with the name of its result column."""

    name: str
    expr: Expr

    @property
    def column(self) -> Column:
        return Column(self.name, self.expr.type, self.expr.nullable)


def _freeze(value: Any) -> Any:
    """Convert JSON lists to tuples, so that an expression is hashable."""
    return tuple(_freeze(v) for v in value) if isinstance(value, list) else value
