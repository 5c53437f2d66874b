"""Which types of a vendor's header are handles, and which are plain bytes."""

import re
from collections.abc import Iterator

_SIZES = ("int", "char", "short", "long", "long long")
_INTEGERS = frozenset(f"{sign}{size}" for sign in ("", "unsigned ") for size in _SIZES)
_EXACT = frozenset(f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64))
SCALARS = _INTEGERS | _EXACT | {"unsigned", "size_t", "float", "double", "cuuint32_t", "cuuint64_t"}


class HeaderTypes:
    """The types that a preprocessed header declares."""

    def __init__(self, text: str, flat: frozenset[str]) -> None:
        """`flat` names structs that are sent as bytes although they have room for pointers."""
        text = " ".join(text.split())
        self._handles = frozenset(re.findall(r"typedef struct \w+ ?\* ?(\w+);", text))
        self._aliases = {new: old for old, new in re.findall(r"typedef ([\w ]+?) (\w+);", text)}
        self._enums = frozenset(re.findall(r"typedef enum \w* ?\{[^}]*\} ?(\w+);", text))
        self._bodies = dict(_structs(text))
        self._callbacks = frozenset(re.findall(r"typedef \w+ ?\( ?\* ?(\w+) ?\)", text))
        self._flat = flat

    def is_handle(self, kind: str) -> bool:
        return kind in self._handles or (kind in self._aliases and self.is_handle(self._aliases[kind]))

    def is_callback(self, kind: str) -> bool:
        return kind in self._callbacks

    def is_flat(self, kind: str, seen: frozenset[str] = frozenset()) -> bool:
        """Whether a value of this type means the same in another process."""
        if kind in SCALARS or kind in self._enums or kind in self._flat or kind.startswith("enum "):
            return True
        if kind in seen or self.is_handle(kind) or self.is_callback(kind):
            return False
        if kind in self._aliases:
            return self.is_flat(self._aliases[kind], seen | {kind})
        body = self._bodies.get(kind)
        if body is None or "*" in body:
            return False
        members = set(re.findall(r"\b(?:struct )?[A-Za-z_]\w*", body)) - {kind}
        known = {name for name in members if self._declares(name)}
        return all(self.is_flat(name, seen | {kind}) for name in known)

    def _declares(self, name: str) -> bool:
        return any(name in kinds for kinds in (self._bodies, self._handles, self._aliases, self._callbacks))


def _structs(text: str) -> Iterator[tuple[str, str]]:
    """Yield each struct's and union's name and what is between its braces."""
    for match in re.finditer(r"typedef (?:struct|union) (\w*) ?\{", text):
        depth, at = 1, match.end()
        while depth:
            depth += (text[at] == "{") - (text[at] == "}")
            at += 1
        body = text[match.end() : at]
        names = re.match(r"\s*(?:__attribute__\s*\(\(.*?\)\)\s*)?(\w+(?: ?, ?\w+)*)", text[at:])
        for name in re.findall(r"\w+", names[1]) if names else ():
            yield name, body
        if match[1]:
            yield f"struct {match[1]}", body
