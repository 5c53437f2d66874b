"""Bitfusion's filters: which GPUs of which servers a command may have."""

import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import msgspec

from milligpu.model.errors import BadRequest
from milligpu.remote.protocol import GpuList
from milligpu.wire.status import GpuStatus

_Value = str | float | tuple[int, ...]
# Bitfusion's megabytes are 10^6 bytes, a GPU's memory is counted in MiB.
_MEGABYTES_PER_MIB = 1.048576


@dataclass(frozen=True, slots=True)
class _Key:
    """Something that a filter can ask for."""

    read: Callable[[str, GpuList, GpuStatus], _Value]
    parse: Callable[[str], _Value] = str
    ordered: bool = False
    """Whether one value can be less than another."""
    want: str = "text"


def _version(text: str) -> tuple[int, ...]:
    if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9}){0,3}", text) is None:
        raise ValueError
    numbers = [int(part) for part in text.split(".")]
    while numbers and not numbers[-1]:
        numbers.pop()  # 12 and 12.0 are the same
    return tuple(numbers)


def _known(text: str) -> tuple[int, ...]:
    """A version that a server reported; one that does not say has the lowest."""
    return _version(text) if text else ()


_KEYS = {
    "server.addr": _Key(lambda server, _list, _gpu: server.rpartition(":")[0].strip("[]")),
    "server.hostname": _Key(lambda _server, found, _gpu: found.machine),
    "server.cuda-version": _Key(lambda _s, found, _g: _known(found.cuda), _version, True, "a version such as 12.4"),
    "server.driver-version": _Key(
        lambda _s, found, _g: _known(found.driver), _version, True, "a version such as 550.54"
    ),
    "device.index": _Key(lambda _server, _list, gpu: float(gpu.index), float, True, "a number"),
    "device.id": _Key(lambda _server, _list, gpu: gpu.uuid),
    "device.name": _Key(lambda _server, _list, gpu: gpu.model),
    "device.physical-memory": _Key(
        lambda _server, _list, gpu: gpu.mib * _MEGABYTES_PER_MIB, float, True, "megabytes, such as 16000"
    ),
}
_COMPARE: dict[str, Callable[[_Value, _Value], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
_ORDERED = frozenset({">", ">=", "<", "<="})
_FILTER = re.compile(r"\s*(?P<key>[a-z.-]+)\s*(?P<compare>!=|>=|<=|=|>|<)\s*(?P<value>.+?)\s*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class GpuFilter:
    """One condition that a GPU has to meet."""

    key: str
    compare: str
    value: _Value

    def meets(self, server: str, found: GpuList, gpu: GpuStatus) -> bool:
        return _COMPARE[self.compare](_KEYS[self.key].read(server, found, gpu), self.value)


def parse_filter(text: str) -> GpuFilter:
    """Read `KEY=VALUE`, or another comparison; a key that is not understood must not let every GPU through."""
    match = _FILTER.fullmatch(text)
    if match is None or match["key"] not in _KEYS:
        raise BadRequest("--filter", text, f"KEY=VALUE, where KEY is {', '.join(_KEYS)}")
    key, value = _KEYS[match["key"]], match["value"].strip("'\"")
    if match["compare"] in _ORDERED and not key.ordered:
        raise BadRequest("--filter", text, f"{match['key']}=VALUE or {match['key']}!=VALUE")
    try:
        return GpuFilter(match["key"], match["compare"], key.parse(value))
    except ValueError:
        raise BadRequest("--filter", text, f"a filter whose value is {key.want}") from None


def filter_gpus(filters: Iterable[GpuFilter], answers: Mapping[str, GpuList]) -> dict[str, GpuList]:
    """Return the servers that have any GPU which meets all filters, each with those GPUs only."""
    wanted = tuple(filters)
    kept = {
        server: [gpu for gpu in found.gpus if all(each.meets(server, found, gpu) for each in wanted)]
        for server, found in answers.items()
    }
    return {server: msgspec.structs.replace(answers[server], gpus=gpus) for server, gpus in kept.items() if gpus}
