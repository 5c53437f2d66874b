"""One leader at a time, by a Lease; the others stand by.

A Lease fences nothing: a leader that was paused does not know that it was. So it asks the clock before every bind,
and its own idea of its term ends well before another's may begin.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec
import structlog

from milligpu.kube.api import Api, Refused
from milligpu.model.errors import Unavailable

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Timing:
    """client-go's defaults, as every controller of a cluster has them."""

    lease_s: float = 15.0
    """A Lease that was not renewed for so long may be taken."""
    term_s: float = 10.0
    """A leader that could not renew for so long stops."""
    retry_s: float = 2.0


class _Spec(msgspec.Struct, omit_defaults=True):
    holderIdentity: str | None = None
    leaseDurationSeconds: int | None = None
    acquireTime: str | None = None
    renewTime: str | None = None
    leaseTransitions: int | None = None


class _Meta(msgspec.Struct, omit_defaults=True):
    name: str
    namespace: str
    resourceVersion: str = ""


class _Lease(msgspec.Struct):
    metadata: _Meta
    spec: _Spec = msgspec.field(default_factory=_Spec)
    apiVersion: str = "coordination.k8s.io/v1"
    kind: str = "Lease"


class Leader:
    """Candidate and leader. `valid` is what everything that writes has to ask."""

    def __init__(
        self, api: Api, lease: tuple[str, str], identity: str, now: Callable[[], float], timing: Timing
    ) -> None:
        """`lease` is its namespace and name."""
        namespace, name = lease
        self._api = api
        self._path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._meta = _Meta(name, namespace)
        self._identity = identity
        self._now = now
        self._timing = timing
        self._term_until = -1.0
        self._seen: tuple[str, float] = ("", 0.0)

    @property
    def valid(self) -> bool:
        """Whether the term lasts at this very moment."""
        return self._now() < self._term_until

    async def lead(self, term: Callable[[], Awaitable[None]]) -> None:
        """For ever: wait for a term, run it, and end it when the Lease could not be renewed in time."""
        while True:
            await self._win()
            log.info("leading", identity=self._identity)
            running = asyncio.ensure_future(term())
            keeping = asyncio.create_task(self._keep())
            try:
                await asyncio.wait({running, keeping}, return_when=asyncio.FIRST_COMPLETED)
                if running.done():
                    running.result()
            finally:
                self._term_until = -1.0
                for task in (running, keeping):
                    task.cancel()
                await asyncio.gather(running, keeping, return_exceptions=True)
            log.warning("no longer leading", identity=self._identity)

    async def resign(self) -> None:
        """Give the Lease back, so that another need not wait for its end."""
        self._term_until = -1.0
        with suppress(Unavailable):  # it ends by itself
            lease = await self._read()
            if lease is not None and lease.spec.holderIdentity == self._identity:
                lease.spec.holderIdentity, lease.spec.leaseDurationSeconds = "", 1
                await self._api.send("PUT", f"{self._path}/{self._meta.name}", lease)

    async def _win(self) -> None:
        while not await self._try():
            await asyncio.sleep(self._timing.retry_s)

    async def _keep(self) -> None:
        """Renew until the term is over."""
        while self.valid:
            await asyncio.sleep(self._timing.retry_s)
            await self._try()

    async def _try(self) -> bool:
        """Take or renew the Lease; only an answer counts, and only from before the question was asked."""
        asked = self._now()
        try:
            lease = await self._read()
            if lease is not None and not self._free(lease):
                self._term_until = -1.0
                return False
            await self._write(lease)
        except Unavailable as error:
            log.info("lease not taken", error=error.message)
            return False
        self._term_until = asked + self._timing.term_s
        return True

    def _free(self, lease: _Lease) -> bool:
        """Ours, nobody's, or not renewed for its whole duration by our own clock: other clocks may be wrong."""
        spec = lease.spec
        if not spec.holderIdentity or spec.holderIdentity == self._identity:
            return True
        if self._seen[0] != lease.metadata.resourceVersion:
            self._seen = (lease.metadata.resourceVersion, self._now())
        return self._now() - self._seen[1] >= (spec.leaseDurationSeconds or self._timing.lease_s)

    async def _read(self) -> _Lease | None:
        try:
            return msgspec.json.decode(await self._api.get(f"{self._path}/{self._meta.name}"), type=_Lease)
        except Refused as error:
            if error.status == 404:
                return None
            raise

    async def _write(self, lease: _Lease | None) -> None:
        stamp = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        old: Any = _Spec() if lease is None else lease.spec
        ours = old.holderIdentity == self._identity
        spec = _Spec(
            self._identity,
            max(1, round(self._timing.lease_s)),
            old.acquireTime if ours else stamp,
            stamp,
            (old.leaseTransitions or 0) + (0 if ours else 1),
        )
        if lease is None:
            await self._api.send("POST", self._path, _Lease(self._meta, spec))
        else:
            await self._api.send("PUT", f"{self._path}/{self._meta.name}", _Lease(lease.metadata, spec))
