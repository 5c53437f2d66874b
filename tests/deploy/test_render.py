"""What the chart prints: with Helm and with `milligpu manifests` the same, valid for each supported Kubernetes."""

import itertools
import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from deploy.chart import CHART
from devcluster import build, schemas
from devcluster.report import to_stderr
from milligpu.cli.main import run
from milligpu.installation.chart import chart_objects, serves_mutating_policies
from milligpu.installation.values import merged
from milligpu.manifests.mutating_policies import API, POLICY
from milligpu.model.errors import BadRequest
from milligpu.model.names import AGENT_NOT_READY, VGPU, VGPU_MEMORY

Objects = dict[tuple[str, str], dict[str, Any]]
Helm = Callable[..., str]
SOFTGPU: dict[str, Any] = {"softgpu": {"enabled": True}}
NVIDIA: dict[str, Any] = {"nvidia": {"enabled": True}}
DASHBOARD: dict[str, Any] = {"dashboard": {"enabled": True}}
SELECTOR = {"kubernetes.io/os": "linux"}
TOLERATIONS = [{"key": "dedicated", "operator": "Exists"}]
AFFINITY: dict[str, Any] = {
    "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}
}
RESOURCES = {"requests": {"cpu": "1"}}
NODE_TYPES = [
    {
        "name": "a100",
        "gpus": 8,
        "memory": 40960,
        "product": "NVIDIA-A100-SXM4-40GB",
        "instanceTypes": ["p4d.24xlarge"],
    },
    {"name": "t4", "gpus": 1, "memory": 15360},
]
MAKER = '"app.kubernetes.io/managed-by": "milligpu"'

# Another value for each, and what has to be set for it to matter.
CHANGES: dict[str, tuple[Any, dict[str, Any]]] = {
    "image.repository": ("registry.example.com/gpu", {}),
    "image.tag": ("9.9.9", {}),
    "image.pullPolicy": ("Always", {}),
    "image.pullSecrets": ([{"name": "registry"}], SOFTGPU),
    "scheduler.replicas": (3, {}),
    "scheduler.name": ("gpus", {}),
    "scheduler.kubeSchedulerImage": ("example.com/kube-scheduler:1", {}),
    "scheduler.resources": (RESOURCES, {}),
    "scheduler.nodeSelector": (SELECTOR, {}),
    "scheduler.tolerations": (TOLERATIONS, {}),
    "scheduler.affinity": (AFFINITY, {}),
    "scheduler.podDisruptionBudget": (False, {}),
    "dialects.gpushareUnit": ("MiB", {}),
    "dialects.parts": (4, {}),
    "dialects.qosLimits": ("on", {}),
    "vsphere.secretName": ("vcenter", {}),
    "agent.tolerations": (TOLERATIONS, SOFTGPU),
    "agent.affinity": (AFFINITY, SOFTGPU),
    "agent.reserve": (["0=0.5", 0.25], SOFTGPU),
    "agent.policy": (["0=fixed", "equal"], SOFTGPU),
    "agent.extraArgs": (["--audit-every=5"], SOFTGPU),
    "agent.kubeletDir": ("/data/kubelet", SOFTGPU),
    "agent.cdiDir": ("/etc/cdi", SOFTGPU),
    "agent.runtimeSocket": ("/run/k3s/containerd/containerd.sock", SOFTGPU),
    "agent.seLinuxOptions": ({"type": "spc_t"}, SOFTGPU),
    "agent.resources": (RESOURCES, SOFTGPU),
    "nvidia.enabled": (True, {}),
    "nvidia.driverRoot": ("/opt/driver", NVIDIA),
    "nvidia.nodeSelector": (SELECTOR, NVIDIA),
    "softgpu.enabled": (True, {}),
    "softgpu.devices": (4, SOFTGPU),
    "softgpu.model": ("T4", SOFTGPU),
    "softgpu.nodeSelector": (SELECTOR, SOFTGPU),
    "classes": ([{"name": "gold", "requirements": "memory>=16Gi", "fallback": "silver"}], {}),
    "nodeTypes": (NODE_TYPES, {}),
    "karpenter.nodeOverlays": (True, {"nodeTypes": NODE_TYPES}),
    "networkPolicy.enabled": (True, {}),
    "serviceMonitor.enabled": (True, SOFTGPU),
    "serviceMonitor.interval": ("5s", {**SOFTGPU, "serviceMonitor": {"enabled": True}}),
    "serviceMonitor.labels": ({"release": "prometheus"}, {**SOFTGPU, "serviceMonitor": {"enabled": True}}),
    "prometheusRule.enabled": (True, {}),
    "prometheusRule.labels": ({"release": "prometheus"}, {"prometheusRule": {"enabled": True}}),
    "grafanaDashboards.enabled": (True, {}),
    "grafanaDashboards.labels": ({"folder": "gpus"}, {"grafanaDashboards": {"enabled": True}}),
    "dashboard.enabled": (True, {}),
    "dashboard.tlsSecret": ("dashboard-tls", DASHBOARD),
    "dashboard.historyClaim": ("history", DASHBOARD),
    "dashboard.prices": ('currency = "EUR"\n[gpu]\n"T4" = 0.35\n', DASHBOARD),
    "dashboard.act": (True, DASHBOARD),
    "dashboard.resources": (RESOURCES, DASHBOARD),
    "crds.keep": (False, {}),
}
SWITCHES: tuple[dict[str, Any], ...] = (
    SOFTGPU,
    {"classes": CHANGES["classes"][0], "nodeTypes": NODE_TYPES},
    {"networkPolicy": {"enabled": True}},
    {
        "serviceMonitor": {"enabled": True},
        "prometheusRule": {"enabled": True},
        "grafanaDashboards": {"enabled": True},
        "dashboard": {"enabled": True, "tlsSecret": "dashboard-tls"},
    },
    {"scheduler": {"podDisruptionBudget": False}},
    {"crds": {"keep": False}},
)


