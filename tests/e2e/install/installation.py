"""The chart on the cluster of the installation tests: installed as the README prints it, changed, removed."""

import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from lightkube.resources.core_v1 import Pod

from deploy import images as products
from deploy.chart import CHART
from devcluster import build, images
from devcluster.cluster import Cluster
from devcluster.pods import pod, wait_for_phase
from devcluster.report import to_stderr
from devcluster.wait import until
from milligpu.model import names
from milligpu.model.units import parse_quantity
from tests.e2e.install.traces import traces

ROOT = Path(__file__).parents[3]
RELEASE = "milligpu"
NAMESPACE = "milligpu"
VALUES: dict[str, Any] = {"softgpu": {"enabled": True}}
"""What the README sets."""


def readme_commands() -> list[tuple[str, list[str]]]:
    """The commands of the README's section on installation, each with the lines that it prints."""
    section = (ROOT / "README.md").read_text().partition("## Install it\n")[2].partition("\n## ")[0]
    found: list[tuple[str, list[str]]] = []
    for line in re.findall(r"```console\n(.*?)```", section, re.DOTALL)[0].splitlines():
        if line.startswith("$ "):
            found.append((line.removeprefix("$ "), []))
        else:
            found[-1][1].append(line)
    return found


def kinds_to_delete() -> list[str]:
    """The CRDs that docs/install.md deletes by hand, because the chart keeps them."""
    line = re.search(r"^\$ kubectl delete crd (.*?)  #", (ROOT / "docs/install.md").read_text(), re.MULTILINE)
    assert line
    return subprocess.run(
        ["bash", "-c", f"echo {line[1]}"], capture_output=True, text=True, check=True
    ).stdout.split()


def run_milligpu(*arguments: str) -> str:
    """Run the command line; it must succeed."""
    command = [str(Path(sys.executable).with_name("milligpu")), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@dataclass
class Installation:
    """A cluster with or without the chart."""

    cluster: Cluster
    before: dict[str, Any] = field(default_factory=dict[str, Any])
    """What the cluster had when nothing was installed."""
    printed: dict[str, str] = field(default_factory=dict[str, str])
    """What the README's commands printed."""
    installed: bool = False

    def prepare(self) -> None:
        """Let the node run its first pod, which makes directories of the runtime and of the network."""
        kube_scheduler = build.binaries(build.KUBE, to_stderr) / "kube-scheduler"
        # As the cluster's own registry would have it.
        reference = f"registry.k8s.io/kube-scheduler:{build.kubernetes_version()}"
        for node in self.cluster.nodes:
            node.import_image(images.program_archive(reference, kube_scheduler), images.BASE)
        self.cluster.client.create(pod("first", ["true"]), namespace="default")
        wait_for_phase(self.cluster, "default", "first", "Succeeded")
        # The kubelet creates its Lease some time after its Node object.
        for node in self.cluster.nodes:
            lease = f"lease.coordination.k8s.io/{node.name}"
            until(f"the Lease of {node.name}", lambda lease=lease: lease in traces(self.cluster)["leases"], 60)
        self.before = traces(self.cluster)

    def install(self) -> None:
        """Run the README's commands as they are printed, unless the chart is installed."""
        if self.installed:
            return
        helm = build.binaries(build.TOOLS, to_stderr) / "helm"
        environment = {**os.environ, "KUBECONFIG": str(self.cluster.kubeconfig)}
        environment |= {"HELM_CACHE_HOME": str(self.cluster.folder / "helm")}
        environment["PATH"] = f"{helm.parent}:{environment.get('PATH', '')}"
        for command, lines in readme_commands():
            done = subprocess.run(
                ["bash", "-c", command], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, f"{command}:\n{done.stdout}\n{done.stderr}"
            for line in lines:
                assert line == "…" or line in done.stdout, f"{command} does not print: {line}"
            self.printed[command.split("#")[0].strip()] = done.stdout
            if command.startswith("make images"):
                self._load_images()
        self.installed = True
        until("the node to have shares", lambda: self.shares() == 2000, 60)

    def archives(self) -> list[Path]:
        """The images that `make images` wrote."""
        return [ROOT / "out/images" / f"{each.name}{each.tag}.tar" for each in products.PRODUCTS]

    def _load_images(self) -> None:
        """Import the archives into the nodes, as the README says."""
        for node in self.cluster.nodes:
            for archive in self.archives():
                node.import_image(archive, images.BASE)

    def exec_in_agent(self, *command: str) -> str:
        """Run a command in the container of an agent."""
        return self.cluster.kubectl("exec", "-n", NAMESPACE, "daemonset/milligpu-agent", "--", *command)

    def shares(self) -> int:
        """The device slots that all kubelets report."""
        path = r"jsonpath={.items[*].status.allocatable.nvidia\.com/vgpu}"
        found = self.cluster.kubectl("get", "nodes", "-o", path)
        return sum(int(parse_quantity(names.VGPU, each)) for each in found.split())

    def helm(self, verb: str, *arguments: str, values: dict[str, Any] | None = None) -> str:
        """Run helm on the release; `values` go on top of those of the README."""
        file = self.cluster.folder / "values.yaml"
        file.write_text(yaml.safe_dump({**VALUES, **(values or {})}))
        chart = [str(CHART), "--values", str(file)] if verb in {"install", "upgrade"} else []
        wait = [] if verb == "test" else ["--wait"]
        self.installed = verb != "uninstall"
        return self.cluster.helm(verb, RELEASE, *chart, *arguments, "-n", NAMESPACE, *wait, "--timeout", "5m")

    def run_pod(self, name: str, *command: str) -> Pod:
        """Create a pod in HAMi's format, and wait until it runs or has run."""
        resources = {"nvidia.com/gpu": "1", "nvidia.com/gpucores": "20", "nvidia.com/gpumem": "1000"}
        self.cluster.client.create(pod(name, command, resources=resources), namespace="default")
        return wait_for_phase(self.cluster, "default", name, "Running", "Succeeded", deadline_s=120)
