"""What a switch would do to worker VMs and their pods, before it happens.

A person who asks has no login of the hypervisor. What VMs are now is taken from the layout that holds.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from milligpu.cluster.place_reasons import LabelSelector
from milligpu.layouts.layout import CardLayout
from milligpu.layouts.machine_plan import MachineChange, plan_machines
from milligpu.layouts.suspension import Json, must_leave
from milligpu.model.machines import Machine, MachineState

_GIGABYTES = re.compile(r"-(\d+)[qabc]$")


@dataclass(frozen=True, slots=True)
class DisruptionBudget:
    """What matters of a PodDisruptionBudget."""

    namespace: str
    name: str
    selector: LabelSelector
    allowed: int

    def covers(self, pod: Json) -> bool:
        """Whether it is about a pod."""
        meta = pod["metadata"]
        return meta["namespace"] == self.namespace and self.selector.matches(meta.get("labels") or {})


def read_budgets(objects: Sequence[Json]) -> tuple[DisruptionBudget, ...]:
    """Read the PodDisruptionBudgets of a cluster."""
    return tuple(
        DisruptionBudget(
            each["metadata"]["namespace"],
            each["metadata"]["name"],
            msgspec.convert(each["spec"].get("selector") or {}, LabelSelector),
            each.get("status", {}).get("disruptionsAllowed", 0),
        )
        for each in objects
    )


@dataclass(frozen=True, slots=True)
class MachinePreview:
    """What becomes of one VM."""

    name: str
    node: str
    action: str
    suspended: tuple[str, ...] = ()
    """Pods that are suspended with it."""
    evicted: tuple[str, ...] = ()
    blocked: tuple[str, ...] = ()
    """What keeps the switch from being done."""


def preview_machines(
    layout: CardLayout,
    present: CardLayout | None,
    pods: Mapping[str, Sequence[Json]],
    budgets: Sequence[DisruptionBudget],
) -> tuple[MachinePreview, ...]:
    """Return what becomes of each VM of a layout; `pods` are each node's, `present` is the layout that holds."""
    known = {
        each.name: Machine(each.name, each.state, each.profile) for each in (present.machines if present else ())
    }
    plan = plan_machines(layout, known, only_found=True)
    changes = {each.rule.name: each for each in plan.changes}
    found: list[MachinePreview] = []
    for rule in layout.machines:
        change = changes.get(rule.name)
        if rule.name not in known:
            action = f"becomes {rule.state} (unknown now)"
            found.append(MachinePreview(rule.name, rule.node, action))
        elif change is None:
            found.append(MachinePreview(rule.name, rule.node, f"stays {rule.state}"))
        else:
            found.append(_preview(change, pods.get(rule.node, ()), budgets))
    return tuple(found)


def _preview(change: MachineChange, pods: Sequence[Json], budgets: Sequence[DisruptionBudget]) -> MachinePreview:
    rule = change.rule
    if not change.stops:
        return MachinePreview(rule.name, rule.node, _start(change), blocked=_problems(change))
    keep = change.pods == "keep"
    leaving = [each for each in pods if must_leave(each, keep=keep)]
    kept = [each for each in pods if keep and must_leave(each, keep=False) and not must_leave(each, keep=True)]
    closed = [
        f"PodDisruptionBudget {budget.namespace}/{budget.name} allows no eviction of pod {pod['metadata']['name']}"
        for pod in leaving
        for budget in budgets
        if budget.allowed <= 0 and budget.covers(pod)
    ]
    return MachinePreview(
        rule.name, rule.node, _stop(change), _names(kept), _names(leaving), (*_problems(change), *closed)
    )


def _problems(change: MachineChange) -> tuple[str, ...]:
    return (change.problem,) if change.problem else ()


def _stop(change: MachineChange) -> str:
    if change.reshapes:
        again = ", and on" if change.resumes else ""
        return f"powers off, profile {change.before.profile} -> {change.rule.profile}{again}"
    if change.released is MachineState.OFF:
        return "powers off"
    size = _GIGABYTES.search(change.before.profile)
    return "suspends" + (f", with up to {size[1]} GB of GPU memory to disk" if size else "")


def _start(change: MachineChange) -> str:
    if not change.resumes:
        return f"becomes {change.rule.state}"
    profile = f", profile {change.before.profile} -> {change.rule.profile}" if change.reshapes else ""
    return ("resumes" if change.before.state is MachineState.SUSPENDED else "powers on") + profile


def _names(pods: Sequence[Json]) -> tuple[str, ...]:
    return tuple(sorted(f"{each['metadata']['namespace']}/{each['metadata']['name']}" for each in pods))
