"""Whose energy and time a GPU spends: parts that add up to the GPU. Pure: times are passed in.

The GPU's idle power is divided by allocation; what nobody holds of it is unallocated. The energy above that is
divided by the time for which each holder really had the GPU. The idle power is the lowest that was measured, so the
energy of a GPU that has been busy since the start is divided by allocation until it rests once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from milligpu.tenancy.rates import GpuTimeRates

_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Holder:
    """One holder of one GPU."""

    name: str
    part: float
    """The fraction of this GPU that it holds, 0 to 1."""
    charged_ns: int | None
    """GPU time so far; None for the holder of the whole GPU, whose time nobody counts."""


@dataclass(frozen=True, slots=True)
class EnergyReading:
    """The driver's energy counter at some moment."""

    at: float
    millijoules: int


@dataclass(frozen=True, slots=True)
class HolderEnergy:
    """What one holder was charged."""

    joules: float
    watts: float | None
    """Within the last seconds; None before there are two readings."""


@dataclass(slots=True)
class GpuAccount:
    """One GPU's totals since the first measurement, in seconds and joules."""

    shared_s: float = 0.0
    """Time in which the GPU was not held whole."""
    idle_s: float = 0.0
    """The part of it that no holder was charged."""
    unallocated_j: float = 0.0
    """Idle energy of what nobody holds, and energy that no holder's time explains."""
    energy_j: float | None = None
    """The driver's counter, as of the last division."""
    idle_watts: float | None = None
    holders: dict[str, float] = field(default_factory=dict[str, float])
    """Joules of each present holder."""
    _at: float | None = None
    _charged: dict[str, int] = field(default_factory=dict[str, int])
    _debt_s: float = 0.0
    _energy: EnergyReading | None = None
    _charged_then: dict[str, int] = field(default_factory=dict[str, int])

    def add(self, now: float, holders: Sequence[Holder], energy: EnergyReading | None) -> None:
        """Divide what passed since the last call among the present holders."""
        self._add_time(now, holders)
        self._add_energy(holders, energy)

    def _add_time(self, now: float, holders: Sequence[Holder]) -> None:
        charged = {each.name: each.charged_ns for each in holders if each.charged_ns is not None}
        if self._at is not None and len(charged) == len(holders):
            passed = now - self._at
            self.shared_s += passed
            # Work is charged when it ends: a turn's time may be noted a little after it passed.
            left = passed - sum(_grown(charged, self._charged).values()) / _NS + self._debt_s
            self.idle_s += max(0.0, left)
            self._debt_s = min(0.0, left)
        self._at, self._charged = now, charged

    def _add_energy(self, holders: Sequence[Holder], energy: EnergyReading | None) -> None:
        self.holders = {each.name: self.holders.get(each.name, 0.0) for each in holders}
        before = self._energy
        if energy is None or (before is not None and energy.at <= before.at):
            return
        charged = {each.name: each.charged_ns or 0 for each in holders}
        if before is not None and energy.millijoules >= before.millijoules:
            joules = (energy.millijoules - before.millijoules) / 1000
            self._divide(joules, energy.at - before.at, holders, _grown(charged, self._charged_then))
        self._energy, self._charged_then, self.energy_j = energy, charged, energy.millijoules / 1000

    def _divide(self, joules: float, seconds: float, holders: Sequence[Holder], worked: Mapping[str, int]) -> None:
        watts = joules / seconds
        self.idle_watts = watts if self.idle_watts is None else min(self.idle_watts, watts)
        idle = min(joules, self.idle_watts * seconds)
        weights = {each.name: 1 if each.charged_ns is None else worked[each.name] for each in holders}
        total = sum(weights.values())
        given = 0.0
        for each in holders:
            part = idle * each.part + ((joules - idle) * weights[each.name] / total if total else 0.0)
            self.holders[each.name] += part
            given += part
        self.unallocated_j += max(0.0, joules - given)


class EnergyAccounts:
    """The accounts of all GPUs of a machine, by UUID."""

    def __init__(self) -> None:
        self.gpus: dict[str, GpuAccount] = {}
        self._rates = GpuTimeRates()
        self._known: set[str] = set()

    def add(
        self, now: float, holders: Mapping[str, Sequence[Holder]], energies: Mapping[str, EnergyReading]
    ) -> None:
        """Note who holds each GPU now, and each GPU's energy; `holders` has a line for every GPU."""
        known: set[str] = set()
        for gpu, held in holders.items():
            account = self.gpus.setdefault(gpu, GpuAccount())
            account.add(now, held, energies.get(gpu))
            for name, joules in account.holders.items():
                known.add(_key(gpu, name))
                if gpu in energies:
                    # A rate of nanojoules counts as one of nanoseconds: 1e9 of them a second are 1 W.
                    self._rates.add(_key(gpu, name), energies[gpu].at, [round(joules * _NS)])
        for gone in self._known - known:
            self._rates.forget(gone)
        self._known = known

    def holder(self, gpu: str, name: str) -> HolderEnergy | None:
        """What a present holder was charged; None if the GPU does not count energy."""
        account = self.gpus.get(gpu)
        if account is None or account.energy_j is None or name not in account.holders:
            return None
        rates = self._rates.rates(_key(gpu, name))
        return HolderEnergy(account.holders[name], rates[0] if rates else None)


def _key(gpu: str, name: str) -> str:
    return f"{gpu}/{name}"


def _grown(now: Mapping[str, int], before: Mapping[str, int]) -> dict[str, int]:
    """How much each counter grew; one that fell began again at 0, and a new one counts whole."""
    return {
        name: count - before[name] if before.get(name, 0) <= count and name in before else count
        for name, count in now.items()
    }