def at(path: str, value: Any) -> dict[str, Any]:
    for name in reversed(path.split(".")):
        value = {name: value}
    return value


def leaves(values: dict[str, Any], schema: dict[str, Any], path: str = "") -> Iterator[str]:
    """The names of all values; an object whose fields the schema leaves open is one value."""
    for name, value in values.items():
        part = schema["properties"][name]
        if "properties" in part:
            yield from leaves(value, part, f"{path}{name}.")
        else:
            yield path + name


def single_changes() -> Iterator[dict[str, Any]]:
    """Each value by itself."""
    for path, (value, needs) in CHANGES.items():
        yield merged(needs, at(path, value))


def combinations() -> Iterator[dict[str, Any]]:
    """All combinations of what can be switched on or off."""
    for chosen in itertools.product((False, True), repeat=len(SWITCHES)):
        values: dict[str, Any] = {}
        for switch in itertools.compress(SWITCHES, chosen):
            values = merged(values, switch)
        yield values


@pytest.fixture(scope="module")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Helm:
    """Prints the chart with Helm; raises if Helm refuses the values."""
    program = build.binaries(build.TOOLS, to_stderr) / "helm"
    file = tmp_path_factory.mktemp("helm") / "values.yaml"

    def template(values: dict[str, Any], version: str = "1.36.3") -> str:
        file.write_text(yaml.safe_dump(values))
        command = [str(program), "template", "milligpu", str(CHART), "--namespace=gpus", f"--values={file}"]
        command += [f"--kube-version={version}", "--no-hooks"]
        if serves_mutating_policies(version):
            command.append(f"--api-versions={API}/{POLICY}")
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ValueError(done.stderr)
        return done.stdout

    return template


def by_name(objects: list[dict[str, Any]]) -> Objects:
    """Objects without the label that says who made them."""
    text = json.dumps(objects).replace('"app.kubernetes.io/managed-by": "Helm"', MAKER)
    return {(each["kind"], each["metadata"]["name"]): each for each in json.loads(text)}


def test_there_is_another_value_for_every_value_of_the_chart() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert sorted(leaves(values, schema)) == sorted(CHANGES)


@pytest.mark.parametrize("path", CHANGES)
def test_every_value_has_an_effect(path: str) -> None:
    value, needs = CHANGES[path]
    before, after = (chart_objects("gpus", "1.36.3", each) for each in (needs, merged(needs, at(path, value))))
    assert by_name(before) != by_name(after)


def test_an_autoscaler_gets_the_shares_of_declared_node_types() -> None:
    values = {"nodeTypes": NODE_TYPES, "karpenter": {"nodeOverlays": True}}
    found = by_name(chart_objects("gpus", "1.36.3", values))
    texts = {name: yaml.safe_load(text) for name, text in found["ConfigMap", "milligpu-node-types"]["data"].items()}
    resources = "k8s.io/cluster-autoscaler/node-template/resources/"
    shares = {name: (text[f"{resources}{VGPU}"], text[f"{resources}{VGPU_MEMORY}"]) for name, text in texts.items()}
    assert shares == {"a100": ("8000", "327680"), "t4": ("1000", "15360")}
    taint = f"k8s.io/cluster-autoscaler/node-template/taint/{AGENT_NOT_READY}"
    assert {text[taint] for text in texts.values()} == {":NoSchedule"}
    overlays = {name: each["spec"] for (kind, name), each in found.items() if kind == "NodeOverlay"}
    assert overlays["milligpu-a100"]["capacity"] == {VGPU: "8000", VGPU_MEMORY: "327680"}
    assert overlays["milligpu-a100"]["requirements"][0]["values"] == ["p4d.24xlarge"]
    assert set(overlays) == {"milligpu-a100"}, "the other type names no instance type"


