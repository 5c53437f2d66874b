"""Serving the webhook: its certificate is made, trusted, used and replaced, in this order.

The API server calls the webhook by configuration objects that name the authority to trust (`caBundle`). Every
instance writes its own authority there, beside those that still hold, and looks after it: an admin who applies the
configuration again takes it out. Reviewing changes nothing, so all instances do it, whoever leads.
"""

import asyncio
import base64
import os
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import structlog

from milligpu.dialects.normal import Form
from milligpu.kube.api import Api
from milligpu.model.errors import MilligpuError
from milligpu.model.units import Mib
from milligpu.scheduler.certificates import LIFETIME, Certificate, bundle, issue
from milligpu.scheduler.server import Routes, serving
from milligpu.scheduler.webhook import BODY_MAX, Webhook
from milligpu.scheduler.webhook_objects import CONFIGURATION, PATH

_CONFIGURATIONS = tuple(
    f"/apis/admissionregistration.k8s.io/v1/{kind}/{CONFIGURATION}"
    for kind in ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
)
# How long a lost trust stays unnoticed. A look costs two small reads.
CHECK_S = 5.0
# API servers watch the configuration: this long after a change all of them know it.
SPREAD_S = 3.0
_PATCH = "application/json-patch+json"

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Settings:
    """What `milligpu scheduler serve` was told about the webhook."""

    host: str
    port: int
    names: tuple[str, ...] = ("127.0.0.1",)
    """By which the API server calls it: the service's name, or an address."""
    form: Form = field(default_factory=Form)
    lifetime: timedelta = LIFETIME


class Admission:
    """Runs as long as its instance. `card` is the memory of the cluster's largest card, where one is known."""

    def __init__(
        self,
        api: Api,
        settings: Settings,
        card: Callable[[], Mib | None],
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._api = api
        self._settings = settings
        self._card = card
        self._now = now
        webhook = Webhook(self._form)

        async def review(body: bytes) -> tuple[int, bytes]:
            return 200, webhook.review(body)

        self._routes = Routes(post={PATH: review}, get={}, body_max=BODY_MAX)

    async def run(self) -> None:
        """Until cancelled. The next certificate is trusted before it is shown, so that no call is missed."""
        certificate = issue(self._settings.names, self._now(), self._settings.lifetime)
        await self._trusted(certificate)
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._show(tls, certificate)
        async with serving(self._routes, self._settings.host, self._settings.port, tls):
            while True:
                await self._keep(certificate)
                certificate = issue(self._settings.names, self._now(), self._settings.lifetime)
                await self._trusted(certificate)
                await asyncio.sleep(SPREAD_S)
                self._show(tls, certificate)

    def _form(self) -> Form:
        form = self._settings.form
        return Form(form.settings, form.scheduler, self._card())

    def _show(self, tls: ssl.SSLContext, certificate: Certificate) -> None:
        """Use it for connections from now on."""
        # Only files can be loaded: one without a name leaves no key behind, whenever this process dies.
        with open(os.memfd_create("tls"), "wb") as file:
            file.write(certificate.key + certificate.certificate)
            file.flush()
            tls.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
        log.info("webhook serves", port=self._settings.port, until=certificate.ends.isoformat())

    # -- trust -------------------------------------------------------------------------------------------------

    async def _trusted(self, certificate: Certificate) -> None:
        """Try until the configuration trusts this certificate; without it no API server would call."""
        said = ""
        while True:
            try:
                await self._trust(certificate)
            except MilligpuError as error:
                if error.message != said:
                    log.warning("the webhook is not trusted yet", error=error.message)
                said = error.message
                await asyncio.sleep(CHECK_S)
            else:
                return

    async def _keep(self, certificate: Certificate) -> None:
        """Look after the trust until the certificate is to be replaced."""
        while self._now() < certificate.renew_at:
            await asyncio.sleep(CHECK_S)
            await self._trusted(certificate)

    async def _trust(self, certificate: Certificate) -> None:
        for path in _CONFIGURATIONS:
            found = msgspec.json.decode(await self._api.get(path), type=dict[str, Any])
            operations = list(_operations(found, certificate.authority, self._now()))
            if operations:
                await self._api.send("PATCH", path, operations, kind=_PATCH)
                log.info("webhook trusted", configuration=path)


def _operations(found: dict[str, Any], authority: bytes, now: datetime) -> list[dict[str, Any]]:
    """What makes a configuration trust the authority; its version guards against others who write meanwhile."""
    changes: list[dict[str, Any]] = []
    webhooks: list[dict[str, Any]] = found.get("webhooks") or []
    for number, webhook in enumerate(webhooks):
        known = base64.b64decode(webhook["clientConfig"].get("caBundle") or "")
        if authority not in known:
            wanted = base64.b64encode(bundle(authority, known, now)).decode()
            changes.append({"op": "add", "path": f"/webhooks/{number}/clientConfig/caBundle", "value": wanted})
    if not changes:
        return []
    version = found["metadata"]["resourceVersion"]
    return [{"op": "test", "path": "/metadata/resourceVersion", "value": version}, *changes]
