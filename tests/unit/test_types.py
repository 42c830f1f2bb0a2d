"""Types are values: their names are written and read in one place, and nobody tests the text."""

from __future__ import annotations

import ast
import pickle
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import viewkeeper
from viewkeeper.errors import Unsupported
from viewkeeper.model import types
from viewkeeper.model.types import Family, Kind, NestedField, Type

SOURCE = Path(viewkeeper.__file__).parent
NESTED = [
    "array<int>",
    "array<array<decimal(38,18)>>",
    "map<string,array<date>>",
    "struct<a:int,b:struct<c:decimal(10,2),d:map<string,int>>>",
    "struct<>",
    "struct<a:int not null,b:array<string not null>>",
]
OTHERS = ["void", "interval year to month", "interval month", "interval day to second", "interval hour", "variant"]


@pytest.mark.parametrize("name", [*map(str, types.SCALAR_TYPES), "decimal(38,0)", "decimal(1,1)", *NESTED, *OTHERS])
def test_a_type_is_read_as_it_was_written(name: str) -> None:
    found = types.parse_type(name)
    assert str(found) == name
    assert types.parse_type(str(found)) == found
    assert hash(types.parse_type.__wrapped__(name)) == hash(found)
    assert pickle.loads(pickle.dumps(found)) == found


@pytest.mark.parametrize("name", ["struct<a b:int,c>d:int>", "struct<x:y:int>", "map<int>", "array<>"])
def test_names_of_fields_may_have_any_character(name: str) -> None:
    """Spark does not quote them in a type's name; then the kind is known, and the whole text is kept."""
    found = types.parse_type(name)
    assert found.family is Family.NESTED
    assert str(found) == name


def test_a_type_says_what_it_is_made_of() -> None:
    found = types.parse_type("struct<a:decimal(12,2),b:array<string not null>>")
    assert found.kind is Kind.STRUCT
    a, b = found.nested_fields
    assert a == NestedField("a", types.decimal(12, 2))
    assert types.decimal_digits(a.type) == (12, 2)
    assert b.type.element == types.STRING
    assert not b.type.nested_fields[0].nullable
    assert found != Type(Kind.STRUCT, nested_fields=(a,))
    assert types.parse_type("interval year").kind is Kind.MONTHS
    assert types.parse_type("interval minute to second").kind is Kind.MICROSECONDS
    assert types.decimal(12, 2) is types.parse_type("decimal(12, 2)")


def test_what_no_column_can_hold_is_refused_by_name() -> None:
    for name in (*NESTED, *OTHERS):
        with pytest.raises(Unsupported, match="is not supported") as refused:
            types.arrow(types.parse_type(name))
        assert name.upper() in refused.value.message


def test_every_family_and_width() -> None:
    assert {t.family for t in types.SCALAR_TYPES} == set(Family) - {
        *(Family.DECIMAL, Family.INTERVAL, Family.NESTED, Family.VOID, Family.OTHER)
    }
    assert [types.bit_width(t) for t in types.INTEGERS] == [8, 16, 32, 64]
    assert types.external_type(types.TIMESTAMP) == pa.timestamp("us", "UTC") != types.arrow(types.TIMESTAMP)


# -- nobody tests the text --------------------------------------------------------------------------------------------

NAMES = {*map(str, types.SCALAR_TYPES), "void", "decimal"}
STARTS = ("decimal", "array<", "struct<", "map<", "interval ", "timestamp")


def asked(source: str) -> Iterator[int]:
    """The lines of a module that choose by the name of a type, or spell one of a decimal.

    What is compared must look like a type: something called `type`, `type_`, `kind`, `source` or `target`, or its text.
    """

    def is_name(node: ast.AST) -> bool:
        return isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in NAMES

    def says_name(node: ast.AST) -> bool:
        return is_name(node) or (isinstance(node, (ast.Tuple, ast.List, ast.Set)) and any(map(is_name, node.elts)))

    def is_type(node: ast.AST) -> bool:
        match node:
            case ast.Attribute(attr="type" | "argument_type"):
                return True
            case ast.Name("type_" | "type_name" | "source" | "target"):
                return True
            case ast.Call(func=ast.Name("str"), args=[inner]):
                return is_type(inner)
            case ast.Call(func=ast.Attribute(value=inner, attr="lower" | "upper" | "strip")):
                return is_type(inner)
        return False

    def chooses(node: ast.AST) -> bool:
        match node:
            case ast.Compare(left=left, comparators=others):
                return any(map(is_type, (left, *others))) and any(map(says_name, (left, *others)))
            case ast.Call(func=ast.Attribute(attr="startswith" | "endswith"), args=[ast.Constant(value=str(start))]):
                return start.startswith(STARTS)
            case ast.Call(func=ast.Attribute(value=inner, attr="startswith" | "endswith")):
                return is_type(inner)
            case ast.Call(func=ast.Attribute(value=ast.Dict(keys=keys), attr="get"), args=[wanted, *_]):
                return is_type(wanted) and any(k is not None and is_name(k) for k in keys)
            case ast.Subscript(value=ast.Dict(keys=keys), slice=wanted):
                return is_type(wanted) and any(k is not None and is_name(k) for k in keys)
            case ast.Match(subject=subject, cases=cases):
                values = (p for c in cases for p in ast.walk(c.pattern) if isinstance(p, ast.MatchValue))
                return is_type(subject) and any(is_name(v.value) for v in values)
            case ast.JoinedStr(values=[ast.Constant(value=str(start)), *_]):
                return start.startswith("decimal(")
        return False

    yield from (
        node.lineno for node in ast.walk(ast.parse(source)) if isinstance(node, ast.expr | ast.stmt) and chooses(node)
    )


@pytest.mark.parametrize(
    "line",
    [
        "column.type == 'string'",
        "'binary' != column.type",
        "type_ in ('float', 'double')",
        "type_name.startswith('decimal')",
        "found.startswith('interval ')",
        "str(expr.type) == 'date'",
        "expr.type.lower() == 'date'",
        "{'string': 1}.get(column.type)",
        "{'string': 1}[type_]",
        "match expr.type:\n    case 'string' | 'int':\n        pass",
        "f'decimal({p},{s})'",
    ],
)
def test_a_test_of_the_text_is_noticed(line: str) -> None:
    assert list(asked(line))


@pytest.mark.parametrize(
    "line",
    ["column.type == types.STRING", "protocol == 'binary'", "word.startswith('decimate')", "{'string': 1}[word]"],
)
def test_other_tests_are_not(line: str) -> None:
    assert not list(asked(line))


def test_nobody_outside_of_the_types_tests_the_text_of_one() -> None:
    """`mypy` refuses a comparison of a type with a text; this is for those that it cannot see."""
    modules = [p for p in SOURCE.rglob("*.py") if p != SOURCE / "model" / "types.py"]
    assert [f"{p.relative_to(SOURCE)}:{line}" for p in modules for line in asked(p.read_text("utf-8"))] == []