@pytest.mark.e2e
def test_helm_and_the_manifests_command_print_the_same_objects(helm: Helm) -> None:
    *_, everything = combinations()
    for values in ({}, everything, *single_changes()):
        namespace, *ours = chart_objects("gpus", "1.36.3", values)
        theirs = [each for each in yaml.load_all(helm(values), yaml.CSafeLoader) if each]
        assert namespace["kind"] == "Namespace", "Helm makes it itself"
        assert by_name(ours) == by_name(theirs), values


@pytest.mark.e2e
@pytest.mark.parametrize("version", schemas.SUPPORTED)
def test_all_objects_are_valid_for_each_supported_kubernetes(version: str, tmp_path: Path) -> None:
    kubeconform = build.binaries(build.TOOLS, to_stderr) / "kubeconform"
    different: dict[str, None] = {}
    for values in (*single_changes(), *combinations()):
        different.update(dict.fromkeys(map(json.dumps, chart_objects("gpus", version, values))))
    for number, text in enumerate(different):
        (tmp_path / f"{number}.json").write_text(text)
    command = [
        str(kubeconform),
        "-strict",
        "-summary",
        "-output=json",
        "-n=2",
        "-skip=ServiceMonitor,PrometheusRule,NodeOverlay",
    ]
    command += [f"-schema-location={schemas.schemas(version)}/{schemas.LOCATION}", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = json.loads(done.stdout)
    assert found["resources"] == []
    assert found["summary"]["valid"] > 60


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"softgpu": {"enable": True}}, "softgpu.enable"),
        ({"scheduler": {"replicas": 0}}, "scheduler.replicas"),
        ({"scheduler": {"name": "default-scheduler"}}, "scheduler.name"),
        ({"dialects": {"gpushareUnit": "GB"}}, "dialects.gpushareUnit"),
        ({"agent": {"reserve": ["half"]}}, "agent.reserve[0]"),
        ({"agent": {"policy": ["fair"]}}, "agent.policy[0]"),
        ({"agent": {"kubeletDir": "var/lib/kubelet"}}, "agent.kubeletDir"),
        ({"classes": [{"name": "gold"}]}, "classes[0].requirements"),
        ({"agent": {"runtimeSocket": "containerd.sock"}}, "agent.runtimeSocket"),
        ({"nodeTypes": [{"name": "a100", "gpus": 0, "memory": 40960}]}, "nodeTypes[0].gpus"),
        ({"image": {"tag": 1}}, "image.tag"),
    ],
)
def test_bad_values_are_refused_with_their_name(values: dict[str, Any], field: str, helm: Helm) -> None:
    with pytest.raises(BadRequest) as refused:
        chart_objects("gpus", "1.36.3", values)
    assert refused.value.field == field
    with pytest.raises(ValueError, match=r"values don't meet the specifications"):
        helm(values)


@pytest.mark.e2e
def test_an_old_kubernetes_is_refused_and_vendors_versions_are_not(helm: Helm) -> None:
    with pytest.raises(ValueError, match=r"incompatible with Kubernetes"):
        helm({}, "1.32.9")
    with pytest.raises(BadRequest, match="must be Kubernetes >=1.33.0"):
        chart_objects("gpus", "1.32.9", {})
    for version in ("1.33.0-eks-1", "v1.34.1-gke.7", "1.35.2+k3s1"):
        assert helm({}, version)
        assert chart_objects("gpus", version, {})


def test_the_command_takes_files_and_single_values(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "values.yaml"
    file.write_text("softgpu: {enabled: true, devices: 3}\n")
    command = [
        "manifests",
        "-n",
        "gpus",
        "--values",
        str(file),
        "--set",
        "softgpu.model=T4",
        "--kube-version",
        "1.36.0",
    ]
    assert run(command) == 0
    printed = cast(list[dict[str, Any]], list(yaml.safe_load_all(capsys.readouterr().out)))
    [softgpu] = [each for each in printed if each["metadata"]["name"] == "milligpu-softgpu"]
    arguments = softgpu["spec"]["template"]["spec"]["containers"][0]["args"]
    assert {"--devices=3", "--model=T4"} <= set(arguments)
    assert printed[0] == {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "gpus"}}
    assert not [each for each in printed if "helm.sh/hook" in each["metadata"].get("annotations", {})]


def test_the_former_spelling_prints_the_same_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["scheduler", "manifests"]) == 0
    former = capsys.readouterr()
    assert run(["manifests", "--no-workloads", "--kube-version", "1.36.0"]) == 0
    assert former.out == capsys.readouterr().out
    assert "deprecated: use milligpu manifests --no-workloads" in former.err
