"""Text functions. Both engines count positions in code points; differences are written out here.

For text beyond ASCII, Spark follows the full Unicode rules in upper, lower and title case and in reverse (ß becomes
SS), and DuckDB simpler rules. So such text goes to a Python function; ASCII text, which is detected by
`strlen(s) = length(s)`, stays in DuckDB.
"""

from __future__ import annotations

from viewkeeper.expressions.rules.rule import DuckDBWriter, Texts, constant, fail, parameter
from viewkeeper.expressions.tree import Expr
from viewkeeper.model import types
from viewkeeper.model.types import Kind

_BLANK = "' '"


TITLE_CASE = (
    "array_to_string(list_transform(string_split(lower({}), ' '), lambda w: upper(left(w, 1)) || substring(w, 2)), ' ')"
)
"""initcap: words are separated by spaces."""


def unicode_function(name: str, ascii_text: str) -> DuckDBWriter:
    """Return the writer that uses `ascii_text` for ASCII, and the Python function vk_<name> for other text."""

    def write(_: Expr, args: Texts) -> str:
        s = args[0]
        return f"(CASE WHEN strlen({s}) = length({s}) THEN {ascii_text.format(s)} ELSE vk_{name}({s}) END)"

    return write


def refuse_binary(expr: Expr) -> str | None:
    """Reject the BINARY form of a function on STRING."""
    return f"{expr.op} of BINARY" if expr.args[0].type == types.BINARY else None


def length(expr: Expr, args: Texts) -> str:
    return f"octet_length({args[0]})" if expr.args[0].type == types.BINARY else f"length({args[0]})"


def byte_length(factor: int) -> DuckDBWriter:
    """Return the writer of octet_length or bit_length."""

    def write(expr: Expr, args: Texts) -> str:
        count = f"octet_length({args[0]})" if expr.args[0].type == types.BINARY else f"strlen({args[0]})"
        return f"({count} * {factor})"

    return write


def substring(expr: Expr, args: Texts) -> str:
    """Write substring by Spark's rules: positions start at 1, 0 means 1, and a negative one counts from the end.

    Start and end are computed first and then limited to the text: substring('abc', -5, 3) is 'a'.
    """
    s, position, length = args
    fixed_start, fixed_length = (constant(a) for a in expr.args[1:])
    if fixed_start is not None and fixed_start >= 0 and fixed_length is not None:
        return f"substring({s}, {max(fixed_start, 1)}, {max(fixed_length, 0)})"
    wide = f"CAST({position} AS BIGINT)"
    start = f"(CASE WHEN {position} > 0 THEN {wide} - 1 WHEN {position} < 0 THEN length({s}) + {wide} ELSE 0 END)"
    first = f"greatest({start}, 0)"
    piece = f"substring({s}, {first} + 1, greatest({start} + {length} - {first}, 0))"
    return f"(CASE WHEN {position} IS NOT NULL AND {length} IS NOT NULL THEN {piece} END)"


def concat(expr: Expr, args: Texts) -> str:
    return f"({' || '.join(args)})" if args else "''"


def concat_ws(expr: Expr, args: Texts) -> str:
    if len(args) == 1:
        return f"(CASE WHEN {args[0]} IS NOT NULL THEN '' END)"
    return f"concat_ws({', '.join(args)})"


def refuse_concat_ws(expr: Expr) -> str | None:
    return "concat_ws of arrays" if any(a.type != types.STRING for a in expr.args) else None


def trim(function: str) -> DuckDBWriter:
    """Return the writer of a trim: spaces only (no other white space), or the characters of the second argument."""
    return lambda expr, args: f"{function}({args[0]}, {args[1] if len(args) > 1 else _BLANK})"


def pad(function: str) -> DuckDBWriter:
    """Return the writer of LPAD or RPAD; with an empty padding text they only truncate."""

    def write(expr: Expr, args: Texts) -> str:
        s, size, filling = args
        truncated = f"left({s}, greatest({size}, 0))"
        if constant(expr.args[2]):
            return f"{function}({s}, {size}, {filling})"
        return f"(CASE WHEN {filling} = '' THEN {truncated} ELSE {function}({s}, {size}, {filling}) END)"

    return write


def locate(expr: Expr, args: Texts) -> str:
    """Write locate(t, s, from): 0 for a start before 1 or NULL; an empty t is found at 1. Spark evaluates s last."""
    t, s, start = args
    if constant(expr.args[2]) == 1:
        position = f"instr({s}, {t})"
        return position if expr.args[0].op == "literal" else f"(CASE WHEN {t} IS NOT NULL THEN {position} END)"
    offset = f"instr(substring({s}, {start}), {t})"
    return (
        f"(CASE WHEN {start} IS NULL THEN 0 WHEN {t} IS NULL THEN NULL WHEN {s} IS NULL THEN NULL "
        f"WHEN {start} < 1 THEN 0 "
        f"WHEN {t} = '' THEN 1 WHEN {offset} = 0 THEN 0 ELSE {offset} + {start} - 1 END)"
    )


def character(expr: Expr, args: Texts) -> str:
    n = args[0]
    return f"(CASE WHEN {n} < 0 THEN '' ELSE chr(CAST({n} & 255 AS INTEGER)) END)"


