r"""LIKE and regular expressions.

LIKE has the same semantics in both engines, except that Spark raises if the escape character precedes anything but `_`,
`%` and itself.

Spark uses Java's regular expressions, DuckDB RE2's. RE2 finds the same match (leftmost, first alternative) for the part
of the language that both support. A pattern must be a constant. It is translated piece by piece, and a piece whose
meaning differs or is unknown (look-around, back references, `\b`, possessive quantifiers, flags, class intersection)
makes the expression unsupported:

    .    any character but a line terminator: Java has five of those, RE2 one
    \s   Java includes the vertical tab, RE2 does not
    $    Java also matches before a line terminator at the end; supported only at the end of a test (RLIKE)
"""

from __future__ import annotations

import re

from viewkeeper.expressions.rules.rule import Texts, constant, fail, parameter, quote
from viewkeeper.expressions.tree import Expr

_TERMINATORS = r"\n\r\x{85}\x{2028}\x{2029}"
_SPACE = r"\t\n\x0b\f\r "
_CLASSES = {"d": "0-9", "w": "a-zA-Z_0-9", "s": _SPACE}
_ESCAPES = {"t": r"\t", "n": r"\n", "r": r"\r", "f": r"\f"}
_ESCAPABLE = frozenset("\\.[]{}()*+-?^$|/&~#@%!\"',:;<=>_` ")


class UntranslatablePattern(ValueError):
    """A regular expression whose meaning may differ in RE2."""


# --- LIKE -----------------------------------------------------------------------------------------------------------


def like(expr: Expr, args: Texts) -> str:
    return _like(expr, args[0], args[1], constant(expr.args[1]))


def _like(expr: Expr, s: str, pattern: str, fixed_pattern: str | None) -> str:
    escape = _escape_character(expr)
    text = f"({s} LIKE {pattern} ESCAPE {quote(escape)})"
    if fixed_pattern is not None:
        return text
    e = "\\" + escape
    valid = f"regexp_full_match({pattern}, {quote(f'(?s)([^{e}]|{e}[_%{e}])*')})"
    bad = fail("INVALID_FORMAT.ESC_IN_THE_MIDDLE", "A LIKE pattern escapes a character that needs no escape.")
    return f"(CASE WHEN {s} IS NOT NULL AND NOT {valid} THEN {bad} ELSE {text} END)"


def like_raises(expr: Expr) -> bool:
    return constant(expr.args[1]) is None


def refuse_like(expr: Expr) -> str | None:
    escape = _escape_character(expr)
    if escape.isalnum():
        return f"LIKE with the escape character {escape}"
    return _refuse_pattern(constant(expr.args[1]), escape)


def _refuse_pattern(pattern: str | None, escape: str) -> str | None:
    rest = (pattern or "").replace(escape * 2, "")
    for index, c in enumerate(rest):
        if c == escape and rest[index + 1 : index + 2] not in ("_", "%"):
            return f"The LIKE pattern '{pattern}', which escapes a character that needs no escape,"
    return None


def _escape_character(expr: Expr) -> str:
    return str(parameter(expr, default="\\"))


# --- Regular expressions --------------------------------------------------------------------------------------------


def rlike(expr: Expr, args: Texts) -> str:
    return f"regexp_matches({args[0]}, {quote(translate(constant(expr.args[1]), test=True))})"


def extract(expr: Expr, args: Texts) -> str:
    """Write regexp_extract: the group of the first match, or '' if there is none."""
    return f"regexp_extract({args[0]}, {quote(translate(constant(expr.args[1])))}, {int(constant(expr.args[2]))})"


def replace(expr: Expr, args: Texts) -> str:
    pattern, replacement = translate(constant(expr.args[1])), _translate_replacement(constant(expr.args[2]))
    return f"regexp_replace({args[0]}, {quote(pattern)}, {quote(replacement)}, 'g')"


def split(expr: Expr, args: Texts) -> str:
    return f"string_split_regex({args[0]}, {quote(translate(constant(expr.args[1])))})"


def refuse_regex(expr: Expr) -> str | None:
    pattern = constant(expr.args[1])
    if pattern is None:
        return "a regular expression that is not a constant"
    try:
        translated = translate(pattern, test=expr.op == "RLike")
        if expr.op == "RegExpExtract":
            group = constant(expr.args[2])
            if group is None or not 0 <= group <= _group_count(translated):
                return "regexp_extract of a group that is not a constant or not there"
        if expr.op == "StringSplit" and (constant(expr.args[2]) != -1 or _can_match_empty(translated)):
            return "split with a limit, or by a pattern that matches the empty text,"
        if expr.op == "RegExpReplace":
            if constant(expr.args[3]) != 1 or constant(expr.args[2]) is None:
                return "regexp_replace with a position, or a replacement that is not a constant,"
            _translate_replacement(constant(expr.args[2]))
            if _can_match_empty(translated):
                return "regexp_replace of a pattern that matches the empty text"
    except UntranslatablePattern as reason:
        return f"The regular expression '{pattern}' ({reason})"
    return None


