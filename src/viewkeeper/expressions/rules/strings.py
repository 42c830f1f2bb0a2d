"""Text functions. Both engines count positions in code points; what differs is written out here.

Changing case, reversing and title case of text beyond ASCII follow the full Unicode rules in Spark (ß becomes SS) and
simpler ones in DuckDB, so such text goes to a function in Python; text of ASCII only, which is told by
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
"""initcap: words are what spaces part."""


def unicode_function(name: str, ascii_text: str) -> DuckDBWriter:
    """`ascii_text` for ASCII, the Python function vk_<name> for other text."""

    def write(_: Expr, args: Texts) -> str:
        s = args[0]
        return f"(CASE WHEN strlen({s}) = length({s}) THEN {ascii_text.format(s)} ELSE vk_{name}({s}) END)"

    return write


def refuse_binary(expr: Expr) -> str | None:
    """Refuse the form on BINARY of a function on STRING."""
    return f"{expr.op} of BINARY" if expr.args[0].type == types.BINARY else None


def length(expr: Expr, args: Texts) -> str:
    return f"octet_length({args[0]})" if expr.args[0].type == types.BINARY else f"length({args[0]})"


def byte_length(factor: int) -> DuckDBWriter:
    """octet_length and bit_length."""

    def write(expr: Expr, args: Texts) -> str:
        count = f"octet_length({args[0]})" if expr.args[0].type == types.BINARY else f"strlen({args[0]})"
        return f"({count} * {factor})"

    return write


def substring(expr: Expr, args: Texts) -> str:
    """Spark's rules: positions start at 1, 0 is 1, a negative one counts from the end; what falls off is lost.

    Start and end are computed first and then cut to the text: substring('abc', -5, 3) is 'a'.
    """
    s, position, length = args
    where, count = (constant(a) for a in expr.args[1:])
    if where is not None and where >= 0 and count is not None:
        return f"substring({s}, {max(where, 1)}, {max(count, 0)})"
    here = f"CAST({position} AS BIGINT)"
    start = f"(CASE WHEN {position} > 0 THEN {here} - 1 WHEN {position} < 0 THEN length({s}) + {here} ELSE 0 END)"
    first = f"greatest({start}, 0)"
    cut = f"substring({s}, {first} + 1, greatest({start} + {length} - {first}, 0))"
    return f"(CASE WHEN {position} IS NOT NULL AND {length} IS NOT NULL THEN {cut} END)"


def concat(expr: Expr, args: Texts) -> str:
    return f"({' || '.join(args)})" if args else "''"


def concat_ws(expr: Expr, args: Texts) -> str:
    if len(args) == 1:
        return f"(CASE WHEN {args[0]} IS NOT NULL THEN '' END)"
    return f"concat_ws({', '.join(args)})"


def refuse_concat_ws(expr: Expr) -> str | None:
    return "concat_ws of arrays" if any(a.type != types.STRING for a in expr.args) else None


def trim(function: str) -> DuckDBWriter:
    """Spaces only (not other white space), or the given set of characters."""
    return lambda expr, args: f"{function}({args[0]}, {args[1] if len(args) > 1 else _BLANK})"


def pad(function: str) -> DuckDBWriter:
    """LPAD and RPAD; padding with nothing only cuts."""

    def write(expr: Expr, args: Texts) -> str:
        s, size, filling = args
        cut = f"left({s}, greatest({size}, 0))"
        if constant(expr.args[2]):
            return f"{function}({s}, {size}, {filling})"
        return f"(CASE WHEN {filling} = '' THEN {cut} ELSE {function}({s}, {size}, {filling}) END)"

    return write


def locate(expr: Expr, args: Texts) -> str:
    """locate(t, s, from): 0 for a start before 1 or NULL; an empty t is found at 1. Spark looks at s last."""
    t, s, start = args
    if constant(expr.args[2]) == 1:
        found = f"instr({s}, {t})"
        return found if expr.args[0].op == "literal" else f"(CASE WHEN {t} IS NOT NULL THEN {found} END)"
    place = f"instr(substring({s}, {start}), {t})"
    return (
        f"(CASE WHEN {start} IS NULL THEN 0 WHEN {t} IS NULL THEN NULL WHEN {s} IS NULL THEN NULL "
        f"WHEN {start} < 1 THEN 0 "
        f"WHEN {t} = '' THEN 1 WHEN {place} = 0 THEN 0 ELSE {place} + {start} - 1 END)"
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
    kept = f"list_slice({parts}, {first}, {last})"
    return f"array_to_string({kept}, {delimiter})"


def refuse_substring_index(expr: Expr) -> str | None:
    """Spark finds delimiters that overlap; only one that cannot overlap itself splits alike in both."""
    delimiter, count = constant(expr.args[1]), constant(expr.args[2])
    if not delimiter or count is None:
        return "substring_index with a delimiter or a count that is not a constant"
    if any(delimiter.startswith(delimiter[i:]) for i in range(1, len(delimiter))):
        return "substring_index with a delimiter that can overlap itself"
    return None


def sha2(expr: Expr, args: Texts) -> str:
    """Of 256 bits by DuckDB, of other lengths by Python; NULL of a length that there is not."""
    bits = constant(expr.args[1])
    if bits in (0, 256):
        return f"sha256({args[0]})"
    return f"(CASE WHEN {args[1]} IN (0, 224, 256, 384, 512) THEN vk_sha2({args[0]}, {args[1]}) END)"


def unhex(expr: Expr, args: Texts) -> str:
    """NULL for text that is not hexadecimal; an odd digit counts as the low half of the first byte."""
    s = args[0]
    even = f"(CASE WHEN length({s}) % 2 = 1 THEN '0' || {s} ELSE {s} END)"
    return f"(CASE WHEN regexp_full_match({s}, '[0-9A-Fa-f]*') THEN unhex({even}) END)"


def encode(expr: Expr, args: Texts) -> str:
    """Java's `encode` of two classes: text to UTF-8, and bytes to base64."""
    if expr.args[0].type != types.BINARY:
        return f"encode({args[0]})"
    text = f"to_base64({args[0]})"
    if constant(expr.args[1]):  # lines of 76 characters
        return f"rtrim(regexp_replace({text}, '(.{{76}})', '\\1' || chr(13) || chr(10), 'g'), chr(13) || chr(10))"
    return text