def substring_index(expr: Expr, args: Texts) -> str:
    s, delimiter, _ = args
    parts = f"string_split({s}, {delimiter})"
    n = constant(expr.args[2])
    if n == 0:
        return f"(CASE WHEN {s} IS NOT NULL THEN '' END)"
    first, last = ("1", str(n)) if n > 0 else (f"greatest(len({parts}) + 1 + {n}, 1)", f"len({parts})")
    selected = f"list_slice({parts}, {first}, {last})"
    return f"array_to_string({selected}, {delimiter})"


def refuse_substring_index(expr: Expr) -> str | None:
    """Reject delimiters that can overlap themselves: Spark finds overlapping delimiters, DuckDB does not."""
    delimiter, count = constant(expr.args[1]), constant(expr.args[2])
    if not delimiter or count is None:
        return "substring_index with a delimiter or a count that is not a constant"
    if any(delimiter.startswith(delimiter[i:]) for i in range(1, len(delimiter))):
        return "substring_index with a delimiter that can overlap itself"
    return None


def sha2(expr: Expr, args: Texts) -> str:
    """Write sha2: 256 bits by DuckDB, other lengths by Python; NULL for a length that does not exist."""
    bits = constant(expr.args[1])
    if bits in (0, 256):
        return f"sha256({args[0]})"
    return f"(CASE WHEN {args[1]} IN (0, 224, 256, 384, 512) THEN vk_sha2({args[0]}, {args[1]}) END)"


def unhex(expr: Expr, args: Texts) -> str:
    """Write unhex: NULL for text that is not hexadecimal; with an odd length, a leading 0 is assumed."""
    s = args[0]
    even = f"(CASE WHEN length({s}) % 2 = 1 THEN '0' || {s} ELSE {s} END)"
    return f"(CASE WHEN regexp_full_match({s}, '[0-9A-Fa-f]*') THEN unhex({even}) END)"


def encode(expr: Expr, args: Texts) -> str:
    """Write Java's `encode`, a method of two classes: text to UTF-8, and bytes to base64."""
    if expr.args[0].type != types.BINARY:
        return f"encode({args[0]})"
    text = f"to_base64({args[0]})"
    if constant(expr.args[1]):  # line breaks after 76 characters
        return f"rtrim(regexp_replace({text}, '(.{{76}})', '\\1' || chr(13) || chr(10), 'g'), chr(13) || chr(10))"
    return text


def refuse_encode(expr: Expr) -> str | None:
    """Reject other Java methods with this name (url_encode), which the types distinguish."""
    kinds = (expr.args[0].type, expr.type)
    if kinds == (types.BINARY, types.STRING) and constant(expr.args[1]) in (True, False):
        return None
    return _refuse_charset(expr) if kinds == (types.STRING, types.BINARY) else "encode of this kind"


def refuse_decode(expr: Expr) -> str | None:
    return (
        _refuse_charset(expr)
        if (expr.args[0].type, expr.type) == (types.BINARY, types.STRING)
        else "decode of this kind"
    )


def _refuse_charset(expr: Expr) -> str | None:
    charset = constant(expr.args[1])
    return None if str(charset).lower() in ("utf-8", "utf8") else "a character set other than UTF-8"


def decode(expr: Expr, args: Texts) -> str:
    bad = fail("MALFORMED_CHARACTER_CODING", "Bytes that are not UTF-8 cannot be decoded.")
    text = f"TRY(decode({args[0]}))"
    return f"(CASE WHEN {text} IS NULL AND {args[0]} IS NOT NULL THEN {bad} ELSE {text} END)"


def element_at(expr: Expr, args: Texts) -> str:
    """Write element_at: from 1, or from the end with -1. An index out of bounds is an error; in split_part, which also
    uses this function, it returns the empty text."""
    items, i = args
    zero = fail("INVALID_INDEX_OF_ZERO", "The index 0 is invalid; it starts at 1 or, from the end, at -1.")
    out_of_bounds = (
        fail("INVALID_ARRAY_INDEX_IN_ELEMENT_AT", "The index is out of bounds.") if parameter(expr) else "''"
    )
    return (
        f"(CASE WHEN {items} IS NULL OR {i} IS NULL THEN NULL WHEN {i} = 0 THEN {zero} "
        f"WHEN abs(CAST({i} AS BIGINT)) > len({items}) THEN {out_of_bounds} ELSE {items}[{i}] END)"
    )


def refuse_element_at(expr: Expr) -> str | None:
    if parameter(expr) is False and expr.args[0].op != "StringSplitSQL":
        return "try_element_at"
    return None if expr.args[0].type.kind is Kind.ARRAY else "element_at of a map"


def array_item(expr: Expr, args: Texts) -> str:
    """Write array[i], with indices from 0."""
    items, i = args
    out_of_bounds = fail("INVALID_ARRAY_INDEX", "The index is out of bounds.") if parameter(expr) else "NULL"
    return (
        f"(CASE WHEN {items} IS NULL OR {i} IS NULL THEN NULL "
        f"WHEN {i} < 0 OR {i} >= len({items}) THEN {out_of_bounds} ELSE {items}[{i} + 1] END)"
    )


def split(expr: Expr, args: Texts) -> str:
    s, delimiter = args
    if constant(expr.args[1]):
        return f"string_split({s}, {delimiter})"
    any_null = f"{s} IS NULL OR {delimiter} IS NULL"
    return f"(CASE WHEN {any_null} THEN NULL WHEN {delimiter} = '' THEN [{s}] ELSE string_split({s}, {delimiter}) END)"


def refuse_size(expr: Expr) -> str | None:
    return None if expr.args[0].type.kind is Kind.ARRAY else "size of a map"
