"""The list of commands: module, summary and example of each.

It is apart from the commands so that `milligpu --help` imports none of them.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CommandHelp:
    """What `milligpu --help` needs to know of a command."""

    module: str
    """Contains a click command named `command`."""
    summary: str
    example: str
    extra: str = ""
    """The extra of the package that it needs."""


COMMANDS: dict[str, CommandHelp] = {
    "agent": CommandHelp(
        "milligpu.cli.agent",
        "Run the node agent: share this machine's GPUs with pods, or with local users (--local).",
        "milligpu agent --node gpu-node-1",
        "node",
    ),
    "class": CommandHelp(
        "milligpu.cli.gpu_class",
        "List the GPU classes of the cluster and what is free in each.",
        "milligpu class list",
    ),
    "completion": CommandHelp(
        "milligpu.cli.completion",
        "Print the shell completion script.",
        "milligpu completion bash > ~/.local/share/bash-completion/completions/milligpu",
    ),
    "dashboard": CommandHelp(
        "milligpu.cli.dashboard",
        "Serve pages about GPUs, shares, what waits, cost and health.",
        "milligpu dashboard --machine",
        "dashboard",
    ),
    "doctor": CommandHelp(
        "milligpu.cli.doctor",
        "Check that a node is ready for the agent, or a cluster for milligpu, and suggest fixes.",
        "milligpu doctor --node gpu-node-1",
        "node",
    ),
    "gpu": CommandHelp(
        "milligpu.cli.gpu",
        "List this machine's GPUs, or cordon single GPUs of the cluster.",
        "milligpu softgpu exec --model A100-40GBx2,T4x2 -- milligpu gpu list",
        "node",
    ),
    "experiment": CommandHelp(
        "milligpu.cli.experiment",
        "Measure what sharing a GPU does to density, throughput, latency and cost.",
        "milligpu experiment density --model K80 --size 228Mi",
    ),
    "explain": CommandHelp(
        "milligpu.cli.explain",
        "Explain why a pod waits for a GPU, or show which GPUs it has.",
        "kubectl milligpu explain my-pod -n team-a",
    ),
    "free": CommandHelp(
        "milligpu.cli.free",
        "Show the largest share available now, per GPU model.",
        "milligpu free",
    ),
    "health": CommandHelp(
        "milligpu.cli.health",
        "Report the health of GPU servers, of the network between, and of this machine.",
        "milligpu health --local",
    ),
    "layout": CommandHelp(
        "milligpu.cli.layout",
        "Show which layout holds on the cluster's GPUs, what the next switch does, and switch.",
        "milligpu layout preview campus",
        "scheduler",
    ),
    "manifests": CommandHelp(
        "milligpu.cli.manifests",
        "Print the objects that the Helm chart installs, for people without Helm.",
        "milligpu manifests --set softgpu.enabled=true --kube-version 1.36.0",
    ),
    "measure": CommandHelp(
        "milligpu.cli.measure",
        "Measure how exactly shares are enforced, and what that costs.",
        "milligpu measure enforce -o json",
    ),
    "migrate": CommandHelp(
        "milligpu.cli.migrate",
        "Show how to move a running cluster from HAMi or NVIDIA's device plugin; changes nothing.",
        "milligpu migrate --from hami",
    ),
    "place": CommandHelp(
        "milligpu.cli.place",
        "Show which GPUs pods would get on a cluster, or why they would wait.",
        "milligpu place -f examples/shares.yaml --nodes examples/nodes.yaml",
    ),
    "pool": CommandHelp(
        "milligpu.cli.pool",
        "Make pools of GPU servers and tokens for them, or list their GPUs.",
        "milligpu pool token create alice --server gpu-1:7070 -o alice.json",
        "server",
    ),
    "ps": CommandHelp(
        "milligpu.cli.ps",
        "List the sessions or pods that hold a share of a GPU or wait for one.",
        "milligpu ps -o wide",
    ),
    "queue": CommandHelp(
        "milligpu.cli.queue",
        "Show the queues of the cluster, who waits in them and who had how much of late.",
        "milligpu queue show team-a",
    ),
    "resize": CommandHelp(
        "milligpu.cli.resize",
        "Change the share of a running session or pod.",
        "kubectl milligpu resize pod/my-pod -p 0.3 -m 2Gi",
    ),
    "run": CommandHelp(
        "milligpu.cli.run",
        "Run a command with a share of one of this machine's GPUs.",
        "milligpu run -p 0.5 -- python examples/train.py",
    ),
    "scheduler": CommandHelp(
        "milligpu.cli.scheduler",
        "Run the scheduler service, or print the configuration of kube-scheduler.",
        "milligpu scheduler serve --kubeconfig ~/.kube/config",
        "scheduler",
    ),
    "server": CommandHelp(
        "milligpu.cli.server",
        "Serve this machine's GPUs to programs on other machines.",
        "milligpu server --listen 0.0.0.0:7070",
        "server",
    ),
    "service": CommandHelp(
        "milligpu.cli.service",
        "Show inference services, what they decided, and what an update of one would do.",
        "milligpu service explain chat -n team-a",
    ),
    "simulate": CommandHelp(
        "milligpu.cli.simulate",
        "Replay a workload and compare how many GPUs each strategy allocates.",
        "milligpu simulate --generate 200 --strategy packing --strategy best-fit",
    ),
    "softgpu": CommandHelp(
        "milligpu.cli.softgpu",
        "Run CUDA programs on software GPUs, on machines without a GPU.",
        "milligpu softgpu exec --memory 4Gi -- python examples/train.py",
        "softgpu",
    ),
    "support-bundle": CommandHelp(
        "milligpu.cli.support_bundle",
        "Write an archive with logs, objects, checks and status of a cluster, redacted.",
        "milligpu support-bundle milligpu-support.tar.gz",
    ),
    "top": CommandHelp(
        "milligpu.cli.top",
        "Show GPUs and shares with their measured use, continuously.",
        "milligpu top --once -o wide",
    ),
    "translate": CommandHelp(
        "milligpu.cli.translate",
        "Show how milligpu reads GPU requests written for other systems.",
        "milligpu translate -f examples/dialects/hami.yaml",
    ),
    "uninstall": CommandHelp(
        "milligpu.cli.uninstall",
        "Remove what milligpu leaves on nodes and in the cluster; `helm uninstall` runs it.",
        "milligpu uninstall cluster -n milligpu",
        "node",
    ),
    "verify": CommandHelp(
        "milligpu.cli.verify",
        "Check on this machine's GPU that milligpu does what it promises.",
        "milligpu verify --html report.html",
        "node",
    ),
    "advise": CommandHelp(
        "milligpu.cli.advise",
        "Say which pods, sessions and GPUs need attention, why, and what helps.",
        "milligpu advise --machine",
    ),
    "cost": CommandHelp(
        "milligpu.cli.cost",
        "Show what GPUs cost, allocated, used and idle, of each namespace or user.",
        "milligpu cost --machine --prices prices.toml",
    ),
}

FORMER_NAMES = {"bench": "measure"}
"""Names from version 0.1 that still work, with a warning, and that no help lists."""
