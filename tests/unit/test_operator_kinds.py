"""An operator is one module: nothing outside of the operators asks of which kind one is."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import viewkeeper
from viewkeeper.operators import kinds
from viewkeeper.operators.delta_join import operator
from viewkeeper.operators.kinds import KINDS
from viewkeeper.operators.operator import Operator

SOURCE = Path(viewkeeper.__file__).parent
PACKAGE = "viewkeeper.operators"


def asked(source: str) -> Iterator[int]:
    """The lines of a module that choose by the kind of an operator.

    They test its class (`isinstance`, `issubclass`, `type(x) is`, a class pattern), or compare its `kind` with the name
    of one. Classes are known by where they are imported from: plan nodes have some of the same names.
    """
    tree = ast.parse(source)
    classes, modules = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE):
            found = {(alias.asname or alias.name, alias.name) for alias in node.names}
            classes |= {mine for mine, name in found if name[0].isupper() and _is_kind(name)}
            modules |= {mine for mine, name in found if not name[0].isupper()}

    def names_kind(node: ast.AST) -> bool:
        for part in ast.walk(node):
            if isinstance(part, ast.Name) and part.id in classes:
                return True
            if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name) and part.value.id in modules:
                return _is_kind(part.attr)
        return False

    def says_kind(node: ast.AST) -> bool:
        return any(isinstance(p, ast.Constant) and p.value in KINDS for p in ast.walk(node))

    def reads_kind(node: ast.AST) -> bool:
        return any(isinstance(p, ast.Attribute) and p.attr == "kind" for p in ast.walk(node))

    def chooses(node: ast.AST) -> bool:
        match node:
            case ast.Call(func=ast.Name("isinstance" | "issubclass"), args=[_, *classes_]):
                return any(map(names_kind, classes_))
            case ast.Compare(left=left, comparators=others):
                sides = [left, *others]
                of_class = any(isinstance(s, ast.Call) and getattr(s.func, "id", "") == "type" for s in sides)
                if of_class and any(map(names_kind, sides)):
                    return True
                return any(map(reads_kind, sides)) and any(map(says_kind, sides))
            case ast.MatchClass(cls=of):
                return names_kind(of)
            case ast.Match(subject=subject, cases=cases):
                return reads_kind(subject) and any(says_kind(c.pattern) for c in cases)
            case ast.Dict(keys=keys):
                return any(k is not None and names_kind(k) for k in keys)
        return False

    yield from (getattr(node, "lineno", 0) for node in ast.walk(tree) if chooses(node))


def _is_kind(name: str) -> bool:
    found = getattr(kinds, name, None) or getattr(operator, name, None)
    return inspect.isclass(found) and issubclass(found, Operator)


@pytest.mark.parametrize(
    "line",
    [
        "isinstance(operator, Lookup)",
        "isinstance(operator, (int, Lookup))",
        "isinstance(operator, Lookup | Recompute)",
        "isinstance(operator, kinds.TopK)",
        "isinstance(operator, DeltaJoin)",
        "type(operator) is Lookup",
        "operator.kind == 'lookup'",
        "operator.kind in ('image', 'arrange')",
        "flow.operators[name].kind != 'bulk_join'",
        "{Lookup: 1}",
        "{'table_image'} & {o.kind for o in found} == {'table_image'}",
        "match operator:\n    case Lookup(probe=p):\n        pass",
        "match operator.kind:\n    case 'lookup':\n        pass",
    ],
)
def test_choosing_by_kind_is_noticed(line: str) -> None:
    imports = "from viewkeeper.operators import kinds\nfrom viewkeeper.operators.kinds import Lookup, Recompute\n"
    imports += "from viewkeeper.operators.delta_join.operator import DeltaJoin\n"
    assert list(asked(imports + line))


@pytest.mark.parametrize(
    "line", ["isinstance(node, Aggregate)", "Input(3).id", "token.kind == 'word'", "KINDS[box.kind]"]
)
def test_other_questions_are_not(line: str) -> None:
    imports = (
        "from viewkeeper.operators.kinds import KINDS, Input\nfrom viewkeeper.plan.logical.nodes import Aggregate\n"
    )
    assert not list(asked(imports + line))


def test_nobody_outside_of_the_operators_chooses_by_kind() -> None:
    modules = [p for p in SOURCE.rglob("*.py") if "operators" not in p.relative_to(SOURCE).parts[:1]]
    found = [f"{p.relative_to(SOURCE)}:{line}" for p in modules for line in asked(p.read_text("utf-8"))]
    assert found == []
    within = (SOURCE / "operators").glob("*.py")
    assert [f"{p.name}:{line}" for p in within for line in asked(p.read_text("utf-8"))] == []


def test_every_kind_is_registered_under_its_name_and_is_a_module_of_that_name() -> None:
    for module in pkgutil.iter_modules(kinds.__path__):
        found = importlib.import_module(f"{kinds.__name__}.{module.name}")
        mine = [c for _, c in inspect.getmembers(found, inspect.isclass) if c.__module__ == found.__name__]
        declared = {c.kind for c in mine if issubclass(c, Operator) and hasattr(c, "kind")}
        assert declared == {module.name}
        assert KINDS[module.name] in mine
    assert set(KINDS) == {m.name for m in pkgutil.iter_modules(kinds.__path__)}


@pytest.mark.parametrize("kind", [k for k in KINDS.values() if not k.is_load_only])
def test_every_kind_can_be_told_and_drawn(kind: type[Operator]) -> None:
    assert kind.describe is not Operator.describe
    assert kind.box_description is not Operator.box_description


@pytest.mark.parametrize("kind", KINDS.values())
def test_what_has_state_says_how_it_is_loaded(kind: type[Operator]) -> None:
    """What passes rows on and is stateful must be able to give its whole output to a view that is made later."""
    if kind.stateful and not kind.is_arrangement:
        assert kind.full is not Operator.full
    if not kind.is_source and not kind.is_sink:
        assert kind.run is not Operator.run
