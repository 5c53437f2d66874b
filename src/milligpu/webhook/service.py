"""Serves the webhook over HTTPS, with a certificate that is issued, trusted, used and replaced, in this order.

The webhook's configuration objects name the CAs that the API server trusts (`caBundle`). Every instance adds its
own CA to those that have not expired, and checks it regularly: an admin who applies the configuration again removes
it. Reviews change nothing in the cluster, so all instances serve them, not only the leader.
"""

import asyncio
import base64
import os
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import structlog

from milligpu.dialects.normal import NormalForm
from milligpu.http_server import HttpResponse, HttpRoutes, serving, text_response
from milligpu.kube.api import ApiClient
from milligpu.kube.watch import ABSENT_S, Watch
from milligpu.manifests.webhook_configuration import CONFIGURATION, PATH
from milligpu.model import names
from milligpu.model.errors import MilligpuError
from milligpu.model.names import CLASSES_PATH, QUEUES_PATH
from milligpu.model.units import Mib
from milligpu.webhook.certificates import LIFETIME, Certificate, issue_certificate, trust_bundle
from milligpu.webhook.known_classes import KnownClasses
from milligpu.webhook.known_queues import KnownQueues
from milligpu.webhook.largest_gpu import LargestGpu
from milligpu.webhook.namespace_labels import NamespaceLabels
from milligpu.webhook.review import BODY_MAX, PodReviewer, UnknownName
from milligpu.wire.kubernetes import KubeGpuClass, KubeGpuQueue, KubeNode

_CONFIGURATIONS = tuple(
    f"/apis/admissionregistration.k8s.io/v1/{kind}/{CONFIGURATION}"
    for kind in ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
)
# How long a removed CA stays unnoticed. A check costs two small reads.
CHECK_S = 5.0
# API servers watch the configuration; after this long all of them have seen a change.
SPREAD_S = 3.0
_PATCH = "application/json-patch+json"

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class WebhookSettings:
    """The options of `milligpu scheduler serve` about the webhook."""

    host: str
    port: int
    names: tuple[str, ...] = ("127.0.0.1",)
    """The DNS names or IP addresses by which the API server calls the webhook."""
    form: NormalForm = field(default_factory=NormalForm)
    lifetime: timedelta = LIFETIME


async def serve(api: ApiClient, settings: WebhookSettings) -> None:
    """Review pods until cancelled."""
    largest_gpu = LargestGpu(Watch(api, "/api/v1/nodes", KubeNode, cached=True))
    known = KnownClasses(api, Watch(api, CLASSES_PATH, KubeGpuClass, retry_s=ABSENT_S, optional=True))
    known_queues = KnownQueues(api, Watch(api, QUEUES_PATH, KubeGpuQueue, retry_s=ABSENT_S, optional=True))
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(largest_gpu.run())
        tasks.create_task(known.run())
        tasks.create_task(known_queues.run())
        tasks.create_task(WebhookServer(api, settings, largest_gpu.largest, known, known_queues).run())


class WebhookServer:
    """Serves reviews; `largest_gpu` returns the memory of the cluster's largest GPU, None while none is known."""

    def __init__(
        self,
        api: ApiClient,
        settings: WebhookSettings,
        largest_gpu: Callable[[], Mib | None],
        classes: KnownClasses,
        queues: KnownQueues,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._api = api
        self._settings = settings
        self._largest_gpu = largest_gpu
        self._now = now
        reviewer = PodReviewer(self._form, lambda: classes.now, lambda: queues.now)

        labels = NamespaceLabels(api)

        async def review(body: bytes) -> tuple[int, bytes]:
            # Only these pods depend on their namespace.
            bitfusion = await labels.of_review(body, names.BITFUSION) if b"bitfusion" in body else None
            try:
                return 200, reviewer.review(body, final=False, bitfusion=bitfusion)
            except UnknownName:
                await classes.refresh()
                await queues.refresh()
                return 200, reviewer.review(body, bitfusion=bitfusion)

        async def ready() -> HttpResponse:
            return text_response("ok\n")

        # The server starts once the API server trusts its certificate, so any answer at all means that it is ready.
        self._routes = HttpRoutes(post={PATH: review}, get={"/readyz": ready}, body_max=BODY_MAX)

    async def run(self) -> None:
        """Serve until cancelled. A new certificate is used only once its CA is trusted, so that no call fails."""
        certificate = issue_certificate(self._settings.names, self._now(), self._settings.lifetime)
        await self._trusted(certificate)
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._show(tls, certificate)
        async with serving(self._routes, self._settings.host, self._settings.port, tls):
            while True:
                await self._keep(certificate)
                certificate = issue_certificate(self._settings.names, self._now(), self._settings.lifetime)
                await self._trusted(certificate)
                await asyncio.sleep(SPREAD_S)
                self._show(tls, certificate)

    def _form(self) -> NormalForm:
        return replace(self._settings.form, largest_gpu=self._largest_gpu())

    def _show(self, tls: ssl.SSLContext, certificate: Certificate) -> None:
        """Use a certificate for new connections."""
        # Certificates can only be loaded from files; an anonymous one never leaves a key on disk.
        with open(os.memfd_create("tls"), "wb") as file:
            file.write(certificate.key + certificate.certificate)
            file.flush()
            tls.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
        log.info("Serving webhook", port=self._settings.port, until=certificate.ends.isoformat())

    # -- trust -------------------------------------------------------------------------------------------------

    async def _trusted(self, certificate: Certificate) -> None:
        """Retry until the configuration trusts this certificate; the API server cannot call before."""
        said = ""
        while True:
            try:
                await self._trust(certificate)
            except MilligpuError as error:
                if error.message != said:
                    log.warning("Could not add CA to webhook configuration", error=error.message)
                said = error.message
                await asyncio.sleep(CHECK_S)
            else:
                return

    async def _keep(self, certificate: Certificate) -> None:
        """Keep the CA in the configuration until the certificate is due for renewal."""
        while self._now() < certificate.renew_at:
            await asyncio.sleep(CHECK_S)
            await self._trusted(certificate)

    async def _trust(self, certificate: Certificate) -> None:
        for path in _CONFIGURATIONS:
            found = msgspec.json.decode(await self._api.get(path), type=dict[str, Any])
            operations = list(_operations(found, certificate.authority, self._now()))
            if operations:
                await self._api.send("PATCH", path, operations, kind=_PATCH)
                log.info("Added CA to webhook configuration", configuration=path)


def _operations(found: dict[str, Any], authority: bytes, now: datetime) -> list[dict[str, Any]]:
    """Return the JSON Patch that adds the CA; it fails if the configuration was changed meanwhile."""
    changes: list[dict[str, Any]] = []
    webhooks: list[dict[str, Any]] = found.get("webhooks") or []
    for number, webhook in enumerate(webhooks):
        known = base64.b64decode(webhook["clientConfig"].get("caBundle") or "")
        if authority not in known:
            wanted = base64.b64encode(trust_bundle(authority, known, now)).decode()
            changes.append({"op": "add", "path": f"/webhooks/{number}/clientConfig/caBundle", "value": wanted})
    if not changes:
        return []
    version = found["metadata"]["resourceVersion"]
    return [{"op": "test", "path": "/metadata/resourceVersion", "value": version}, *changes]
