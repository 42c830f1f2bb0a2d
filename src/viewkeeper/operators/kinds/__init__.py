"""The kinds of operators, one module each: fields, law, kernel, state, load, compaction, and description.

A new kind is a module here, a line in `KINDS`, and a golden plan that has it (CONTRIBUTING.md, "Add an operator").
"""

from __future__ import annotations

from collections.abc import Mapping

from viewkeeper.operators.kinds.aggregate import Aggregate
from viewkeeper.operators.kinds.arrange import Arrange
from viewkeeper.operators.kinds.bulk_join import BulkJoin
from viewkeeper.operators.kinds.consolidate import Consolidate
from viewkeeper.operators.kinds.family_cells import FamilyCells
from viewkeeper.operators.kinds.family_rows import FamilyRows
from viewkeeper.operators.kinds.input import Input
from viewkeeper.operators.kinds.lookup import Lookup
from viewkeeper.operators.kinds.recompute import Recompute
from viewkeeper.operators.kinds.sink import Sink
from viewkeeper.operators.kinds.table_image import FilteredTableImage, TableImage
from viewkeeper.operators.kinds.top_k import TopK
from viewkeeper.operators.operator import Operator

__all__ = [
    "KINDS",
    "Aggregate",
    "Arrange",
    "BulkJoin",
    "Consolidate",
    "FamilyCells",
    "FamilyRows",
    "FilteredTableImage",
    "Input",
    "Lookup",
    "Recompute",
    "Sink",
    "TableImage",
    "TopK",
]

_KIND_CLASSES = (
    Input,
    TableImage,
    Arrange,
    Lookup,
    BulkJoin,
    Consolidate,
    Aggregate,
    FamilyCells,
    FamilyRows,
    Recompute,
    TopK,
    Sink,
)

KINDS: Mapping[str, type[Operator]] = {kind.kind: kind for kind in _KIND_CLASSES}
