"""What is shown of a share: its use counts in the same unit as the share, also on a vGPU."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milligpu.model.gpu import Gpu
from milligpu.model.grant import GpuShare
from milligpu.model.request import Share
from milligpu.model.units import Mib, Milli
from milligpu.nvml.readings import GpuProcess, GpuReading, GpuVitals
from milligpu.sessions.status import process_usages
from milligpu.tenancy.arbiter import LeaseUse
from milligpu.tenancy.tenants import TenantUse
from milligpu.tenancy.usage import share_usage
from milligpu.wire.status import ShareUsage, gpu_utilization


def usage_of(gpu: Gpu, milli: int, busy: float) -> ShareUsage:
    """What is shown of a tenant without idle time that had this fraction of the GPU's own time for a second."""
    share = Share(Milli(milli), Mib(1024), Milli(milli))
    lease = LeaseUse(int(busy * 1e9), 0, 0, 1, holding=True, suspect=False)
    return share_usage(GpuShare(gpu.uuid, share), gpu, TenantUse(gpu.time_of(share.limit), None, lease, busy))


def test_a_process_with_all_the_time_of_half_a_card_is_shown_with_half() -> None:
    half = Gpu("GPU-v", "V100-8Q", Mib(8192), Milli(500))
    processes = (
        GpuProcess(half.uuid, 1, Mib(10), 1.0),
        GpuProcess(half.uuid, 2),
        GpuProcess("GPU-w", 1, None, 1.0),
    )
    reading = GpuReading(GpuVitals(0, half.uuid), Mib(8192), Mib(10), processes=processes)
    assert [each.utilization for each in process_usages([reading], [half])] == [0.5, None, 1.0]


@pytest.mark.parametrize("capacity", [1000, 500, 333, 250])
def test_a_tenant_that_uses_all_of_its_share_is_shown_with_its_share(capacity: int) -> None:
    gpu = Gpu("GPU-v", "V100-8Q", Mib(8192), Milli(capacity))
    milli = capacity * 3 // 5
    shown = usage_of(gpu, milli, milli / capacity)
    assert (shown.milli, shown.limit) == (milli, milli)
    assert shown.utilization == pytest.approx(milli / 1000)
    assert shown.gpu_time_ns == pytest.approx(milli * 1_000_000, rel=1e-6)
    assert shown.accelerator.dutyCycle == pytest.approx(60, abs=1)


def test_a_vgpu_whose_tenants_use_all_of_it_is_fully_busy() -> None:
    half = Gpu("GPU-v", "V100-8Q", Mib(8192), Milli(500))
    shares = [usage_of(half, 300, 0.6), usage_of(half, 200, 0.4)]
    assert sum(use.utilization or 0 for use in shares) == pytest.approx(0.5)
    assert gpu_utilization(shares, half.uuid, half.milli) == pytest.approx(1.0)
    assert gpu_utilization(shares, "GPU-other", half.milli) is None


@given(st.integers(1, 1000), st.data())
def test_every_amount_of_compute_survives_the_limits_page(capacity: int, data: st.DataObject) -> None:
    gpu = Gpu("GPU-v", "V100-8Q", Mib(8192), Milli(capacity))
    milli = data.draw(st.integers(0, capacity))
    assert gpu.milli_of_time(gpu.time_of(milli)) == milli
