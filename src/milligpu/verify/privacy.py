"""What must not be in a report: names of hosts and people, paths, serial numbers, UUIDs, addresses."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

_PATTERNS = (
    (re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+"), "<mail>"),
    (re.compile(r"\b(?:GPU|MIG)-[0-9a-fA-F]{4,}[0-9a-fA-F-]*"), "<GPU>"),
    (re.compile(r"\b[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}\b"), "<uuid>"),
    (re.compile(r"\b[0-9a-fA-F]{32}\b"), "<uuid>"),
    (re.compile(r"\b(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-9a-fA-F]\b"), "<bus>"),
    (re.compile(r"\b(?:[0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}\b"), "<address>"),
    (
        re.compile(r"\b(?:[0-9a-fA-F]{1,4}:){3,7}[0-9a-fA-F]{0,4}\b|\b(?:[0-9a-fA-F]{1,4}:)+:[0-9a-fA-F:]*"),
        "<address>",
    ),
    (re.compile(r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?![\w.])"), "<address>"),
    (re.compile(r"\bhttps?://\S+"), "<address>"),
    # In quotes, with spaces; from the root, the home directory or here; other files. "70/30" and "1/s" are none.
    (re.compile(r"'/[^']*'|\"/[^\"]*\""), "<path>"),
    (re.compile(r"(?<![\w./~])(?:~|\.{1,2})?/[^\s'\"`:;,()<>]+"), "<path>"),
    (re.compile(r"(?<![\w./-])(?!docs/)[\w.-]+(?:/[\w.-]+)*/[\w-]+\.[A-Za-z]\w*"), "<path>"),
)
_SHORTEST = 3
"""Shorter names occur in ordinary words; as whole words they are replaced all the same."""
_PUBLIC = frozenset({"root", "localhost", "localdomain", "gpu", "none", "unknown", ""})
"""Names that identify nobody."""


@dataclass(frozen=True, slots=True)
class PrivateWords:
    """What identifies this machine and its user, by what to write instead."""

    hosts: Iterable[str] = ()
    users: Iterable[str] = ()
    serials: Iterable[str] = ()
    """Serial numbers and UUIDs of boards and GPUs."""
    rules: tuple[tuple[re.Pattern[str], str], ...] = field(init=False)

    def __post_init__(self) -> None:
        kinds = ((self.serials, "<serial>"), (self.hosts, "<host>"), (self.users, "<user>"))
        rules = tuple(
            (_pattern(word), instead)
            for words, instead in kinds
            for word in sorted(set(words), key=len, reverse=True)
            if word.lower() not in _PUBLIC
        )
        object.__setattr__(self, "rules", rules)

    def remove(self, text: str) -> str:
        """Return the text with placeholders for everything private."""
        for pattern, instead in (*_PATTERNS, *self.rules):
            text = pattern.sub(instead, text)
        return text


def _pattern(word: str) -> re.Pattern[str]:
    escaped = re.escape(word)
    if len(word) < _SHORTEST:
        return re.compile(rf"(?<!\w){escaped}(?!\w)", re.IGNORECASE)
    return re.compile(escaped, re.IGNORECASE)
