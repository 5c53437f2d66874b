"""The tenants of a machine by name: their pages, their turns at the arbiter, and what they use.

Containers and sessions are held to their shares by this one class. Removing a tenant also forgets its rates.
"""

from dataclasses import dataclass

from milligpu.model.units import Milli
from milligpu.tenancy.arbiter import Arbiter, LeaseUse
from milligpu.tenancy.rates import GpuTimeRates
from milligpu.tenancy.tenant import TenantFolder
from milligpu.wire.limits import LimitsPage
from milligpu.wire.usage import MemoryAccount, UsagePage


@dataclass(frozen=True, slots=True)
class TenantUse:
    """What one tenant may use and uses of one of its GPUs; None is unknown."""

    limit: Milli
    """The most compute under the GPU's share policy, in thousandths of the GPU's own time."""
    memory: MemoryAccount | None
    """From the usage page, which the tenant itself writes."""
    lease: LeaseUse | None
    utilization: float | None
    """Fraction of the GPU's time within the last seconds, 0 to 1."""


@dataclass(slots=True)
class _Tenant:
    folder: TenantFolder
    page: LimitsPage
    number: int
    """The arbiter's."""


class Tenants:
    """Tenants with a share. Whole GPUs run without the limits library, so their holders are not tenants."""

    def __init__(self, arbiter: Arbiter) -> None:
        self._arbiter = arbiter
        self._tenants: dict[str, _Tenant] = {}
        self._rates = GpuTimeRates()

    def add(self, name: str, folder: TenantFolder, page: LimitsPage, uid: int | None = None) -> None:
        """Write the page and let the tenant take turns; only user `uid` may then connect to the arbiter."""
        folder.change(page)
        number = self._arbiter.add(folder.folder)
        try:
            if uid is not None:
                folder.give_socket(uid)
        except OSError:
            self._arbiter.remove(number)
            raise
        self._tenants[name] = _Tenant(folder, page, number)

    def change(self, name: str, page: LimitsPage) -> None:
        """Rewrite the page if it differs; running processes see the old one or the new one, never a mixture."""
        tenant = self._tenants[name]
        if tenant.page != page:
            tenant.folder.change(page)
            tenant.page = page

    def remove(self, name: str) -> None:
        """End the tenant's turns; one without a share is not there and stays so."""
        tenant = self._tenants.pop(name, None)
        self._rates.forget(name)
        if tenant is not None:
            self._arbiter.remove(tenant.number)

    def __contains__(self, name: str) -> bool:
        return name in self._tenants

    def sample(self, now: float) -> None:
        """Record every tenant's GPU time, from which `uses` computes the utilization."""
        for name, tenant in self._tenants.items():
            self._rates.add(name, now, [use.charged_ns for use in self._arbiter.accounts(tenant.number)])

    def charged(self, name: str) -> tuple[int, ...]:
        """Nanoseconds of each GPU so far, in the order of the page; empty without a share."""
        tenant = self._tenants.get(name)
        return () if tenant is None else tuple(use.charged_ns for use in self._arbiter.accounts(tenant.number))

    def usage_page(self, name: str) -> UsagePage | None:
        """Read what the tenant says it uses; None without a share, or when the page is corrupt."""
        tenant = self._tenants.get(name)
        return None if tenant is None else tenant.folder.usage()

    def limits(self, name: str) -> tuple[Milli, ...]:
        """The most of each GPU's own time under its policy, in the order of the page; empty without a share."""
        tenant = self._tenants.get(name)
        return () if tenant is None else tuple(gpu.limit for gpu in tenant.page.gpus)

    def uses(self, name: str) -> tuple[TenantUse, ...]:
        """Read the use of each GPU, in the order of the limits page; empty without a share."""
        tenant = self._tenants.get(name)
        if tenant is None:
            return ()
        page = tenant.folder.usage()
        memory = page.accounts if page is not None else ()
        leases = self._arbiter.accounts(tenant.number)
        rates = self._rates.rates(name) or ()
        return tuple(
            TenantUse(
                gpu.limit,
                memory[at] if at < len(memory) else None,
                leases[at] if at < len(leases) else None,
                rates[at] if at < len(rates) else None,
            )
            for at, gpu in enumerate(tenant.page.gpus)
        )
