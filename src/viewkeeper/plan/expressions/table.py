"""The table: every Catalyst class that the renderer knows, how it is written in DuckDB, and what a user should know.

Read it as the list of what SQL a view may use. An expression that is not here is refused when a view is created.
"""

from __future__ import annotations

from viewkeeper.plan.expressions import arithmetic, casts, literals, logic, patterns, strings
from viewkeeper.plan.expressions.rule import Rule, template

BASICS = (
    Rule("column", "column", literals.column, typed=True),
    Rule("literal", "literal", literals.literal, typed=True),
    Rule("Cast", "CAST(x AS type), x::type, TRY_CAST", casts.write, casts.raises, refuse=casts.refuse),
)

ARITHMETIC = (
    Rule("Add", "x + y", arithmetic.infix("+"), arithmetic.infix_raises),
    Rule("Subtract", "x - y", arithmetic.infix("-"), arithmetic.infix_raises),
    Rule("Multiply", "x * y", arithmetic.infix("*"), arithmetic.infix_raises),
    Rule("Divide", "x / y", arithmetic.divide, arithmetic.divide_raises, stops="right"),
    Rule("IntegralDivide", "x div y", arithmetic.integral_divide, arithmetic.integral_divide_raises, stops="right"),
    Rule("Remainder", "x % y, mod(x, y)", arithmetic.remainder, arithmetic.remainder_raises, stops="right"),
    Rule("Pmod", "pmod(x, y)", arithmetic.pmod, arithmetic.pmod_raises, stops="right"),
    Rule("UnaryMinus", "-x", arithmetic.negate, arithmetic.negate_raises),
    Rule("UnaryPositive", "+x", template("{0}")),
    Rule("Abs", "abs(x)", arithmetic.magnitude, arithmetic.negate_raises),
)

LOGIC = (
    Rule("EqualTo", "x = y", logic.compare("="), typed=True),
    Rule("EqualNullSafe", "x <=> y", logic.compare("IS NOT DISTINCT FROM"), stops="no", typed=True),
    Rule("LessThan", "x < y", logic.compare("<"), typed=True),
    Rule("LessThanOrEqual", "x <= y", logic.compare("<="), typed=True),
    Rule("GreaterThan", "x > y", logic.compare(">"), typed=True),
    Rule("GreaterThanOrEqual", "x >= y", logic.compare(">="), typed=True),
    Rule("And", "x AND y", template("({0} AND {1})"), stops="no", typed=True),
    Rule("Or", "x OR y", template("({0} OR {1})"), stops="no", typed=True),
    Rule("Not", "NOT x", template("(NOT {0})"), typed=True),
    Rule("IsNull", "x IS NULL", template("({0} IS NULL)"), stops="no", typed=True),
    Rule("IsNotNull", "x IS NOT NULL", template("({0} IS NOT NULL)"), stops="no", typed=True),
    Rule("In", "x IN (…)", logic.in_list, stops="no", typed=True),
    Rule("If", "if(c, x, y)", template("(CASE WHEN {0} THEN {1} ELSE {2} END)"), stops="no"),
    Rule("CaseWhen", "CASE WHEN c THEN x … ELSE y END", logic.case_when, stops="no"),
    Rule("Coalesce", "coalesce(x, …), ifnull, nvl", logic.coalesce, stops="no"),
    Rule("Greatest", "greatest(x, …)", logic.extreme(">"), stops="no"),
    Rule("Least", "least(x, …)", logic.extreme("<"), stops="no"),
    Rule("KnownFloatingPointNormalized", "", template("{0}"), typed=True),
    Rule("NormalizeNaNAndZero", "", template("({0} + 0)")),
)

STRINGS = (
    Rule("Substring", "substring(s, from, length), left, right", strings.substring),
    Rule("StartsWith", "startswith(s, t), s LIKE 't%'", template("starts_with({0}, {1})")),
    Rule("EndsWith", "endswith(s, t), s LIKE '%t'", template("ends_with({0}, {1})")),
    Rule("Contains", "contains(s, t), s LIKE '%t%'", template("contains({0}, {1})")),
    Rule("Like", "s LIKE pattern", patterns.like, typed=True),
    Rule("Length", "length(s)", template("length({0})")),
    Rule("Concat", "concat(s, …), s || t", strings.concat, stops="no"),
)

DATES = (
    Rule("Year", "year(d)", template("year({0})")),
    Rule("Month", "month(d)", template("month({0})")),
    Rule("DayOfMonth", "day(d)", template("day({0})")),
    Rule("Quarter", "quarter(d)", template("quarter({0})")),
)

TABLE: dict[str, Rule] = {rule.op: rule for rule in (*BASICS, *ARITHMETIC, *LOGIC, *STRINGS, *DATES)}
