"""What cannot be maintained: results that depend on time, chance, or on where and how the query runs.

The optimiser folds `current_date()` into a constant, so these are looked for in the analysed plan.
"""

from __future__ import annotations

import re
from typing import Any

from viewkeeper.errors import Unsupported
from viewkeeper.plan.catalyst.pruning import ORDER_SENSITIVE

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
    "Collate": "COLLATE",
    "UnionLoop": "WITH RECURSIVE",
}

_CLASS = re.compile(r'"class":"[\w.]*?(\w+)\$?"')
_HINT = "A view may only depend on its tables' rows."


def refuse_volatile(analysed: Any) -> None:
    """Raise Unsupported if the analysed plan depends on time or chance, or calls foreign code."""
    names = set(_CLASS.findall(analysed.toJSON()))
    for name in sorted(names & VOLATILE.keys()):
        raise Unsupported(f"{VOLATILE[name]} depends on when or where the query runs.", hint=_HINT)
    for name in sorted(names & FOREIGN.keys()):
        raise Unsupported(f"{FOREIGN[name]} cannot be maintained in a view.", hint=_HINT)
    # Spark also calls aggregates nondeterministic that depend on the order of their input; that order is made stable.
    if not analysed.deterministic() and not names & ORDER_SENSITIVE:
        raise Unsupported("The query is not deterministic.", hint=_HINT)
