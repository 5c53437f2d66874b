"""Text to tokens. A token keeps its line, for error messages."""

import re
from typing import NamedTuple

from milligpu.softgpu.ptx.errors import BadPtx


class Token(NamedTuple):
    """One token. `kind` is word, dot (a directive or modifier), number, string or the punctuation itself."""

    kind: str
    text: str
    line: int


_TOKEN = re.compile(
    r"""
      (?P<newline>\n)
    | (?P<space>[ \t\r\f\v]+|//[^\n]*|/\*.*?\*/)
    | (?P<dot>\.[A-Za-z0-9_]+(?:::[A-Za-z0-9_]+)*)
    | (?P<number>0[fF][0-9a-fA-F]{8}|0[dD][0-9a-fA-F]{16}|0[xX][0-9a-fA-F]+U?|0[bB][01]+U?|[0-9]+\.[0-9]+|[0-9]+U?)
    | (?P<word>[A-Za-z_$%][\w$]*)
    | (?P<string>"[^"\n]*")
    | (?P<mark>[{}()\[\]<>,;:@!|+=-])
    """,
    re.VERBOSE | re.DOTALL,
)


def tokens(text: str) -> list[Token]:
    """Return all tokens, followed by one of kind `end`."""
    found: list[Token] = []
    line, at, length = 1, 0, len(text)
    while at < length:
        match = _TOKEN.match(text, at)
        if match is None:
            raise BadPtx(line, f"unexpected character {text[at]!r}")
        at = match.end()
        kind = match.lastgroup or ""
        if kind == "newline":
            line += 1
        elif kind == "space":
            line += match[0].count("\n")
        else:
            found.append(Token(match[0] if kind == "mark" else kind, match[0], line))
    found.append(Token("end", "end of text", line))
    return found
