"""kube-scheduler's configuration with our extender in it, for both deployments.

In the default scheduler only pods that ask for a GPU resource come to us; a second scheduler with a name of its own
has only our pods, and we see them all.
"""

from dataclasses import dataclass
from typing import Any

from milligpu.dialects import choose
from milligpu.model import names

# The kubelet counts ours and whole GPUs; only we count memory, and what other dialects ask with.
COUNTED = (names.VGPU, names.WHOLE_GPU)
UNCOUNTED = tuple(sorted(choose.RESOURCES - frozenset(COUNTED)))
# kube-scheduler gives up on a bind after this long; ours are held back so that none takes a tenth of it.
HTTP_TIMEOUT = "5s"
# A tenth of the nodes, and at least 100, is offered to us for a pod; the default is four times as many at 1,000
# nodes. Looking at nodes is most of kube-scheduler's work; each tenth may keep a node in use that is not full.
OFFERED_PERCENT = 10
# One thread looks at the nodes, one after the other, so that the tenths stay the same: with several, each pod is
# offered other nodes, and more of them are left that are not full.
PARALLELISM = 1
# To be switched on in a second scheduler: it then writes the status of a pod that it gives up on beside the next
# pod's turn, and not within it. In a scheduler that binds pods itself such writes can hold up binds
# (kubernetes/kubernetes#135900), and the gate is off by default; here the service binds.
SECOND_SCHEDULER_GATES = {"SchedulerAsyncAPICalls": True}


@dataclass(frozen=True, slots=True)
class Trust:
    """Files, where kube-scheduler runs, by which it knows the service and the service knows it; "" for none."""

    authority: str = ""
    certificate: str = ""
    key: str = ""


_NO_FILES = Trust()


def extender(url: str, trust: Trust) -> dict[str, Any]:
    """The extender's entry. It is never ignorable: the default binder would bind without a grant."""
    files = {"caFile": trust.authority, "certFile": trust.certificate, "keyFile": trust.key}
    secure = {"enableHTTPS": True, "tlsConfig": {key: file for key, file in files.items() if file}}
    return {
        "urlPrefix": url,
        **(secure if url.startswith("https://") else {}),
        "filterVerb": "filter",
        "bindVerb": "bind",
        "nodeCacheCapable": True,
        "httpTimeout": HTTP_TIMEOUT,
        "ignorable": False,
    }


def in_default_scheduler(url: str, trust: Trust = _NO_FILES) -> dict[str, Any]:
    """For the cluster's own scheduler: pods without GPUs never wait for us."""
    managed = [{"name": name} for name in COUNTED]
    managed += [{"name": name, "ignoredByScheduler": True} for name in UNCOUNTED]
    return _configuration({"extenders": [{**extender(url, trust), "managedResources": managed}]})


def second_scheduler(url: str, name: str, trust: Trust = _NO_FILES) -> dict[str, Any]:
    """For a scheduler of our own: it looks at fewer nodes, because the choice among them is ours."""
    ignored = {"kind": "NodeResourcesFitArgs", "ignoredResources": list(UNCOUNTED)}
    ignored["apiVersion"] = "kubescheduler.config.k8s.io/v1"
    profile = {
        "schedulerName": name,
        "percentageOfNodesToScore": OFFERED_PERCENT,
        "pluginConfig": [{"name": "NodeResourcesFit", "args": ignored}],
    }
    return _configuration({"parallelism": PARALLELISM, "profiles": [profile], "extenders": [extender(url, trust)]})


def _configuration(parts: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration", **parts}
