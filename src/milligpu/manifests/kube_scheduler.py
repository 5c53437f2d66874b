"""kube-scheduler's configuration with the scheduler service as its extender, for both ways to deploy it.

The default scheduler calls the service only for pods that request a GPU resource. A second scheduler with its own
name has only such pods, and calls the service for all of them.
"""

from dataclasses import dataclass
from typing import Any

from milligpu.dialects.choose import KNOWN
from milligpu.dialects.registry import DialectRegistry
from milligpu.model import names

# The kubelet counts these; the service alone counts memory and the resources of other dialects.
COUNTED = (names.VGPU, names.WHOLE_GPU)
# kube-scheduler gives up on a bind after this long; the service queues binds, so that none takes a tenth of it.
HTTP_TIMEOUT = "5s"
# kube-scheduler offers a tenth of the nodes, at least 100, for a pod; its default is four times as many at 1,000
# nodes. Looking at nodes is most of its work. Each tenth may leave one more node in use that is not full.
OFFERED_PERCENT = 10
# With one thread, kube-scheduler looks at the nodes in order and the tenths stay the same. With several, each pod
# is offered other nodes, and more nodes stay in use that are not full.
PARALLELISM = 1
# Feature gates for a second scheduler: it writes the status of a pod that does not fit in the background, while it
# schedules the next one. In a scheduler that binds pods itself such writes can delay binds
# (kubernetes/kubernetes#135900), so the gate is off by default; here the service binds.
SECOND_SCHEDULER_GATES = {"SchedulerAsyncAPICalls": True}


# The points of packing: as many as kube-scheduler's own points for free CPU and memory.
PACKING_WEIGHT = 1
# In a second scheduler a pod's preferences come first, and packing decides among equals: a plugin gives 0 to 100
# points in whole numbers, packing at most 100, so that one point of a plugin has to count for more. The proportions
# are kube-scheduler's defaults.
PREFERENCE_WEIGHTS = {
    name: 101 * weight
    for name, weight in {
        "TaintToleration": 3,
        "NodeAffinity": 2,
        "PodTopologySpread": 2,
        "InterPodAffinity": 2,
        "ImageLocality": 1,
    }.items()
}
# They prefer nodes with much free CPU and memory, which is the opposite of packing.
UNSCORED = ("NodeResourcesFit", "NodeResourcesBalancedAllocation")


@dataclass(frozen=True, slots=True)
class TlsClientFiles:
    """TLS files for kube-scheduler: the CA of the service, and a client certificate with its key; "" is none."""

    authority: str = ""
    certificate: str = ""
    key: str = ""


_NO_FILES = TlsClientFiles()


def extender_entry(url: str, trust: TlsClientFiles) -> dict[str, Any]:
    """Return the extender's entry. It is never ignorable, because the default binder would bind without a grant."""
    files = {"caFile": trust.authority, "certFile": trust.certificate, "keyFile": trust.key}
    secure = {"enableHTTPS": True, "tlsConfig": {key: file for key, file in files.items() if file}}
    return {
        "urlPrefix": url,
        **(secure if url.startswith("https://") else {}),
        "filterVerb": "filter",
        "preemptVerb": "preempt",
        "bindVerb": "bind",
        "nodeCacheCapable": True,
        "httpTimeout": HTTP_TIMEOUT,
        "prioritizeVerb": "prioritize",
        "weight": PACKING_WEIGHT,
        "ignorable": False,
    }


def in_default_scheduler(
    url: str, trust: TlsClientFiles = _NO_FILES, known: DialectRegistry = KNOWN
) -> dict[str, Any]:
    """Return the configuration of the cluster's own scheduler; pods without GPUs never wait for the service."""
    managed = [{"name": name} for name in COUNTED]
    managed += [{"name": name, "ignoredByScheduler": True} for name in _uncounted(known)]
    return _configuration({"extenders": [{**extender_entry(url, trust), "managedResources": managed}]})


def second_scheduler(
    url: str, name: str, trust: TlsClientFiles = _NO_FILES, known: DialectRegistry = KNOWN
) -> dict[str, Any]:
    """Return the configuration of a second scheduler; it offers fewer nodes, because the service chooses."""
    ignored: dict[str, Any] = {"kind": "NodeResourcesFitArgs", "ignoredResources": _uncounted(known)}
    # By default, kube-scheduler spreads the pods of every Service and ReplicaSet, which is the opposite of packing.
    unspread: dict[str, Any] = {"kind": "PodTopologySpreadArgs", "defaultingType": "List", "defaultConstraints": []}
    for args in (ignored, unspread):
        args["apiVersion"] = "kubescheduler.config.k8s.io/v1"
    weights = [{"name": name, "weight": weight} for name, weight in PREFERENCE_WEIGHTS.items()]
    profile = {
        "schedulerName": name,
        "percentageOfNodesToScore": OFFERED_PERCENT,
        "plugins": {"score": {"enabled": weights, "disabled": [{"name": name} for name in UNSCORED]}},
        "pluginConfig": [
            {"name": "NodeResourcesFit", "args": ignored},
            {"name": "PodTopologySpread", "args": unspread},
        ],
    }
    return _configuration(
        {"parallelism": PARALLELISM, "profiles": [profile], "extenders": [extender_entry(url, trust)]}
    )


def _uncounted(known: DialectRegistry) -> list[str]:
    return sorted(known.resources - frozenset(COUNTED))


def _configuration(parts: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration", **parts}
