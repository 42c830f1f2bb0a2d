"""The tokens of SQL text as Spark's lexer cuts it: enough to read our own statements and to find where a query begins.

    word     letters, digits and _            gap      white space, -- to the line's end, /* */ also nested
    number   1  1.5  .5  1e-3  10L  1.5BD     name     `in backticks`
    text     'it''s'  "a"  'a\\tb'  r'a\\b'     bytes    X'0AFF'
    sign     any other character

Written here because every command that reads SQL starts with it: a general SQL package took a fifth of the half second
in which such a command answers (docs/decisions, 19).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from viewkeeper.errors import BadStatement

_TOKEN = re.compile(
    r"""
      (?P<gap>    \s+ | --[^\r\n]* )
    | (?P<comment>/\* )
    | (?P<bytes>  [xX] (?: '[0-9a-fA-F]*' | "[0-9a-fA-F]*" ) )
    | (?P<raw>    [rR] (?: '[^']*' | "[^"]*" ) )
    | (?P<text>   ' (?: [^'\\] | \\. | '' )* ' | " (?: [^"\\] | \\. | "" )* " )
    | (?P<name>   ` (?: [^`] | `` )* ` )
    | (?P<number> (?: \d+ (?: \.\d* )? | \.\d+ ) (?: [eE][+-]?\d+ )? (?: [bB][dD] | [lLsSyYdDfF] )? (?!\w) )
    | (?P<word>   \w+ )
    | (?P<sign>   . )
    """,
    re.VERBOSE | re.DOTALL,
)
_VERBATIM_KINDS = frozenset({"word", "sign"})
"""Kinds that mean what is written, in one line."""
_COMMENT = re.compile(r"/\*|\*/")
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-3][0-7]{2})|(.))", re.DOTALL)
_ESCAPED = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a", "%": "\\%", "_": "\\_"}


class SqlToken(NamedTuple):
    kind: str
    value: str
    """What it means: a text without its quotes, a name without its backticks, the digits of bytes."""
    start: int
    end: int
    line: int


def lex(text: str) -> Iterator[SqlToken]:
    """All tokens of the text but the gaps."""
    at, line = 0, 1
    while at < len(text):
        for found in _TOKEN.finditer(text, at):
            kind, written, at = found.lastgroup or "", found[0], found.end()
            if kind == "comment":  # it may hold others
                at = _comment_end(text, found.start(), line)
                line += text.count("\n", found.start(), at)
                break
            if kind in _VERBATIM_KINDS:
                if kind == "sign" and written in "'\"`":
                    raise _unclosed_error("quote", line)
                yield SqlToken(kind, written, found.start(), at, line)
            elif kind == "gap":
                line += written.count("\n")
            else:
                yield SqlToken(
                    "text" if kind == "raw" else kind, _token_value(kind, written, line), found.start(), at, line
                )
                line += written.count("\n")


def refuse_surrogates(query: str) -> None:
    """BadStatement if the text cannot be sent to anybody who would read it: Python's strings may hold half a pair."""
    try:
        query.encode()
    except UnicodeEncodeError as error:
        line = query.count("\n", 0, error.start) + 1
        raise BadStatement(
            f"The query has {query[error.start]!r} in it, which is half a character (line {line}).",
            hint="Give text that is valid UTF-8.",
        ) from None


def find_parameters(tokens: Sequence[SqlToken]) -> Iterator[tuple[SqlToken, SqlToken]]:
    """The colon and the name of each `:name`: a value that is left open.

    `x::int` is a cast, `x:y` a path: what is open stands apart from what is before it.
    """
    for place, (colon, name) in enumerate(pairwise(tokens)):
        before = tokens[place - 1] if place else None
        joined = before is not None and before.end == colon.start and (before.kind != "sign" or before.value in ":)]")
        if (
            colon.kind == "sign"
            and colon.value == ":"
            and name.kind == "word"
            and name.start == colon.end
            and not joined
        ):
            yield colon, name


def _token_value(kind: str, token_text: str, line: int) -> str:
    if kind == "text":
        return _unescape(token_text[1:-1].replace(token_text[0] * 2, token_text[0]), line)
    if kind == "name":
        return token_text[1:-1].replace("``", "`")
    if kind in ("raw", "bytes"):
        return token_text[2:-1]
    return token_text.rstrip("bdlsyfBDLSYF") if kind == "number" else token_text


def _unescape(text: str, line: int) -> str:
    def one(escape: re.Match[str]) -> str:
        short, long, octal, other = escape.groups()
        if other is not None:
            return _ESCAPED.get(other, other)
        code = int(octal, 8) if octal else int(short or long, 16)
        if code > 0x10FFFF:
            raise BadStatement(f"{escape[0]} is no character (line {line}).", hint="The last one is \\U0010FFFF.")
        return chr(code)

    return _ESCAPE.sub(one, text) if "\\" in text else text


def _comment_end(text: str, start: int, line: int) -> int:
    """Where the comment ends that begins here; comments hold comments."""
    depth = 0
    for mark in _COMMENT.finditer(text, start):
        depth += 1 if mark[0] == "/*" else -1
        if not depth:
            return mark.end()
    raise _unclosed_error("comment", line)


def _unclosed_error(kind: str, line: int) -> BadStatement:
    return BadStatement(f"The statement has an unclosed {kind} (line {line}).", hint="Close it.")
