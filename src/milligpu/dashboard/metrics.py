"""Verdicts and costs for Prometheus: what the agents' own metrics cannot say, because it needs the history."""

from collections.abc import Iterable, Sequence

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector as MetricCollector

from milligpu.status.advice import Advice, Verdict, severity
from milligpu.status.cost import CostReport
from milligpu.status.picture import Picture

METRICS = {
    "milligpu_gpu_verdict": "What is to be said about the GPU, as one word",
    "milligpu_pod_verdict": "What is to be said about the pod, as one word",
    "milligpu_session_verdict": "What is to be said about the session, as one word",
    "milligpu_owner_cost": "Cost of the last 30 days by namespace or user, used and idle",
    "milligpu_unallocated_cost": "Cost of what no pod or session held within the last 30 days",
}
_GPU = ("gpu", "UUID", "modelName", "Hostname", "verdict")


class _Families(MetricCollector):
    def __init__(self, found: Sequence[Metric]) -> None:
        self._found = found

    def collect(self) -> Iterable[Metric]:
        return self._found


def metrics_text(picture: Picture, advice: Sequence[Advice], costs: CostReport | None) -> str:
    """Write what one person may see; `costs` is None for one who may not see everything."""
    registry = CollectorRegistry()
    registry.register(_Families([*_verdicts(picture, advice), *(_costs(costs) if costs is not None else ())]))
    return generate_latest(registry).decode()


def _family(name: str, labels: Sequence[str]) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, METRICS[name], labels=labels)


def _verdicts(picture: Picture, advice: Sequence[Advice]) -> list[Metric]:
    by_link = {each.link: each for each in advice if each.kind == "gpu"}
    gpus = _family("milligpu_gpu_verdict", _GPU)
    for gpu in picture.gpus:
        found = by_link.get(f"/gpus/{gpu.uuid}")
        verdict = found.verdict if found is not None else Verdict.UNKNOWN
        gpus.add_metric((str(gpu.index), gpu.uuid, gpu.model, gpu.node or picture.name, verdict), 1.0)
    # A pod with several shares has one verdict: the worst.
    worst: dict[str, Advice] = {}
    for each in advice:
        if each.kind != "gpu" and (each.link not in worst or severity(each) < severity(worst[each.link])):
            worst[each.link] = each
    pods = _family("milligpu_pod_verdict", ("namespace", "pod", "verdict"))
    sessions = _family("milligpu_session_verdict", ("session", "verdict"))
    for each in worst.values():
        if each.kind == "pod":
            pods.add_metric((each.namespace, each.name.removeprefix(f"{each.namespace}/"), each.verdict), 1.0)
        else:
            sessions.add_metric((each.name.removeprefix("session "), each.verdict), 1.0)
    return [gpus, pods, sessions]


def _costs(costs: CostReport) -> list[Metric]:
    """The parts; together they are the cost of all GPUs that have a price."""
    owners = _family("milligpu_owner_cost", ("owner", "part", "currency"))
    rest = _family("milligpu_unallocated_cost", ("currency",))
    for line in costs.by_owner():
        for part, value in (("used", line.used), ("idle", line.idle)):
            if value is not None:
                owners.add_metric((line.name, part, costs.currency), value)
    if costs.unallocated.allocated is not None:
        rest.add_metric((costs.currency,), costs.unallocated.allocated)
    return [owners, rest]
