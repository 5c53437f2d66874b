"""Leader election with a Lease: one instance leads, the others stand by.

A Lease does not stop a leader that was paused: a paused leader cannot tell that its Lease expired. So it checks the
clock before every bind, and considers its term over well before another instance may take the Lease.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec
import structlog

from milligpu.kube.api import ApiClient, ApiRefused
from milligpu.model.errors import Unavailable

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class LeaderTiming:
    """client-go's defaults, which Kubernetes' own controllers use."""

    lease_s: float = 15.0
    """Another instance may take a Lease that was not renewed for this long."""
    term_s: float = 10.0
    """A leader that could not renew its Lease for this long stops."""
    retry_s: float = 2.0


@dataclass(frozen=True, slots=True)
class FollowedLease:
    """Another program's leader Lease; this instance leads only while a program on its own host holds that Lease.

    Each pod of the scheduler service has a kube-scheduler next to it, which calls the service on the pod's loopback
    address. If the two elected their leaders separately, the active kube-scheduler could sit next to a standby.
    """

    namespace: str
    name: str
    host: str
    """This pod's host name: Kubernetes' programs identify themselves in a Lease as HOST_UUID."""

    def held_here(self, lease: "_Lease | None") -> bool:
        return lease is not None and (lease.spec.holderIdentity or "").startswith(f"{self.host}_")


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


class LeaderElection:
    """Takes part in the election; everything that writes checks `valid` first."""

    def __init__(
        self,
        api: ApiClient,
        lease: tuple[str, str],
        identity: str,
        now: Callable[[], float],
        timing: LeaderTiming,
        *,
        follow: FollowedLease | None = None,
    ) -> None:
        """`lease` is the namespace and name of the leader Lease."""
        self._api = api
        self._meta = _Meta(lease[1], lease[0])
        self._path = _lease_path(*lease)
        self._follow = follow
        self._identity = identity
        self._now = now
        self._timing = timing
        self._term_until = -1.0
        self._seen: tuple[str, float] = ("", 0.0)
        self._in_touch_until = -1.0

    @property
    def in_touch(self) -> bool:
        """Whether this instance, leader or standby, takes part in the election: the API server answers it."""
        return self._now() < self._in_touch_until

    @property
    def valid(self) -> bool:
        """Whether this instance leads at this moment."""
        return self._now() < self._term_until

    async def lead(self, term: Callable[[], Awaitable[None]], settled: Callable[[], Awaitable[bool]]) -> None:
        """Win the election, run a term, cancel it if the Lease could not be renewed in time, and start over.

        `settled` waits for what a term began, and returns whether nothing of it can still be carried out.
        """
        while True:
            await self._win()
            log.info("Became leader", identity=self._identity)
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
            log.warning("Lost leadership", identity=self._identity)
            # The instance next to the kube-scheduler that leads now need not wait until the Lease expires.
            if self._follow is not None and await settled():
                await self.resign()

    async def resign(self) -> None:
        """Release the Lease, so that another instance need not wait until it expires."""
        self._term_until = -1.0
        with suppress(Unavailable):  # it expires anyway
            lease = await self._read()
            if lease is not None and lease.spec.holderIdentity == self._identity:
                lease.spec.holderIdentity, lease.spec.leaseDurationSeconds = "", 1
                await self._api.send("PUT", self._path, lease)

    async def _win(self) -> None:
        while not await self._try():
            await asyncio.sleep(self._timing.retry_s)

    async def _keep(self) -> None:
        """Renew until the term is over."""
        while self.valid:
            await asyncio.sleep(self._timing.retry_s)
            await self._try()

    async def _try(self) -> bool:
        """Take or renew the Lease; the term counts from before the request was sent."""
        asked = self._now()
        try:
            lease = await self._read()
            self._in_touch_until = asked + self._timing.term_s
            if lease is not None and not self._free(lease):
                self._term_until = -1.0
                return False
            if not await self._may_lead():
                self._term_until = -1.0
                return False
            await self._write(lease)
        except Unavailable as error:
            log.info("Could not take leader Lease", error=error.message)
            return False
        self._term_until = asked + self._timing.term_s
        return True

    async def _may_lead(self) -> bool:
        if self._follow is None:
            return True
        return self._follow.held_here(await self._read(_lease_path(self._follow.namespace, self._follow.name)))

    def _free(self, lease: _Lease) -> bool:
        """Whether the Lease is ours, released, or expired by our own clock: other clocks may be wrong."""
        spec = lease.spec
        if not spec.holderIdentity or spec.holderIdentity == self._identity:
            return True
        if self._seen[0] != lease.metadata.resourceVersion:
            self._seen = (lease.metadata.resourceVersion, self._now())
        return self._now() - self._seen[1] >= (spec.leaseDurationSeconds or self._timing.lease_s)

    async def _read(self, path: str = "") -> _Lease | None:
        try:
            return msgspec.json.decode(await self._api.get(path or self._path), type=_Lease)
        except ApiRefused as error:
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
            await self._api.send("POST", self._path.rpartition("/")[0], _Lease(self._meta, spec))
        else:
            await self._api.send("PUT", self._path, _Lease(lease.metadata, spec))


def _lease_path(namespace: str, name: str) -> str:
    return f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}"
