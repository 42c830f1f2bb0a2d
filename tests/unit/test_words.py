"""The words that the source tree no longer uses do not come back (CONTRIBUTING.md, "Words").

A class is a noun of the field, a module is named for what it defines. The lists have the private words that the
glossary replaced: participles (`Told`), persons (`Keeper`), body parts (`Hands`) and quantities (`Few`).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import viewkeeper

SOURCE = Path(viewkeeper.__file__).parents[1]
PACKAGES = ("viewkeeper", "viewkeeper_hbase")


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


PARTS = words(
    """
    ahead alive answered asked asking begun beside blamed came company crew door elsewhere errand expelling few
    followed gathered gathering given hands heard held holding keeper keeping kin lanes leash leasing lifting lying many
    measured mender mending met noted others outlook partner partners parted patience picked pinned placing publishing
    ran reached remade said shelf shelves shown sinking standing stretch stretches sweep tally tallies theta
    tidying together told underway uniting waits way ways whole wishes withdrawn
    """
)
"""Words that are no part of a class's name, nor a function's whole name."""

WHOLE = words(
    """
    basis bits choice done duck facts feed flow flows form found fresh here image images kept known latest
    lost made mark parts picture place places records rounds routes rows seen share shares site small
    spread staged staging taken things touched tried wanted where wire words
    written wrong
    """
)
"""Words that say too little to be the whole name of a class: `Rows` of what, `Taken` by which component?"""

MODULES = words(
    """
    adding afterwards ahead alive alone altering answering answers ascending asked asking at attached beside blame
    bulkjoin choosing companions company comparing crew crossover described drafts drawing driving duck ducks early
    elsewhere expelling facts few finding findings fitting flow flows folds following foresight gathering given hands
    helping holding hush inherited keeping kept kinship known launch leash lifting living looking lost many meeting
    mending narrowing narrower nearby opened others outlooks parcels partner partners passing patience placing presums
    projecting pulse pushed pushing putting readings reasons recent regenerate rejects resolving running serving shelves
    shown sinking site sizes spellings spread staged stretches suspending sweeping tally telling theta tidying together
    topk touched tried underway united uniting weighing whole wide wire wishes words writing written
    """
)
"""Names of modules that the move to the packages of the data path replaced (docs/decisions, 87)."""


def source_files() -> list[Path]:
    return sorted(file for package in PACKAGES for file in (SOURCE / package).rglob("*.py"))


def name_parts(name: str) -> list[str]:
    """`LookupCursor` and `lookup_cursor` → lookup, cursor."""
    return [part.lower() for part in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)]


def replaced_names(source: str) -> Iterator[str]:
    """The top-level classes and functions of a module that have a replaced name."""
    for node in ast.parse(source).body:
        if not isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        parts = name_parts(node.name)
        is_class = isinstance(node, ast.ClassDef)
        if is_class and (not PARTS.isdisjoint(parts) or (len(parts) == 1 and parts[0] in WHOLE)):
            yield f"line {node.lineno}: class {node.name}"
        if not is_class and len(parts) == 1 and parts[0] in PARTS:
            yield f"line {node.lineno}: {node.name}()"


def test_no_class_or_function_has_a_replaced_name() -> None:
    found = [
        f"{f.relative_to(SOURCE)}, {name}" for f in source_files() for name in replaced_names(f.read_text("utf-8"))
    ]
    assert found == []


def test_no_module_or_package_has_a_replaced_name() -> None:
    modules = [file.relative_to(SOURCE) for file in source_files()]
    assert len(modules) > 300
    found = {str(m) for m in modules for part in m.with_suffix("").parts if part in MODULES}
    assert found == set()


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("class Told: ...", ["line 1: class Told"]),
        ("class _RowsTold: ...", ["line 1: class _RowsTold"]),
        ("class _Taken: ...", ["line 1: class _Taken"]),
        ("class NameTaken: ...", []),
        ("class LookupCursor: ...", []),
        ("def _told(): ...", ["line 1: _told()"]),
        ("def create_many(): ...", []),
    ],
)
def test_replaced_names_are_found(source: str, names: list[str]) -> None:
    assert list(replaced_names(source)) == names