def translate(pattern: str, test: bool = False) -> str:
    """Return Java's pattern in RE2's language, with the same meaning, or raise UntranslatablePattern."""
    out: list[str] = []
    i = 0
    while i < len(pattern):
        c = pattern[i]
        if c == "\\":
            piece, i = _translate_escape(pattern, i, in_class=False)
            out.append(piece)
        elif c == "[":
            piece, i = _translate_class(pattern, i)
            out.append(piece)
        elif c == ".":
            out.append(f"[^{_TERMINATORS}]")
            i += 1
        elif c == "$":
            if not test or i + 1 != len(pattern):
                raise UntranslatablePattern("$ is not at the end of a test")
            out.append(r"(?:\r\n|[" + _TERMINATORS + r"])?\z")
            i += 1
        elif c == "(":
            if pattern[i + 1 : i + 2] == "?" and pattern[i + 2 : i + 3] != ":":
                raise UntranslatablePattern("(? is not followed by :")
            out.append("(?:" if pattern[i + 1 : i + 2] == "?" else "(")
            i += 3 if pattern[i + 1 : i + 2] == "?" else 1
        elif c in "*+?}":
            if pattern[i + 1 : i + 2] == "+":
                raise UntranslatablePattern("a possessive quantifier")
            out.append(c)
            i += 1
        else:
            out.append(c)
            i += 1
    return "".join(out)


def _translate_escape(pattern: str, i: int, in_class: bool) -> tuple[str, int]:
    c = pattern[i + 1 : i + 2]
    if c in _ESCAPES:
        return _ESCAPES[c], i + 2
    if c and c in _CLASSES:
        return (_CLASSES[c] if in_class else f"[{_CLASSES[c]}]"), i + 2
    if c and c.lower() in _CLASSES and not in_class:
        return f"[^{_CLASSES[c.lower()]}]", i + 2
    if c and c in _ESCAPABLE:
        return f"\\x{{{ord(c):x}}}", i + 2
    raise UntranslatablePattern(f"\\{c}")


def _translate_class(pattern: str, i: int) -> tuple[str, int]:
    out, i = "[", i + 1
    if pattern[i : i + 1] == "^":
        out, i = "[^", i + 1
    start = i
    while i < len(pattern) and pattern[i] != "]":
        if pattern[i] == "[" or pattern[i : i + 2] == "&&":
            raise UntranslatablePattern("a class inside a class")
        if pattern[i] == "\\":
            piece, i = _translate_escape(pattern, i, in_class=True)
            out += piece
        else:
            out += "\\^" if pattern[i] == "^" else pattern[i]
            i += 1
    if i >= len(pattern) or i == start:
        raise UntranslatablePattern("a class that is empty or not closed")
    return out + "]", i + 1


def _translate_replacement(text: str) -> str:
    r"""Translate a replacement text: Java's $1 is \1 in RE2; a backslash is an escape character in Java."""
    out, i = "", 0
    while i < len(text):
        c = text[i]
        if c == "\\":
            following = text[i + 1 : i + 2]
            if not following:
                raise UntranslatablePattern("a backslash ends the replacement")
            out += "\\\\" if following == "\\" else following
            i += 2
        elif c == "$":
            digit = text[i + 1 : i + 2]
            if not digit.isdigit() or text[i + 2 : i + 3].isdigit():
                raise UntranslatablePattern("$ without the one digit of a group in the replacement")
            out += "\\" + digit
            i += 2
        else:
            out += c
            i += 1
    return out


def _group_count(translated: str) -> int:
    return _as_python_pattern(translated).groups


def _can_match_empty(translated: str) -> bool:
    """Return whether the pattern matches the empty text; after an empty match Java and RE2 continue differently."""
    return _as_python_pattern(translated).fullmatch("") is not None


def _as_python_pattern(translated: str) -> re.Pattern[str]:
    """Return a Python pattern with the same groups, which matches the empty text if and only if the original does."""
    try:
        return re.compile(re.sub(r"\\x\{[0-9a-f]+\}", "x", translated).replace("\\z", "\\Z"))
    except re.error as error:
        raise UntranslatablePattern(str(error)) from None
