"""Refuse queries that cannot be maintained: the result depends on time, chance, or where and how the query runs.

The optimiser folds `current_date()` into a constant, so the analysed plan is searched.
"""

from __future__ import annotations

import json
import re
from typing import Any

from viewkeeper.errors import Unsupported
from viewkeeper.plan import functions
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
"""Catalyst class → the function in SQL."""

FOREIGN_CODE = {
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

REWRITTEN_FUNCTIONS = {
    "TimeWindow": "window",
    "PreciseTimestampConversion": "window",
    "SessionWindow": "session_window",
    "WindowTime": "window_time",
}
"""Functions that the analyser rewrites, by the classes that still identify them."""

ORDER_DEPENDENT = {"First": "first", "Last": "last", "AnyValue": "any_value"}
"""Aggregates of a group that depend on the order of its rows. (The optimiser may replace them by others that do
not.)
"""

_CLASS_PATTERN = re.compile(r'"class":"[\w.]*?(\w+)\$?"')
_COLLATE = "Leave COLLATE out, or compare lower(…) with lower(…)."
_HINT = "A view may only depend on its tables' rows."


def refuse_volatile(analysed: Any) -> None:
    """Raise Unsupported if the analysed plan depends on time or chance, or calls foreign code."""
    text = analysed.toJSON()
    names = set(_CLASS_PATTERN.findall(text))
    for name in sorted(names & REWRITTEN_FUNCTIONS.keys()):
        raise Unsupported(
            f"The function {REWRITTEN_FUNCTIONS[name]} is not supported in a materialized view.",
            hint="Group by date_trunc('HOUR', …), or by arithmetic on unix_timestamp(…).",
        )
    if names & ORDER_DEPENDENT.keys():
        _refuse_ordered(json.loads(text))
    for name in sorted(names & VOLATILE.keys()):
        raise Unsupported(f"{VOLATILE[name]} depends on when or where the query runs.", hint=_HINT)
    if "Collate" in names:
        raise Unsupported("COLLATE is not supported in a view: text is compared by its bytes.", hint=_COLLATE)
    for name in sorted(names & FOREIGN_CODE.keys()):
        raise Unsupported(f"{FOREIGN_CODE[name]} cannot be maintained in a view.", hint=_HINT)
    # Spark also calls aggregates nondeterministic that depend on the order of their input; plans make that order
    # stable.
    if not analysed.deterministic() and not names & ORDER_SENSITIVE:
        raise Unsupported("The query is not deterministic.", hint=_HINT)


def _refuse_ordered(plan: Any) -> None:
    """Raise Unsupported if an Aggregate, even in a subquery, calls `first` or similar. Windows may call them."""
    if isinstance(plan, dict):
        if str(plan.get("class", "")).endswith(".logical.Aggregate"):
            called = set(_CLASS_PATTERN.findall(json.dumps(plan.get("aggregateExpressions"), separators=(",", ":"))))
            for name in sorted(called & ORDER_DEPENDENT.keys()):
                raise functions.unsupported_function(ORDER_DEPENDENT[name])
        plan = list(plan.values())
    if isinstance(plan, list):
        for part in plan:
            _refuse_ordered(part)
