"""All checks, in the order in which things depend on each other."""

import os
from pathlib import Path

from milligpu.node.doctor import cluster, machine, runtime
from milligpu.node.doctor.finding import Check, Finding, examine
from milligpu.node.settings import Settings


async def visit(settings: Settings, containerd: Path) -> list[Finding]:
    """Look at everything."""
    api_fix = "name a kubeconfig of an API server that answers, with --kubeconfig"
    return await examine(
        [
            Check("driver", lambda: machine.driver(os.environ)),
            Check("cgroups", machine.cgroups),
            Check("folders", lambda: machine.folders(settings)),
            Check("container runtime", lambda: runtime.runtime(containerd, settings.cdi), runtime.RUNTIME_FIX),
            Check("device plugins", lambda: runtime.device_plugins(settings)),
            Check("pod resources", lambda: runtime.pod_resources(settings), runtime.KUBELET_FIX),
            Check("API server", lambda: cluster.cluster(settings), api_fix),
            Check("agent", lambda: cluster.agent(settings)),
        ]
    )
