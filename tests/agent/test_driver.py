"""Which of the driver's files a container gets."""

from pathlib import Path

from milligpu.agent.driver import NodeDriver, share_edits, whole_edits
from milligpu.tenancy.tenant import CUDA, NVML

OPENCL = "libnvidia-opencl.so.1"
DRIVER = NodeDriver({name: Path("/usr/lib", name) for name in (CUDA, NVML, OPENCL)})
OURS = {name: Path("/opt/milligpu", name) for name in (CUDA, NVML)}


def test_opencl_which_no_limit_reaches_is_attached_to_whole_gpus_only() -> None:
    share = share_edits(DRIVER, OURS, ["GPU-a"], Path("/run/tenant"), "usage")
    whole = whole_edits(DRIVER, ["GPU-a"])
    assert not any(OPENCL in mount.inside for mount in share.mounts)
    assert any(OPENCL in mount.inside for mount in whole.mounts)
