"""NVIDIA's real container toolkit, on the software NVML and a stand-in driver root."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from milligpu.agent.driver import NodeDriver, share_edits, whole_edits
from milligpu.agent.host_paths import HostPaths
from milligpu.agent.nvidia_spec import NvidiaSpecs
from milligpu.softgpu.names import SOCKET_VARIABLE
from milligpu.softgpu.start import SoftgpuSpec, read_state, start_daemon, stop_daemon
from milligpu.tenancy.tenant import CUDA, NVML
from testing.driver_root import DEBIAN, RED_HAT, VERSION, make_driver_root

pytestmark = pytest.mark.e2e


@pytest.fixture
def gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A software GPU; returns its UUID."""
    sockets = tmp_path / "soft"
    start_daemon(sockets, tmp_path / "cache", SoftgpuSpec(1, "A100-40GB", None))
    monkeypatch.setenv(SOCKET_VARIABLE, str(sockets))
    yield read_state(sockets)[0]["uuid"]
    stop_daemon(sockets)


@pytest.mark.parametrize("folder", [DEBIAN, RED_HAT])
def test_the_agent_generates_and_reads_nvidias_specification(
    gpu: str, nvidia_toolkit: Path, tmp_path: Path, folder: str
) -> None:
    root = tmp_path / "root"
    make_driver_root(root, libraries=folder)
    specs = NvidiaSpecs(HostPaths(driver=root), folders=(), programs=(str(nvidia_toolkit),))
    assert specs.refresh({gpu: "/dev/nvidia0"}) == ""
    assert specs.spec
    libraries = {name: root / folder / name for name in (CUDA, NVML)}
    driver = NodeDriver(libraries, nodes={gpu: "/dev/nvidia0"}, nvidia=specs)

    whole = {each.inside: each.host for each in whole_edits(driver, [gpu]).mounts}
    assert whole[f"/{folder}/libcuda.so.{VERSION}"] == f"{root}/{folder}/libcuda.so.{VERSION}"
    assert f"/{folder}/libnvcuvid.so.{VERSION}" in whole

    ours = {name: Path("/opt/milligpu", name) for name in (CUDA, NVML)}
    edits = share_edits(driver, ours, [gpu], tmp_path / "tenant", "usage")
    share = {each.inside: each.host for each in edits.mounts}
    assert share[f"/{folder}/libcuda.so.1"] == str(ours[CUDA])
    assert share["/run/milligpu/driver/libcuda.so.1"] == str(libraries[CUDA])
    assert f"/{folder}/libnvidia-gpucomp.so.{VERSION}" in share
    assert {path for path in share if "mps" in path or "cuvid" in path or "opencl" in path} == set()
    assert [each.args[1] for each in edits.hooks] == ["update-ldcache", "disable-device-node-modification"]
    assert "/dev/nvidia0" in {each.path for each in edits.device_nodes}
