"""What cannot be maintained: results that depend on time, chance, or on where and how the query runs.

The optimiser folds `current_date()` into a constant, so these are looked for in the analysed plan.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from viewkeeper.errors import Unsupported
from viewkeeper.plan.catalyst.tree import Jvm

VOLATILE = {
    "CurrentDate": "current_date()",
    "CurDateExpressionBuilder": "curdate()",
    "CurrentTimestamp": "current_timestamp()",
    "Now": "now()",
    "LocalTimestamp": "localtimestamp()",
    "CurrentTime": "current_time()",
    "CurrentBatchTimestamp": "current_timestamp()",
    "CurrentTimeZone": "current_timezone()",
    "Rand": "rand()",
    "Randn": "randn()",
    "RandStr": "randstr()",
    "Uniform": "uniform()",
    "Uuid": "uuid()",
    "Shuffle": "shuffle()",
    "MonotonicallyIncreasingID": "monotonically_increasing_id()",
    "SparkPartitionID": "spark_partition_id()",
    "InputFileName": "input_file_name()",
    "InputFileBlockStart": "input_file_block_start()",
    "InputFileBlockLength": "input_file_block_length()",
    "CurrentUser": "current_user()",
    "CurrentDatabase": "current_database()",
    "CurrentCatalog": "current_catalog()",
    "CurrentPath": "current_path()",
    "SparkVersion": "version()",
    "CallMethodViaReflection": "reflect()",
    "TryReflect": "try_reflect()",
}
"""Catalyst class: how a user writes it."""

FOREIGN = {
    "ScalaUDF": "a user-defined function",
    "ScalaAggregator": "a user-defined aggregate",
    "PythonUDF": "a Python function",
    "PythonUDAF": "a Python aggregate",
    "PythonUDTF": "a Python table function",
    "UserDefinedPythonFunction": "a Python function",
    "HiveSimpleUDF": "a Hive function",
    "HiveGenericUDF": "a Hive function",
    "HiveUDAFFunction": "a Hive function",
    "ScriptTransformation": "TRANSFORM",
    "Sample": "TABLESAMPLE",
    "UnionLoop": "WITH RECURSIVE",
}

ORDER_SENSITIVE = frozenset({"First", "Last", "CollectList", "CollectSet", "ListAgg", "Mode", "MaxBy", "MinBy"})
"""Aggregates that Spark calls nondeterministic because of their input's order, which is made stable elsewhere."""

_HINT = "A view may only depend on its tables' rows."


def refuse_volatile(jvm: Jvm, analysed: Any) -> None:
    """Raise Unsupported if the analysed plan depends on time or chance, or calls foreign code."""
    names = set(_classes(json.loads(analysed.toJSON())))
    for name in sorted(names & VOLATILE.keys()):
        raise Unsupported(f"{VOLATILE[name]} depends on when or where the query runs.", hint=_HINT)
    for name in sorted(names & FOREIGN.keys()):
        raise Unsupported(f"{FOREIGN[name]} cannot be maintained in a view.", hint=_HINT)
    if not analysed.deterministic() and not names & ORDER_SENSITIVE:
        raise Unsupported("The query is not deterministic.", hint=_HINT)


def _classes(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if "class" in value:
            yield value["class"].rsplit(".", 1)[-1]
        for part in value.values():
            yield from _classes(part)
    elif isinstance(value, list):
        for part in value:
            yield from _classes(part)
