"""Which cards a machine has and how they lie to each other, from a few words or a file.

`A100-40GB`, `A100-40GBx2,T4x2`, or a TOML file with `[[gpu]]` tables (model, count, memory, numa) and, where the
usual layout is not wanted, `nvlink = [[0, 1, 4], …]`: that many links between two cards.
"""

import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from milligpu.model.errors import BadRequest
from milligpu.model.units import parse_size, parse_whole
from milligpu.softgpu.models import Model, find_model

# As many as the driver library looks for.
CARDS_MAX = 16
NUMA_MAX = 7

# The usual layout: pairs of cards behind one PCIe bridge, four cards at one processor, and NVLink from each to each
# of four; more are joined by switches, where the model has them.
_BRIDGE, _GROUP = 2, 4


@dataclass(frozen=True, slots=True)
class Card:
    """One card in its place."""

    index: int
    model: Model
    memory: int
    numa: int
    board: int
    links: tuple[int | None, ...] = ()
    """For each NVLink the card at its other end; None is a switch."""

    @property
    def bridge(self) -> int:
        """The PCIe bridge that it shares with its neighbour."""
        return self.index // _BRIDGE

    @property
    def pci_bus(self) -> int:
        """Cards are found in this order."""
        return self.index + 1


@dataclass(frozen=True, slots=True)
class _Group:
    model: Model
    count: int
    memory: int | None = None
    numa: int | None = None


def read_fleet(text: str, devices: int | None = None, memory: int | None = None) -> tuple[Card, ...]:
    """The cards that `--model`, `--devices` and `--memory` ask for."""
    if text.endswith(".toml"):
        groups, links = _read_file(Path(text))
    else:
        groups, links = [_read_group(part) for part in text.split(",")], None
    if devices is not None:
        if len(groups) != 1 or groups[0].count != 1:
            raise BadRequest("devices", devices, "no number beside a --model that has its own")
        groups = [replace(groups[0], count=devices)]
    cards = _place(groups, memory)
    if not 1 <= len(cards) <= CARDS_MAX:
        raise BadRequest("model", text, f"1 to {CARDS_MAX} cards in all")
    return _linked(cards, _usual_links(cards) if links is None else _checked_links(cards, links))


def describe(cards: Iterable[Card]) -> str:
    """The fleet in words: `2 x Tesla T4, 1 x NVIDIA A10`."""
    names = [card.model.name for card in cards]
    return ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))


_COUNTED = re.compile(r"(.+?)x(\d{1,3})", re.IGNORECASE)


def _read_group(text: str) -> _Group:
    counted = _COUNTED.fullmatch(text.strip())
    if counted is None:
        return _Group(find_model(text.strip()), 1)
    return _Group(find_model(counted[1]), parse_whole("model", counted[2], 1, CARDS_MAX))


def _read_file(path: Path) -> tuple[list[_Group], object]:
    try:
        document = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadRequest("model", str(path), f"a file that reads as TOML ({error})") from None
    unknown = document.keys() - {"gpu", "nvlink"}
    tables = document.get("gpu")
    if unknown or not isinstance(tables, list):
        raise BadRequest(str(path), sorted(unknown) or "gpu", "[[gpu]] tables, and nvlink = [[GPU, GPU, LINKS], …]")
    return [_read_table(str(path), table) for table in cast("list[object]", tables)], document.get("nvlink")


def _read_table(path: str, raw: object) -> _Group:
    table = cast("dict[str, Any]", raw) if isinstance(raw, dict) else {}
    unknown = table.keys() - {"model", "count", "memory", "numa"}
    if unknown or not isinstance(table.get("model"), str):
        raise BadRequest(f"{path}: gpu", sorted(table), "model, and where needed count, memory, numa")
    memory, numa = table.get("memory"), table.get("numa")
    return _Group(
        find_model(table["model"]),
        parse_whole(f"{path}: count", table.get("count", 1), 1, CARDS_MAX),
        None if memory is None else parse_size(f"{path}: memory", memory) << 20,
        None if numa is None else parse_whole(f"{path}: numa", numa, 0, NUMA_MAX),
    )


def _place(groups: list[_Group], memory: int | None) -> list[Card]:
    cards: list[Card] = []
    for group in groups:
        first = len(cards)
        for at in range(group.count):
            index = len(cards)
            cards.append(
                Card(
                    index=index,
                    model=group.model,
                    memory=memory or group.memory or group.model.memory,
                    numa=index // _GROUP if group.numa is None else group.numa,
                    board=first + at // group.model.gpus_per_board * group.model.gpus_per_board,
                )
            )
    return cards


# How many links between two cards, or between a card and the switches.
_Links = dict[tuple[int, int], int]
_SWITCHES = -1


def _usual_links(cards: list[Card]) -> _Links:
    """Links from each to each of up to four cards of one model; more are joined by switches, or not at all."""
    links: _Links = {}
    for model in dict.fromkeys(card.model for card in cards if card.model.nvlink):
        same = [card.index for card in cards if card.model is model]
        assert model.nvlink is not None
        if model.nvlink.switched and len(same) > _GROUP:
            links |= {(index, _SWITCHES): model.nvlink.links for index in same}
            continue
        for start in range(0, len(same), _GROUP):
            group = same[start : start + _GROUP]
            each = model.nvlink.links // max(1, len(group) - 1)
            links |= {(one, other): each for one in group for other in group if one < other}
    return links


def _checked_links(cards: list[Card], wanted: object) -> _Links:
    links: _Links = {}
    for entry in cast("list[object]", wanted) if isinstance(wanted, list) else [wanted]:
        match entry:
            case [int(one), int(other), int(number)] if one != other and number > 0:
                links[min(one, other), max(one, other)] = number
            case _:
                raise BadRequest("nvlink", entry, "[GPU, GPU, LINKS] of two different cards")
    for (one, other), _ in links.items():
        for index in (one, other):
            total = sum(number for pair, number in links.items() if index in pair)
            nvlink = cards[index].model.nvlink if 0 <= index < len(cards) else None
            if nvlink is None or total > nvlink.links:
                raise BadRequest("nvlink", total, f"no more links than card {index} has")
    return links


def _linked(cards: list[Card], links: _Links) -> tuple[Card, ...]:
    ends: dict[int, list[int | None]] = {card.index: [] for card in cards}
    for (one, other), number in links.items():
        ends[one] += [None if other == _SWITCHES else other] * number
        if other != _SWITCHES:
            ends[other] += [one] * number
    return tuple(replace(card, links=tuple(ends[card.index])) for card in cards)