def refuse_encode(expr: Expr) -> str | None:
    """Catalyst calls other Java methods of these names too (url_encode); types tell them apart."""
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
    """From 1, or from the end with -1. Out of bounds is an error; in split_part, which gets here too, empty text."""
    items, i = args
    zero = fail("INVALID_INDEX_OF_ZERO", "The index 0 is invalid; it starts at 1 or, from the end, at -1.")
    far = fail("INVALID_ARRAY_INDEX_IN_ELEMENT_AT", "The index is out of bounds.") if parameter(expr) else "''"
    return (
        f"(CASE WHEN {items} IS NULL OR {i} IS NULL THEN NULL WHEN {i} = 0 THEN {zero} "
        f"WHEN abs(CAST({i} AS BIGINT)) > len({items}) THEN {far} ELSE {items}[{i}] END)"
    )


def refuse_element_at(expr: Expr) -> str | None:
    if parameter(expr) is False and expr.args[0].op != "StringSplitSQL":
        return "try_element_at"
    return None if expr.args[0].type.kind is Kind.ARRAY else "element_at of a map"


def array_item(expr: Expr, args: Texts) -> str:
    """array[i], from 0."""
    items, i = args
    far = fail("INVALID_ARRAY_INDEX", "The index is out of bounds.") if parameter(expr) else "NULL"
    return (
        f"(CASE WHEN {items} IS NULL OR {i} IS NULL THEN NULL "
        f"WHEN {i} < 0 OR {i} >= len({items}) THEN {far} ELSE {items}[{i} + 1] END)"
    )


def split(expr: Expr, args: Texts) -> str:
    s, delimiter = args
    if constant(expr.args[1]):
        return f"string_split({s}, {delimiter})"
    none = f"{s} IS NULL OR {delimiter} IS NULL"
    return f"(CASE WHEN {none} THEN NULL WHEN {delimiter} = '' THEN [{s}] ELSE string_split({s}, {delimiter}) END)"


def refuse_size(expr: Expr) -> str | None:
    return None if expr.args[0].type.kind is Kind.ARRAY else "size of a map"
