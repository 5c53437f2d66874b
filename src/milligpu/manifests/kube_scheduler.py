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
    ignored = {"kind": "NodeResourcesFitArgs", "ignoredResources": _uncounted(known)}
    ignored["apiVersion"] = "kubescheduler.config.k8s.io/v1"
    profile = {
        "schedulerName": name,
        "percentageOfNodesToScore": OFFERED_PERCENT,
        "pluginConfig": [{"name": "NodeResourcesFit", "args": ignored}],
    }
    return _configuration(
        {"parallelism": PARALLELISM, "profiles": [profile], "extenders": [extender_entry(url, trust)]}
    )


def _uncounted(known: DialectRegistry) -> list[str]:
    return sorted(known.resources - frozenset(COUNTED))


def _configuration(parts: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration", **parts}
