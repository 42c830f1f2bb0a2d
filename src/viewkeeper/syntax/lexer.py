"""A lexer for SQL text with Spark's token rules, sufficient for Viewkeeper's own statements.

    word     letters, digits and _            gap      white space, -- to the line's end, /* */ also nested
    number   1  1.5  .5  1e-3  10L  1.5BD     name     `in backticks`
    text     'it''s'  "a"  'a\\tb'  r'a\\b'     bytes    X'0AFF'
    sign     any other character

Every command that reads SQL loads this module first. A general SQL package is not used because loading it took a fifth
of the half second in which such a command answers (docs/decisions, 19).
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
"""Kinds of tokens whose value is their text, and which have no line breaks."""
_COMMENT = re.compile(r"/\*|\*/")
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-3][0-7]{2})|(.))", re.DOTALL)
_ESCAPED = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a", "%": "\\%", "_": "\\_"}


class SqlToken(NamedTuple):
    kind: str
    value: str
    """The meaning: a text without its quotes, a name without its backticks, the digits of bytes."""
    start: int
    end: int
    line: int


def lex(text: str) -> Iterator[SqlToken]:
    """Yield all tokens of the text except gaps."""
    at, line = 0, 1
    while at < len(text):
        for match in _TOKEN.finditer(text, at):
            kind, token_text, at = match.lastgroup or "", match[0], match.end()
            if kind == "comment":  # comments may be nested
                at = _comment_end(text, match.start(), line)
                line += text.count("\n", match.start(), at)
                break
            if kind in _VERBATIM_KINDS:
                if kind == "sign" and token_text in "'\"`":
                    raise _unclosed_error("quote", line)
                yield SqlToken(kind, token_text, match.start(), at, line)
            elif kind == "gap":
                line += token_text.count("\n")
            else:
                yield SqlToken(
                    "text" if kind == "raw" else kind, _token_value(kind, token_text, line), match.start(), at, line
                )
                line += token_text.count("\n")


def refuse_surrogates(query: str) -> None:
    """Raise BadStatement if the text is not valid UTF-8: Python strings may hold unpaired surrogates."""
    try:
        query.encode()
    except UnicodeEncodeError as error:
        line = query.count("\n", 0, error.start) + 1
        raise BadStatement(
            f"The query has {query[error.start]!r} in it, which is half a character (line {line}).",
            hint="Give text that is valid UTF-8.",
        ) from None


def find_parameters(tokens: Sequence[SqlToken]) -> Iterator[tuple[SqlToken, SqlToken]]:
    """Yield the colon and the name of each `:name`, an open value.

    `x::int` is a cast and `x:y` a path, so a gap or a sign must separate the colon from the preceding token.
    """
    for index, (colon, name) in enumerate(pairwise(tokens)):
        previous = tokens[index - 1] if index else None
        is_joined = (
            previous is not None
            and previous.end == colon.start
            and (previous.kind != "sign" or previous.value in ":)]")
        )
        if (
            colon.kind == "sign"
            and colon.value == ":"
            and name.kind == "word"
            and name.start == colon.end
            and not is_joined
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
    def replace_escape(escape: re.Match[str]) -> str:
        short, long, octal, other = escape.groups()
        if other is not None:
            return _ESCAPED.get(other, other)
        code = int(octal, 8) if octal else int(short or long, 16)
        if code > 0x10FFFF:
            raise BadStatement(f"{escape[0]} is no character (line {line}).", hint="The last one is \\U0010FFFF.")
        return chr(code)

    return _ESCAPE.sub(replace_escape, text) if "\\" in text else text


def _comment_end(text: str, start: int, line: int) -> int:
    """Return the end of the comment that begins at `start`; comments may be nested."""
    depth = 0
    for mark in _COMMENT.finditer(text, start):
        depth += 1 if mark[0] == "/*" else -1
        if not depth:
            return mark.end()
    raise _unclosed_error("comment", line)


def _unclosed_error(kind: str, line: int) -> BadStatement:
    return BadStatement(f"The statement has an unclosed {kind} (line {line}).", hint="Close it.")
