"""milligpu's Helm chart, printed as Kubernetes objects without Helm."""

import json
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from milligpu.installation.template import Templates
from milligpu.installation.template_functions import compare_versions
from milligpu.installation.values import check_values, merged
from milligpu.manifests.mutating_policies import API, POLICY, SINCE
from milligpu.model.errors import BadRequest, Unavailable

# The one in C is ten times as fast.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# Helm's order: what others need comes first, and webhooks when there is somebody to answer.
_ORDER = (
    "Namespace",
    "NetworkPolicy",
    "PodDisruptionBudget",
    "ServiceAccount",
    "Secret",
    "ConfigMap",
    "CustomResourceDefinition",
    "ClusterRole",
    "ClusterRoleBinding",
    "Role",
    "RoleBinding",
    "Service",
    "DaemonSet",
    "Deployment",
)


def chart_folder() -> Path:
    """Where the chart is: in a checkout, or installed with the package."""
    here = Path(__file__).parents[1]
    installed = (here / "_chart", Path(sysconfig.get_path("platlib"), "milligpu", "_chart"))
    for folder in (here.parents[1] / "deploy" / "chart", *installed):
        if (folder / "Chart.yaml").is_file():
            return folder
    raise Unavailable("the chart is not installed", hint="reinstall milligpu, or run: uv sync")


def chart_objects(namespace: str, kube_version: str, changes: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the objects that `helm install` would create, with the namespace, and without hooks.

    `changes` are the values that differ from the chart's own.
    """
    folder = chart_folder()
    chart: dict[str, Any] = yaml.safe_load((folder / "Chart.yaml").read_text())
    if not compare_versions(chart["kubeVersion"], kube_version):
        raise BadRequest("--kube-version", kube_version, f"Kubernetes {chart['kubeVersion'].removesuffix('-0')}")
    values = merged(yaml.safe_load((folder / "values.yaml").read_text()), changes)
    check_values(values, json.loads((folder / "values.schema.json").read_text()))

    def read(name: str) -> str:
        return (folder / name).read_text()

    def has_kind(name: str) -> bool:
        # kubectl applies a definition of ours and objects of its kind one after the other.
        return name != f"{API}/{POLICY}" or serves_mutating_policies(kube_version)

    root: dict[str, Any] = {
        "Values": values,
        "Chart": {"Name": chart["name"], "Version": chart["version"], "AppVersion": chart["appVersion"]},
        "Release": {"Name": "milligpu", "Namespace": namespace, "Service": "milligpu"},
        "Capabilities": {
            "KubeVersion": {"Version": f"v{kube_version.removeprefix('v')}"},
            "APIVersions": {"Has": has_kind},
        },
        "Files": {"Get": read},
    }
    objects = [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}]
    objects += [each for each in _rendered(folder, root) if not _is_hook(each)]
    return sorted(objects, key=_place)


def serves_mutating_policies(kube_version: str) -> bool:
    """Whether a Kubernetes of this version serves MutatingAdmissionPolicies."""
    return compare_versions(f">={SINCE[0]}.{SINCE[1]}", kube_version)


def _rendered(folder: Path, root: Mapping[str, Any]) -> list[dict[str, Any]]:
    templates = Templates()
    files = sorted(folder.glob("templates/**/*.*"))
    parsed = {file: templates.parse(file.name, file.read_text()) for file in files if file.suffix != ".txt"}
    texts = [templates.render(nodes, root) for file, nodes in parsed.items() if file.suffix == ".yaml"]
    return [found for text in texts for found in yaml.load_all(text, _Loader) if found]


def _is_hook(found: Mapping[str, Any]) -> bool:
    return "helm.sh/hook" in found["metadata"].get("annotations", {})


def _place(found: Mapping[str, Any]) -> int:
    return _ORDER.index(found["kind"]) if found["kind"] in _ORDER else len(_ORDER)
