"""The list of commands: where each one is, what it does, and an example of it.

It stands apart from the commands so that `milligpu --help` imports none of them.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Entry:
    """One command as help shows it."""

    module: str
    """It has a click command named `command`."""
    summary: str
    example: str


COMMANDS: dict[str, Entry] = {
    "agent": Entry(
        "milligpu.cli.agent",
        "Run on a machine with GPUs: offer them to Kubernetes, or to all its users.",
        "milligpu agent --node gpu-node-1",
    ),
    "bench": Entry(
        "milligpu.cli.bench",
        "Measure how exactly shares are held, and what that costs.",
        "milligpu bench enforce -o json",
    ),
    "completion": Entry(
        "milligpu.cli.completion",
        "Print the script that makes your shell complete our commands.",
        "milligpu completion bash > ~/.local/share/bash-completion/completions/milligpu",
    ),
    "doctor": Entry(
        "milligpu.cli.doctor",
        "Look whether a node has all that the agent needs, and say how to mend it.",
        "milligpu doctor --node gpu-node-1",
    ),
    "gpu": Entry(
        "milligpu.cli.gpu",
        "List this machine's GPUs: memory, utilisation, temperature, health.",
        "milligpu softgpu exec --model A100-40GBx2,T4x2 -- milligpu gpu list",
    ),
    "explain": Entry(
        "milligpu.cli.explain",
        "Say why a pod waits for a GPU and what would help, or which GPU it has.",
        "kubectl milligpu explain my-pod -n team-a",
    ),
    "free": Entry(
        "milligpu.cli.free",
        "Show the largest share that can be had now, per model.",
        "milligpu free",
    ),
    "place": Entry(
        "milligpu.cli.place",
        "Show which GPUs pods would get on a cluster, or why they would wait.",
        "milligpu place -f examples/shares.yaml --nodes examples/nodes.yaml",
    ),
    "ps": Entry(
        "milligpu.cli.ps",
        "List who holds a share of a GPU of this machine or the cluster, and who waits.",
        "milligpu ps -o wide",
    ),
    "resize": Entry(
        "milligpu.cli.resize",
        "Change the share of a running command or pod.",
        "kubectl milligpu resize pod/my-pod -p 0.3 -m 2Gi",
    ),
    "run": Entry(
        "milligpu.cli.run",
        "Run a command with a share of a GPU of this machine.",
        "milligpu run -p 0.5 -- python examples/train.py",
    ),
    "scheduler": Entry(
        "milligpu.cli.scheduler",
        "Serve kube-scheduler, and write what a cluster needs for it.",
        "milligpu scheduler serve --kubeconfig ~/.kube/config",
    ),
    "simulate": Entry(
        "milligpu.cli.simulate",
        "Replay pods on a cluster and compare how much of its GPUs each policy allocates.",
        "milligpu simulate --generate 200 --policy packing --policy best-fit --plot out/allocation.svg",
    ),
    "softgpu": Entry(
        "milligpu.cli.softgpu",
        "Run CUDA programs on GPUs in software, without a GPU.",
        "milligpu softgpu exec --memory 4Gi -- python examples/train.py",
    ),
    "top": Entry(
        "milligpu.cli.top",
        "Show the GPUs of this machine or the cluster, and measured use against each share.",
        "milligpu top --once -o wide",
    ),
    "translate": Entry(
        "milligpu.cli.translate",
        "Show what manifests of any dialect ask for here.",
        "milligpu translate -f examples/dialects/hami.yaml",
    ),
}
