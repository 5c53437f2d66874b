"""All objects that a cluster needs except workloads: namespace, service accounts, policies, webhooks."""

from typing import Any

from milligpu.manifests.admission_policies import admission_policies, request_policies
from milligpu.manifests.crds import class_crd, queue_crd, sharepod_crd
from milligpu.manifests.layout_crds import layout_crds
from milligpu.manifests.mutating_policies import mutating_policies
from milligpu.manifests.rbac import AGENT, SCHEDULER, service_accounts
from milligpu.manifests.server_crd import server_crd
from milligpu.manifests.service_crd import service_crd
from milligpu.manifests.webhook_configuration import WebhookAddress, webhook_configuration


def cluster_manifests(
    namespace: str, webhook: WebhookAddress | None = None, *, mutating: bool = True
) -> list[dict[str, Any]]:
    """Return the objects in an order in which they can be applied; `webhook` is the webhook's address, if any.

    `mutating`: whether the cluster serves MutatingAdmissionPolicies, as Kubernetes does from 1.36 on.
    """
    admission: list[dict[str, Any]] = []
    if webhook is not None:
        policies = mutating_policies(webhook) if mutating else []
        configuration = webhook_configuration(webhook, hides_gpus=not mutating)
        admission = [*policies, *configuration, *request_policies(webhook), sharepod_crd()]
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}},
        *service_accounts(namespace, webhook=webhook is not None),
        *admission_policies(namespace, SCHEDULER, AGENT),
        class_crd(),
        queue_crd(),
        *layout_crds(),
        server_crd(),
        service_crd(),
        *admission,
    ]
