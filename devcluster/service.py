"""milligpu's scheduler service in a cluster for a person: installed as documented, with its own account."""

import sys
import urllib.request
from pathlib import Path

import yaml

from devcluster.cluster import Cluster
from devcluster.process import Process
from devcluster.wait import until
from milligpu.model import names
from milligpu.model.gpu import Gpu
from milligpu.model.units import Mib
from milligpu.scheduler.config import in_default_scheduler
from milligpu.scheduler.manifests import SCHEDULER, manifests
from milligpu.scheduler.webhook_objects import Target
from milligpu.wire.inventory import encode_inventory

NAMESPACE = "milligpu"
READY_DEADLINE_S = 60.0
CARDS = 8


def inventory(node: str) -> dict[str, str]:
    """The annotation of a KWOK node with GPUs that only the control plane believes in."""
    cards = (Gpu(f"GPU-{node}-{at}", "Tesla V100-SXM2-16GB", Mib(16384)) for at in range(CARDS))
    return {names.INVENTORY: encode_inventory(cards)}


def start(cluster: Cluster) -> Process:
    """Install the accounts, rights, policies and webhook, start the service, and let kube-scheduler ask it."""
    port, webhook = cluster.port("milligpu-scheduler"), cluster.port("milligpu-webhook")
    target = Target(namespace=NAMESPACE, url=f"https://127.0.0.1:{webhook}")
    cluster.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(manifests(NAMESPACE, target)))
    command = [str(Path(sys.executable).with_name("milligpu")), "scheduler", "serve"]
    command += ["--kubeconfig", str(_kubeconfig(cluster)), "--port", str(port), "--webhook-port", str(webhook)]
    service = cluster.new_process("milligpu-scheduler", command)
    service.start()
    until("the scheduler service", lambda: _ready(service, port), READY_DEADLINE_S, retry=(OSError,))
    cluster.control_plane.stop_scheduler("kube-scheduler")
    cluster.control_plane.start_scheduler(in_default_scheduler(f"http://127.0.0.1:{port}"))
    return service


def _ready(service: Process, port: int) -> bool:
    service.must_run()
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as answer:
        return answer.status == 200


def _kubeconfig(cluster: Cluster) -> Path:
    """The service's own account; its token lasts longer than anybody tries things."""
    token = cluster.kubectl("create", "token", SCHEDULER, "-n", NAMESPACE, "--duration=720h").strip()
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    config["users"] = [{"name": user["name"], "user": {"token": token}} for user in config["users"]]
    file = cluster.folder / "milligpu-scheduler.kubeconfig"
    file.write_text(yaml.safe_dump(config))
    return file
