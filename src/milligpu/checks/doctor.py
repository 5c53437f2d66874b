"""The checks of a node, in the order in which things depend on each other."""

import os

from milligpu.agent.settings import AgentSettings
from milligpu.checks import cluster, credentials, node, runtime
from milligpu.checks.result import Check, CheckResult, run_checks


async def run_node_checks(settings: AgentSettings) -> list[CheckResult]:
    """Check everything that the agent needs on this node."""
    api_fix = "name a kubeconfig with a reachable API server: --kubeconfig FILE"
    return await run_checks(
        [
            Check("node", "driver", lambda: node.driver(settings, os.environ)),
            Check("node", "cgroups", node.cgroups),
            Check("node", "directories", lambda: node.directories(settings)),
            Check(
                "runtime",
                "container runtime",
                lambda: runtime.runtime(settings.runtime, settings.cdi),
                runtime.RUNTIME_FIX,
            ),
            Check("kubelet", "device plugins", lambda: runtime.device_plugins(settings)),
            Check("kubelet", "pod resources", lambda: runtime.pod_resources(settings), runtime.KUBELET_FIX),
            Check("cluster", "token", lambda: credentials.credentials(settings), api_fix),
            Check("cluster", "API server", lambda: cluster.cluster(settings), api_fix),
            Check("agent", "agent", lambda: cluster.agent(settings)),
        ]
    )
