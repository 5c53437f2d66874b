"""The GPUs of a machine and how they are linked, from a short text or a file.

The text is `A100-40GB` or `A100-40GBx2,T4x2`. The file is TOML with `[[gpu]]` tables (model, count, memory, numa)
and optionally `nvlink = [[0, 1, 4], …]`: the number of links between two GPUs, instead of the usual layout.
"""

import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from milligpu.model.errors import BadRequest
from milligpu.model.units import parse_size_with_unit, parse_whole
from milligpu.softgpu.models import GpuModel, find_model

# The driver library looks for this many sockets.
GPUS_MAX = 16
NUMA_MAX = 7

# The usual layout: two GPUs per PCIe bridge, four GPUs per processor, and NVLink between any two of four. More than
# four are joined by switches, if the model has them.
_BRIDGE, _GROUP = 2, 4


@dataclass(frozen=True, slots=True)
class SoftGpu:
    """One GPU and where it sits in the machine."""

    index: int
    model: GpuModel
    memory: int
    numa: int
    board: int
    links: tuple[int | None, ...] = ()
    """For each NVLink, the index of the GPU at the other end; None is a switch."""

    @property
    def bridge(self) -> int:
        """The PCIe bridge, which two neighbors share."""
        return self.index // _BRIDGE

    @property
    def pci_bus(self) -> int:
        """The PCI bus, which also gives the order in which GPUs are found."""
        return self.index + 1


@dataclass(frozen=True, slots=True)
class _Group:
    model: GpuModel
    count: int
    memory: int | None = None
    numa: int | None = None


def read_fleet(text: str, devices: int | None = None, memory: int | None = None) -> tuple[SoftGpu, ...]:
    """Return the GPUs that `--model`, `--devices` and `--memory` describe."""
    if text.endswith(".toml"):
        groups, links = _read_file(Path(text))
    else:
        groups, links = [_read_group(part) for part in text.split(",")], None
    if devices is not None:
        if len(groups) != 1 or groups[0].count != 1:
            raise BadRequest("devices", devices, "left out when --model already says how many")
        groups = [replace(groups[0], count=devices)]
    gpus = _place(groups, memory)
    if not 1 <= len(gpus) <= GPUS_MAX:
        raise BadRequest("model", text, f"1 to {GPUS_MAX} GPUs in total")
    return _linked(gpus, _usual_links(gpus) if links is None else _checked_links(gpus, links))


def describe(gpus: Iterable[SoftGpu]) -> str:
    """Describe the GPUs in words: `2 x Tesla T4, 1 x NVIDIA A10`."""
    names = [gpu.model.name for gpu in gpus]
    return ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))


_COUNTED = re.compile(r"(.+?)x(\d{1,3})", re.IGNORECASE)


def _read_group(text: str) -> _Group:
    counted = _COUNTED.fullmatch(text.strip())
    if counted is None:
        return _Group(find_model(text.strip()), 1)
    return _Group(find_model(counted[1]), parse_whole("model", counted[2], 1, GPUS_MAX))


def _read_file(path: Path) -> tuple[list[_Group], object]:
    try:
        document = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadRequest("model", str(path), f"a readable TOML file ({error})") from None
    unknown = document.keys() - {"gpu", "nvlink"}
    tables = document.get("gpu")
    if unknown or not isinstance(tables, list):
        raise BadRequest(
            str(path), sorted(unknown) or "gpu", "[[gpu]] tables, and optionally nvlink = [[GPU, GPU, LINKS], …]"
        )
    return [_read_table(str(path), table) for table in cast("list[object]", tables)], document.get("nvlink")


def _read_table(path: str, raw: object) -> _Group:
    table = cast("dict[str, Any]", raw) if isinstance(raw, dict) else {}
    unknown = table.keys() - {"model", "count", "memory", "numa"}
    if unknown or not isinstance(table.get("model"), str):
        raise BadRequest(f"{path}: gpu", sorted(table), "a table with model, and optionally count, memory, numa")
    memory, numa = table.get("memory"), table.get("numa")
    return _Group(
        find_model(table["model"]),
        parse_whole(f"{path}: count", table.get("count", 1), 1, GPUS_MAX),
        None if memory is None else parse_size_with_unit(f"{path}: memory", memory) << 20,
        None if numa is None else parse_whole(f"{path}: numa", numa, 0, NUMA_MAX),
    )


def _place(groups: list[_Group], memory: int | None) -> list[SoftGpu]:
    gpus: list[SoftGpu] = []
    for group in groups:
        first = len(gpus)
        for at in range(group.count):
            index = len(gpus)
            gpus.append(
                SoftGpu(
                    index=index,
                    model=group.model,
                    memory=memory or group.memory or group.model.memory,
                    numa=index // _GROUP if group.numa is None else group.numa,
                    board=first + at // group.model.gpus_per_board * group.model.gpus_per_board,
                )
            )
    return gpus


# The number of links between two GPUs, or between a GPU and the switches.
_Links = dict[tuple[int, int], int]
_SWITCHES = -1


def _usual_links(gpus: list[SoftGpu]) -> _Links:
    """Link up to four GPUs of one model each to each; more are joined by switches, or not at all."""
    links: _Links = {}
    for model in dict.fromkeys(gpu.model for gpu in gpus if gpu.model.nvlink):
        same = [gpu.index for gpu in gpus if gpu.model is model]
        assert model.nvlink is not None
        if model.nvlink.switched and len(same) > _GROUP:
            links |= {(index, _SWITCHES): model.nvlink.links for index in same}
            continue
        for start in range(0, len(same), _GROUP):
            group = same[start : start + _GROUP]
            each = model.nvlink.links // max(1, len(group) - 1)
            links |= {(one, other): each for one in group for other in group if one < other}
    return links


def _checked_links(gpus: list[SoftGpu], wanted: object) -> _Links:
    links: _Links = {}
    for entry in cast("list[object]", wanted) if isinstance(wanted, list) else [wanted]:
        match entry:
            case [int(one), int(other), int(number)] if one != other and number > 0:
                links[min(one, other), max(one, other)] = number
            case _:
                raise BadRequest("nvlink", entry, "[GPU, GPU, LINKS] of two different GPUs")
    for (one, other), _ in links.items():
        for index in (one, other):
            total = sum(number for pair, number in links.items() if index in pair)
            nvlink = gpus[index].model.nvlink if 0 <= index < len(gpus) else None
            if nvlink is None or total > nvlink.links:
                raise BadRequest("nvlink", total, f"at most the number of links of GPU {index}")
    return links


def _linked(gpus: list[SoftGpu], links: _Links) -> tuple[SoftGpu, ...]:
    ends: dict[int, list[int | None]] = {gpu.index: [] for gpu in gpus}
    for (one, other), number in links.items():
        ends[one] += [None if other == _SWITCHES else other] * number
        if other != _SWITCHES:
            ends[other] += [one] * number
    return tuple(replace(gpu, links=tuple(ends[gpu.index])) for gpu in gpus)
