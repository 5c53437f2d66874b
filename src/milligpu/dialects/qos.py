"""Kubernetes' QoS class of a pod, and what an admin may let it decide: the limit of a share that names none.

The API server writes `status.qosClass` after admission, so the class is computed here by Kubernetes' own rule: from
the CPU and memory of all containers, or of the pod as a whole where it has them.
"""

from collections.abc import Iterable
from dataclasses import replace
from enum import StrEnum
from fractions import Fraction
from typing import assert_never

from milligpu.dialects import pod as pods
from milligpu.dialects.settings import DialectSetting, DialectSettings
from milligpu.model import names
from milligpu.model.request import ContainerRequest, PodRequest, ShareRequest
from milligpu.model.units import WHOLE, Milli, parse_quantity


class QosLimits(StrEnum):
    """Whether the QoS class decides."""

    OFF = "off"
    ON = "on"


QOS_LIMITS = DialectSetting(
    "qos-limits",
    QosLimits.OFF,
    tuple(QosLimits),
    "With on, the QoS class decides for pods that name neither a limit nor a policy: Guaranteed gets its share, "
    "Burstable also idle time, BestEffort only idle time.",
)


class QosClass(StrEnum):
    """Kubernetes' name for it."""

    GUARANTEED = "Guaranteed"
    BURSTABLE = "Burstable"
    BEST_EFFORT = "BestEffort"


_RESOURCES = ("cpu", "memory")
_Amounts = dict[str, Fraction]


def qos_class(pod: pods.Json) -> QosClass:
    """Compute a pod's QoS class as Kubernetes does."""
    spec = pods.section(pod, "spec")
    whole = _amounts("spec.resources", spec)
    parts = [_amounts(f"containers[{name}].resources", container) for name, _, container in pods.containers(pod)]
    found = [whole] if any(whole) else parts
    if not any(amounts for both in found for amounts in both):
        return QosClass.BEST_EFFORT
    limited = all(limits.keys() == set(_RESOURCES) for _, limits in found)
    equal = _sums(requests for requests, _ in found) == _sums(limits for _, limits in found)
    return QosClass.GUARANTEED if limited and equal else QosClass.BURSTABLE


def apply_qos_limits(pod: pods.Json, request: PodRequest, settings: DialectSettings) -> PodRequest:
    """Let the QoS class decide where the pod does not, if the admin wants that.

    Admission has decided for a pod that it converted: a later change of the setting does not concern it.
    """
    admitted = names.DIALECT in pods.annotations(pod)
    if QOS_LIMITS.of(settings) is QosLimits.OFF or admitted or request.policy is not None:
        return request
    found = qos_class(pod)
    return replace(request, containers=tuple(_limited(each, found) for each in request.containers))


def _limited(container: ContainerRequest, found: QosClass) -> ContainerRequest:
    share = container.share
    if share is None or share.whole or share.limit is not None:
        return container
    match found:
        case QosClass.GUARANTEED:
            return container
        case QosClass.BURSTABLE:
            return replace(container, share=replace(share, limit=WHOLE))
        case QosClass.BEST_EFFORT:
            return replace(container, share=_idle_time(share))
        case _:
            assert_never(found)


def _idle_time(share: ShareRequest) -> ShareRequest:
    """The same memory without guaranteed compute."""
    by_compute = share.mib is None and share.card_memory is None
    return replace(share, milli=Milli(0), card_memory=share.milli if by_compute else share.card_memory, limit=WHOLE)


def _amounts(where: str, parent: pods.Json) -> tuple[_Amounts, _Amounts]:
    """Requests and limits above 0; a limit without a request is also the request, as the API server sets it."""
    resources = pods.section(parent, "resources", where)
    requests, limits = (
        {
            name: amount
            for name, value in pods.section(resources, kind, f"{where}.{kind}").items()
            if name in _RESOURCES and (amount := parse_quantity(f"{where}.{kind}[{name}]", value)) > 0
        }
        for kind in ("requests", "limits")
    )
    return {**limits, **requests}, limits


def _sums(each: Iterable[_Amounts]) -> _Amounts:
    total: _Amounts = {}
    for amounts in each:
        for name, amount in amounts.items():
            total[name] = total.get(name, Fraction(0)) + amount
    return total
