"""A set of dialects, and what follows from their descriptions."""

from collections.abc import Iterable
from typing import Any

from milligpu.dialects.dialect import Dialect
from milligpu.dialects.settings import DialectSetting


class DialectRegistry:
    """The dialects that a program reads, in the order in which they are tried."""

    def __init__(self, dialects: Iterable[Dialect]) -> None:
        self.dialects = tuple(dialects)
        self.by_name = {dialect.name: dialect for dialect in self.dialects}
        if len(self.by_name) < len(self.dialects):
            raise ValueError(f"two dialects have one name: {[each.name for each in self.dialects]}")
        self.resources = frozenset(name for each in self.dialects for name in each.resources)
        """Every resource of a dialect; class resources (`gpu-gold`) are not among them."""
        self.schedulers = frozenset(name for each in self.dialects for name in each.schedulers)
        self.command_words = tuple(dict.fromkeys(word for each in self.dialects for word in each.command_words))
        self.resource_pattern = _pattern(part for each in self.dialects for part in each.resource_patterns)
        self.annotation_pattern = _pattern(part for each in self.dialects for part in each.annotation_patterns)
        self.label_pattern = _pattern(part for each in self.dialects for part in each.label_patterns)
        settings: dict[str, DialectSetting[Any]] = {}
        for each in self.dialects:
            settings |= {setting.name: setting for setting in each.settings}
        self.settings = tuple(settings.values())


def _pattern(parts: Iterable[str]) -> str:
    return f"^({'|'.join(dict.fromkeys(parts))})"
