"""`make chart`: writes the parts of the Helm chart that follow from the code.

RBAC, admission policies, webhook and CRDs are tables of `milligpu.manifests`. Here they become templates, with the
release's namespace in place of a fixed one. The rest of the chart is written by hand.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from deploy import dockerfile, grafana
from milligpu.manifests.bundle import cluster_manifests
from milligpu.manifests.kube_scheduler import second_scheduler
from milligpu.manifests.mutating_policies import API, BINDING, POLICY
from milligpu.manifests.rbac import KUBE_SCHEDULER_LEASE, SCHEDULER, declared_classes_role, uninstall_account
from milligpu.manifests.webhook_configuration import WebhookAddress

CHART = Path(__file__).parent / "chart"
_HEAD = "{{- /* Written by `make chart` from src/milligpu/manifests; not for editing. */ -}}\n"
# A word that no object has, so that it can be replaced in names and in expressions.
_NAMESPACE = "release-namespace-of-the-chart"
_SCHEDULER = "release-scheduler-of-the-chart"
_LABELS = "labels-of-the-chart"
_DEPENDING = {POLICY, BINDING, "MutatingWebhookConfiguration"}
_KEPT = "  {{- if .Values.crds.keep }}\n  annotations: {helm.sh/resource-policy: keep}\n  {{- end }}\n"
_HOOK = """\
  annotations:
    helm.sh/hook: pre-delete,post-delete
    helm.sh/hook-weight: "-5"
    helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
"""


def files() -> dict[Path, str]:
    """The generated files of the chart and what they contain."""
    objects = [each for each in _objects(mutating=True) if each["kind"] not in _DEPENDING]
    kinds: dict[str, list[dict[str, Any]]] = {}
    for each in objects:
        kinds.setdefault(_file_of(each["kind"]), []).append(each)
    kinds.pop("")
    kinds["rbac"] += [*_kube_scheduler_roles(), *declared_classes_role(_NAMESPACE)]
    templates = {CHART / f"templates/{name}.yaml": _template(each) for name, each in kinds.items()}
    templates[CHART / "templates/mutating-policies.yaml"] = _mutating_policies()
    hooks = _template(uninstall_account(_NAMESPACE), _HOOK)
    return {
        **templates,
        CHART / "templates/uninstall-rbac.yaml": hooks,
        CHART / "files/kube-scheduler.yaml": _kube_scheduler(),
        CHART / "files/rules.yaml": (CHART.parent / "prometheus/rules.yaml").read_text(),
        **grafana.files(),
        dockerfile.FILE: dockerfile.dockerfile(),
        dockerfile.IGNORED: dockerfile.ignored(),
    }


def _objects(*, mutating: bool) -> list[dict[str, Any]]:
    return cluster_manifests(_NAMESPACE, WebhookAddress(namespace=_NAMESPACE), mutating=mutating)


def _mutating_policies() -> str:
    """What depends on whether the cluster serves MutatingAdmissionPolicies: they, or more webhooks."""
    served, otherwise = (
        "---\n".join(_one(each, "") for each in _objects(mutating=mutating) if each["kind"] in _DEPENDING)
        for mutating in (True, False)
    )
    condition = f'.Capabilities.APIVersions.Has "{API}/{POLICY}"'
    return f"{_HEAD}{{{{- if {condition} }}}}\n{served}{{{{- else }}}}\n{otherwise}{{{{- end }}}}\n"


def _file_of(kind: str) -> str:
    """Helm makes the release's namespace itself."""
    match kind:
        case "Namespace":
            return ""
        case "CustomResourceDefinition":
            return "crds"
        case "ValidatingWebhookConfiguration":
            return "webhooks"
        case "ServiceAccount" | "Role" | "RoleBinding" | "ClusterRole" | "ClusterRoleBinding":
            return "rbac"
        case _:
            return "admission-policies"


def _kube_scheduler_roles() -> list[dict[str, Any]]:
    """What Kubernetes lets its own kube-scheduler do, for the one next to the service."""
    group = "rbac.authorization.k8s.io"
    subjects = [{"kind": "ServiceAccount", "name": SCHEDULER, "namespace": _NAMESPACE}]
    roles: tuple[tuple[str, str, dict[str, str]], ...] = (
        ("ClusterRole", "system:kube-scheduler", {}),
        ("ClusterRole", "system:volume-scheduler", {}),
        ("Role", "extension-apiserver-authentication-reader", {"namespace": "kube-system"}),
    )
    return [
        {
            "apiVersion": f"{group}/v1",
            "kind": f"{kind}Binding",
            "metadata": {"name": f"milligpu-{name.removeprefix('system:')}", **place},
            "roleRef": {"apiGroup": group, "kind": kind, "name": name},
            "subjects": subjects,
        }
        for kind, name, place in roles
    ]


def _kube_scheduler() -> str:
    config = second_scheduler("http://127.0.0.1:8888", _SCHEDULER)
    lease = {"leaderElect": True, "resourceNamespace": _NAMESPACE, "resourceName": KUBE_SCHEDULER_LEASE}
    text = yaml.safe_dump({**config, "leaderElection": lease}, sort_keys=False)
    return "# Written by `make chart`; not for editing.\n" + _with_values(text)


def _template(objects: Iterable[dict[str, Any]], annotations: str = "") -> str:
    return _HEAD + "---\n".join(_one(each, annotations) for each in objects)


def _one(found: dict[str, Any], annotations: str) -> str:
    metadata = {**found["metadata"], "labels": _LABELS}
    text = yaml.safe_dump({**found, "metadata": metadata}, sort_keys=False, width=1000)
    # Helm would read these as its own.
    text = text.replace("{{", "{{ `{{` }}")
    labels = 'labels: {{- include "milligpu.labels" . | nindent 4 }}\n'
    labels += "".join(f'    {key}: "{value}"\n' for key, value in found["metadata"].get("labels", {}).items())
    if found["kind"] == "CustomResourceDefinition":
        annotations = _KEPT
    text = text.replace(f"labels: {_LABELS}\n", labels + annotations)
    return _with_values(text)


def _with_values(text: str) -> str:
    return text.replace(_NAMESPACE, "{{ .Release.Namespace }}").replace(_SCHEDULER, "{{ .Values.scheduler.name }}")


def main() -> None:
    for file, text in files().items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


if __name__ == "__main__":
    main()
