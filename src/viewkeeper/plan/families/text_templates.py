"""Text templates: find the constants in a query's text that may vary without changing the shape of the plan.

    … WHERE day >= DATE '1994-01-01' AND day < DATE '1994-01-01' + INTERVAL 1 YEAR AND disc BETWEEN 0.06 - 0.01 AND 0.07
    … WHERE day >=       ?0          AND day <            ?1                       AND disc BETWEEN     ?2      AND  ?3

A **constant** is what a plain column (or, after HAVING, an aggregate) is compared with: a number, a text, a date, two
numbers added or a date shifted by an interval. In the **template** it is blank. The template's key also holds the
constant's *class*, which is what Catalyst looks at when it types, casts and folds (digits, range, sign), and the
relative order of the query's constants. Every other literal stays in the template as it is written.

Catalyst's plan may depend on a constant's value in ways that no class covers. No template is made for queries with:

    more than one block, CASE and similar,      a comparison may be folded away, or an outer join become an inner one
    outer joins
    an equality on a column that occurs again   the value is substituted for the column everywhere
    SELECT *, parameter markers                 the text does not determine what is read
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Context, Decimal
from functools import lru_cache
from itertools import pairwise
from typing import Any

from viewkeeper.model.types import Family, Type
from viewkeeper.syntax.lexer import SqlToken, lex

_REFUSED_WORDS = frozenset(
    re.findall(
        r"\w+",
        """
        case when if iff coalesce nvl nvl2 nullif ifnull zeroifnull nullifzero decode left right full outer
        natural anti semi lateral pivot unpivot values union intersect except minus exists with any all some
        tablesample window current_date now current_timestamp qualify
        """,
    )
)
_CONSTANT_ENDS = frozenset(
    re.findall(r"\w+", "and or where group order having limit sort cluster distribute offset join inner cross on")
)
_CONDITION_STARTS = frozenset({"where", "and", "or", "on", "not"})
_MONTHS_BY_UNIT = {"year": 12, "years": 12, "month": 1, "months": 1}
_DAYS_BY_UNIT = {"day": 1, "days": 1}
_COMPARISONS = ("=", "<", ">", "<=", ">=", "<>", "!=", "between", "in")
_MAX_LISTED = 10  # for longer lists Catalyst builds a set
_INTEGER = re.compile(r"\d{1,19}")
_DECIMAL = re.compile(r"\d+\.\d+")
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_EPOCH = date(1970, 1, 1)
_WIDE_CONTEXT = Context(prec=80)
_MICROSECONDS_PER_DAY = 86_400_000_000


@dataclass(frozen=True)
class Constant:
    """A blank constant: its value (a number, a text, or a date), and its class."""

    value: Decimal | str | date
    kind: tuple[Any, ...]

    def as_literal(self, type_: Type) -> Any:
        """Return the value of a literal of this type, in the form of `Expr`; None if it is not exactly
        representable."""
        value = self.value
        if isinstance(value, str) and type_.family in (Family.DATE, Family.TIME):
            value = _parse_date(value) or value
        match value, type_.family:
            case Decimal(), Family.INTEGER:
                return int(value) if value == value.to_integral_value() else None
            case Decimal(), Family.DECIMAL:
                scaled = value.quantize(Decimal(1).scaleb(-type_.scale), context=_WIDE_CONTEXT)
                return f"{scaled:f}" if scaled == value else None
            case Decimal(), Family.FLOAT:
                return repr(float(value))
            case str(), Family.TEXT:
                return value
            case date(), Family.DATE:
                return (value - _EPOCH).days
            case date(), Family.TIME:
                return (value - _EPOCH).days * _MICROSECONDS_PER_DAY
        return None


@dataclass(frozen=True)
class TextTemplate:
    """A text with blank constants. Texts with an equal `key` differ only in these constants."""

    key: tuple[Any, ...]
    constants: tuple[Constant, ...]
    words: frozenset[str]
    """All names and words of the text, in lower case."""


@lru_cache(maxsize=1024)
def extract_template(text: str) -> TextTemplate | None:
    """Return the template of a query; None if none of its constants may vary.

    Cached, because some of many views have equal texts.
    """
    tokens = list(lex(text))
    words = [t.value.lower() for t in tokens if t.kind in ("word", "name")]
    if not _is_plain(tokens, words):
        return None
    reader = _ConstantReader(text, tokens, Counter(words))
    reader.read()
    if not reader.constants or reader.has_propagated_constant:
        return None
    constants = tuple(reader.constants)
    return TextTemplate(
        (*reader.parts, *(c.kind for c in constants), _relative_order(constants)), constants, frozenset(words)
    )


def _is_plain(text_tokens: Sequence[SqlToken], words: Sequence[str]) -> bool:
    if words.count("select") != 1 or _REFUSED_WORDS & set(words) or words[0] != "select":
        return False
    before = {t.value.lower() for t, after in pairwise(text_tokens) if after.value == "*"}
    return not before & {"select", "distinct", ",", "."} and not any(t.value in (":", "?") for t in text_tokens)


class _ConstantReader:
    """Scans the tokens once and blanks constants that are compared with a column."""

    def __init__(self, text: str, text_tokens: Sequence[SqlToken], word_counts: Counter[str]) -> None:
        self.parts: list[str] = []
        self.constants: list[Constant] = []
        self.has_propagated_constant = False
        """Whether a column that occurs again is compared for equality with a constant."""
        self._text, self._tokens, self._word_counts = text, text_tokens, word_counts
        self._words = [t.value.lower() if t.kind == "word" else "" for t in text_tokens]
        self._signs = [t.value if t.kind == "sign" else "" for t in text_tokens]
        self._in_having = False

    def read(self) -> None:
        at = 0
        while at < len(self._tokens):
            self._in_having |= self._word_at(at) == "having"
            after = self._read_comparison(at)
            if after is None:
                self.parts.append(self._text_at(at))
                after = at + 1
            at = after

    def _read_comparison(self, index: int) -> int | None:
        """Read the comparison with the operator at `index`, blank its constants, and return the next index,
        else None."""
        operator, after = self._read_operator(index)
        if not operator:
            return None
        column = self._read_operand(index)
        if operator in ("=", "==", "<=>"):
            self._check_equality(column, index, after)
        if operator not in _COMPARISONS:
            return None
        if operator == "between":
            low = self._read_constant(after)
            if column is None or low is None or self._word_at(low[1]) != "and":
                return None
            high = self._read_constant(low[1] + 1)
            if high is None or not self._is_end(high[1]):
                return None
            return self._blank_out([operator, low[0], "and", high[0]], high[1])
        if operator == "in":
            return self._read_in_list(column, after)
        value = self._read_constant(after)
        if column is None or value is None or not self._is_end(value[1]):
            return None
        return self._blank_out([operator, value[0]], value[1])

    def _read_in_list(self, column: str | None, index: int) -> int | None:
        """Read (a, b, …), the list of an IN."""
        items: list[str | Constant] = ["in", "("]
        if self._sign_at(index) != "(":
            return None
        while True:
            value = self._read_constant(index + 1)
            if value is None:
                return None
            items.append(value[0])
            index = value[1]
            if self._sign_at(index) == ")":
                break
            if self._sign_at(index) != ",":
                return None
        values = len(items) - 2
        if values == 1 or len({c.value for c in items if isinstance(c, Constant)}) == 1:
            self._note_equality(column)
        if column is None or values > _MAX_LISTED or not self._is_end(index + 1):
            return None
        return self._blank_out([*items, ")"], index + 1)

    def _check_equality(self, column: str | None, index: int, operand_index: int) -> None:
        """Note an equality with a value: Catalyst may propagate it to other uses of the column.

        Two columns have no value.
        """
        end = operand_index + 2 if self._sign_at(operand_index + 1) == "." else operand_index
        is_column = self._kind_at(index - 1) in ("word", "name")
        if self._in_having or not (is_column and self._name_at(end) is not None and self._is_end(end + 1)):
            self._note_equality(column)

    def _note_equality(self, column: str | None) -> None:
        self.has_propagated_constant |= not column or self._word_counts[column] > 1

    def _blank_out(self, items: Sequence[str | Constant], next_index: int) -> int:
        for item in items:
            if isinstance(item, Constant):
                self.constants.append(item)
            self.parts.append("?" if isinstance(item, Constant) else item)
        return next_index

    def _read_operator(self, index: int) -> tuple[str, int]:
        """Return the comparison operator at `index`, or "" if there is none, and the index of its right side."""
        if self._word_at(index) in ("between", "in"):
            return self._word_at(index), index + 1
        if not self._sign_at(index) or self._sign_at(index - 1) in ("<", ">", "=", "!"):
            return "", index
        signs = ""
        while self._sign_at(index + len(signs)) in ("<", ">", "=", "!"):
            signs += self._sign_at(index + len(signs))
        return signs, index + len(signs)

    def _read_operand(self, index: int) -> str | None:
        """Return the column before an operator, or "" for an aggregate in HAVING; None if it is anything else."""
        index -= 1
        if index > 0 and self._word_at(index) == "not":
            index -= 1
        if self._in_having:
            return self._read_aggregate(index)
        name = self._name_at(index)
        if name is None:
            return None
        if self._sign_at(index - 1) == "." and self._name_at(index - 2) is not None:
            index -= 2
        return (
            name
            if index > 0 and (self._word_at(index - 1) in _CONDITION_STARTS or self._sign_at(index - 1) == "(")
            else None
        )

    def _read_aggregate(self, index: int) -> str | None:
        if self._sign_at(index) != ")":
            return None
        start = index
        while start >= 0 and self._sign_at(start) != "(":
            if self._tokens[start].kind not in ("word", "name") and self._sign_at(start) not in (")", ".", "*"):
                return None
            start -= 1
        if (
            start < 2
            or self._tokens[start - 1].kind != "word"
            or any(self._sign_at(i) == ")" for i in range(start, index))
        ):
            return None
        return (
            ""
            if self._word_at(start - 2) in (*_CONDITION_STARTS, "having") or self._sign_at(start - 2) == "("
            else None
        )

    def _name_at(self, index: int) -> str | None:
        token = self._tokens[index] if 0 <= index < len(self._tokens) else None
        return token.value.lower() if token is not None and token.kind in ("word", "name") else None

    def _read_constant(self, index: int) -> tuple[Constant, int] | None:
        """Return the constant at `index` and the index after it, else None."""
        if self._sign_at(index) == "-" and (number := self._read_number(index + 1)) is not None:
            return Constant(-number[0], ("-", *number[1])), index + 2
        if (first := self._read_number(index)) is not None:
            sign, second = self._sign_at(index + 1), self._read_number(index + 2)
            if sign in ("+", "-") and second is not None and first[1][0] == second[1][0]:
                value = first[0] + second[0] if sign == "+" else first[0] - second[0]
                return Constant(value, (first[1], sign, second[1], (value > 0) - (value < 0))), index + 3
            return Constant(*first), index + 1
        if self._word_at(index) == "date" and self._kind_at(index + 1) == "text":
            day = _parse_date(self._tokens[index + 1].value)
            return None if day is None else self._read_shifted_date(day, index + 2)
        if self._kind_at(index) == "text":
            text = self._tokens[index].value
            return Constant(text, ("text", _parse_date(text) is not None, not text)), index + 1
        return None

    def _read_number(self, index: int) -> tuple[Decimal, tuple[Any, ...]] | None:
        """Return an unsigned number and its class, else None."""
        text = self._text_at(index) if self._kind_at(index) == "number" else ""
        if _INTEGER.fullmatch(text) and int(text) < 2**63:
            value = int(text)
            return Decimal(value), ("integer", len(str(value)), _integer_bits(value), value == 0)
        if _DECIMAL.fullmatch(text):
            exact = Decimal(text)
            _, digits, exponent = exact.as_tuple()
            scale = -int(exponent)
            is_whole = exact == exact.to_integral_value()
            return exact, ("decimal", max(len(digits), scale), scale, is_whole, exact == 0)
        return None

    def _read_shifted_date(self, day: date, index: int) -> tuple[Constant, int] | None:
        """Return a date, shifted by the interval that follows it, if any."""
        sign = self._sign_at(index)
        if sign not in ("+", "-") or self._word_at(index + 1) != "interval":
            return Constant(day, ("date",)), index
        count, unit = self._value_at(index + 2), self._word_at(index + 3)
        if not _INTEGER.fullmatch(count) or unit not in {**_MONTHS_BY_UNIT, **_DAYS_BY_UNIT}:
            return None
        steps = int(count) * (1 if sign == "+" else -1)
        moved = _add_months(day, steps * _MONTHS_BY_UNIT[unit]) if unit in _MONTHS_BY_UNIT else _add_days(day, steps)
        return None if moved is None else (Constant(moved, ("date", sign, unit)), index + 4)

    def _is_end(self, index: int) -> bool:
        return (
            index >= len(self._tokens) or self._word_at(index) in _CONSTANT_ENDS or self._sign_at(index) in (")", ",")
        )

    def _kind_at(self, index: int) -> str:
        return self._tokens[index].kind if 0 <= index < len(self._tokens) else ""

    def _value_at(self, index: int) -> str:
        return self._tokens[index].value if self._kind_at(index) in ("text", "number") else ""

    def _word_at(self, index: int) -> str:
        return self._words[index] if 0 <= index < len(self._words) else ""

    def _sign_at(self, index: int) -> str:
        return self._signs[index] if 0 <= index < len(self._signs) else ""

    def _text_at(self, index: int) -> str:
        return self._text[self._tokens[index].start : self._tokens[index].end]


def _integer_bits(value: int) -> int:
    """Return the bits of the narrowest integer type for the value; Catalyst may fold a wider column's
    comparison by it."""
    return next(bits for bits in (8, 16, 32, 64) if value < 2 ** (bits - 1))


def _parse_date(text: str) -> date | None:
    try:
        return date.fromisoformat(text) if _DATE.fullmatch(text) else None
    except ValueError:
        return None


def _add_months(day: date, months: int) -> date | None:
    """Add months as Java does: the day becomes the last of the month if the month is too short."""
    year, month = divmod(12 * day.year + day.month - 1 + months, 12)
    if not 1 <= year <= 9999:
        return None
    for last in (day.day, 30, 29, 28):
        try:
            return date(year, month + 1, min(day.day, last))
        except ValueError:
            continue
    return None


def _add_days(day: date, days: int) -> date | None:
    ordinal = day.toordinal() + days
    return date.fromordinal(ordinal) if 1 <= ordinal <= date.max.toordinal() else None


def _relative_order(constants: Sequence[Constant]) -> tuple[tuple[int, int], ...]:
    """Return the rank of each constant among those of its group: comparisons between them then have the same result."""
    groups: dict[int, list[Any]] = {0: [], 1: [], 2: []}
    placed: list[tuple[int, Any]] = []
    for constant in constants:
        value: Any = constant.value
        if isinstance(value, str):
            value = _parse_date(value) or value
        group = 0 if isinstance(value, Decimal) else 1 if isinstance(value, date) else 2
        groups[group].append(value)
        placed.append((group, value))
    ranks = {group: {value: i for i, value in enumerate(sorted(set(values)))} for group, values in groups.items()}
    return tuple((group, ranks[group][value]) for group, value in placed)
