"""Translate aggregate calls to measures, which are the state that the aggregate operator maintains for them.

A call's FILTER is folded into its argument: the argument is NULL where the row does not count.
"""

from __future__ import annotations

from dataclasses import replace

from viewkeeper.errors import Defect, Unsupported
from viewkeeper.model import types
from viewkeeper.model.types import Kind
from viewkeeper.operators.aggregation.spec import AggregateSpec, Measure
from viewkeeper.plan.functions import function_name, parameter
from viewkeeper.plan.logical.nodes import Call, Expr

_VARIANCE_FUNCTIONS = ("VariancePop", "VarianceSamp", "StddevPop", "StddevSamp")
KERNEL_FUNCTIONS = frozenset({"Count", "Sum", "Average", "Min", "Max", "First", *_VARIANCE_FUNCTIONS})
"""Aggregates that the aggregate operator maintains; all others are recomputed from the rows of their group."""


def is_incremental(call: Call) -> bool:
    """Whether the aggregate operator maintains the call. It counts values of one argument, not of several together."""
    is_try = parameter(call, "evalMode") == "TRY" and call.type != types.DOUBLE  # doubles never overflow
    return call.function in KERNEL_FUNCTIONS and not is_try and not (call.distinct and len(call.args) > 1)


def value_arguments(spec: AggregateSpec) -> tuple[str, ...]:
    """Return the arguments whose values are counted: those of Min, Max and DISTINCT, each once, in order."""
    arguments = [m.argument for m in spec.measures if m.distinct or m.function in ("Min", "Max")]
    return tuple(dict.fromkeys(a for a in arguments if a is not None))


def make_measure(call: Call, arguments: dict[Expr, str], name: str) -> Measure:
    """Translate a call; `arguments` collects the argument expressions with their column names."""
    if call.function == "First":
        # Catalyst adds First where a group has exactly one non-NULL value (several DISTINCT aggregates), so Max is
        # equal. The reader refuses a user's First.
        call = replace(call, function="Max")
    argument = call_argument(call)
    if argument is None:
        return Measure(name, call.function, None, None, call.type)
    if argument.type.kind is Kind.STRUCT:
        raise Unsupported(f"{function_name(call)} of a STRUCT is not supported.", hint="Use max_by or min_by.")
    argument_name = arguments.setdefault(argument, f"a{len(arguments)}")
    distinct = call.distinct and call.function not in ("Min", "Max")
    return Measure(name, call.function, argument_name, argument.type, call.type, distinct)


def call_argument(call: Call) -> Expr | None:
    """Return the single argument of a call with its FILTER folded in: NULL where the row does not count.

    Return None for count(*).
    """
    args = call.args
    if call.function == "Count" and not call.distinct:
        args = tuple(a for a in args if a.nullable)
        if len(args) > 1 or (not args and call.filter is not None):
            present = [Expr("IsNotNull", types.BOOLEAN, (a,), nullable=False) for a in args]
            condition = present[0] if present else call.filter
            if condition is None:
                raise Defect("A count of nothing has no condition.")
            for extra in present[1:]:
                condition = Expr("And", types.BOOLEAN, (condition, extra), nullable=False)
            one = Expr("literal", types.INT, value=1, nullable=False)
            args = (Expr("CaseWhen", types.INT, (condition, one)),)
    if not args:
        return None
    if call.filter is None:
        return args[0]
    return Expr("CaseWhen", args[0].type, (call.filter, args[0]))
