import pytest

from milligpu.agent.node_labels import node_labels, vgpu_type_label
from milligpu.model.gpu import ComputeCapability, Gpu
from milligpu.model.units import Mib, Milli

V100 = Gpu("GPU-a", "Tesla V100-SXM2-16GB", Mib(16384), capability=ComputeCapability(7, 0))


def test_labels_are_those_that_other_tools_look_for() -> None:
    assert node_labels([V100, V100], "550.54.15", {"zone": "a"}) == {
        "nvidia.com/gpu.product": "Tesla-V100-SXM2-16GB",
        "nvidia.com/gpu.memory": "16384",
        "nvidia.com/gpu.count": "2",
        "nvidia.com/gpu.family": "volta",
        "nvidia.com/gpu.replicas": "1000",
        "nvidia.com/gpu.sharing-strategy": "milligpu",
        "nvidia.com/gpu.compute.major": "7",
        "nvidia.com/gpu.compute.minor": "0",
        "nvidia.com/mig.capable": "false",
        "nvidia.com/cuda.driver-version.major": "550",
        "nvidia.com/cuda.driver-version.minor": "54",
        "nvidia.com/cuda.driver-version.revision": "15",
        "nvidia.com/cuda.driver-version.full": "550.54.15",
    }


def test_a_node_without_gpus_loses_every_label() -> None:
    found = node_labels([], "550.54.15", {})
    assert found.keys() == node_labels([V100], "550.54.15", {}).keys()
    assert set(found.values()) == {None}


HALF = Gpu("GPU-v", "GRID V100-8Q", Mib(8192), Milli(500))
QUARTER = Gpu("GPU-w", "GRID V100-4Q", Mib(4096), Milli(250))


def test_a_node_has_a_label_for_each_profile_and_loses_those_of_former_ones() -> None:
    found = node_labels([HALF, QUARTER, HALF], "", {"milligpu.dev/vgpu.t4-16q": "true", "other": "x"})
    assert {key: value for key, value in found.items() if not key.startswith("nvidia.com/")} == {
        "milligpu.dev/vgpu.v100-8q": "true",
        "milligpu.dev/vgpu.v100-4q": "true",
        "milligpu.dev/vgpu.t4-16q": None,
    }
    assert "milligpu.dev/vgpu.v100-8q" not in node_labels([V100], "", {})


@pytest.mark.parametrize(
    ("present", "written", "label", "remembered"),
    [
        (None, None, {"vgpu.type": "v100-8q-8GB"}, "v100-8q-8GB"),
        ("v100-4q-4GB", "v100-4q-4GB", {"vgpu.type": "v100-8q-8GB"}, "v100-8q-8GB"),
        (None, "v100-8q-8GB", {"vgpu.type": "v100-8q-8GB"}, "v100-8q-8GB"),
        ("v100-8g-8GB", None, {}, None),
        ("fast", "v100-8q-8GB", {}, None),
    ],
)
def test_a_vgpu_type_that_somebody_else_wrote_stays(
    present: str | None, written: str | None, label: dict[str, str | None], remembered: str | None
) -> None:
    assert vgpu_type_label([HALF, QUARTER], present, written) == (label, remembered)


def test_the_agents_own_vgpu_type_is_removed_with_the_last_vgpu() -> None:
    assert vgpu_type_label([V100], "v100-8q-8GB", "v100-8q-8GB") == ({"vgpu.type": None}, None)
    assert vgpu_type_label([V100], "v100-8q-8GB", None) == ({}, None)
