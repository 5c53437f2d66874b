from milligpu.model.gpu import Capability, Gpu
from milligpu.model.units import Mib, Milli
from milligpu.node.labels import labels

V100 = Gpu("GPU-a", "Tesla V100-SXM2-16GB", Mib(16384), capability=Capability(7, 0))


def test_labels_are_those_that_other_tools_look_for() -> None:
    assert labels([V100, V100], "550.54.15") == {
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
        "vgpu.type": None,
    }


def test_a_node_without_gpus_loses_every_label() -> None:
    found = labels([], "550.54.15")
    assert found.keys() == labels([V100], "550.54.15").keys()
    assert set(found.values()) == {None}


def test_a_vgpu_names_its_profile() -> None:
    half = Gpu("GPU-v", "GRID V100-8Q", Mib(8192), Milli(500))
    assert labels([half], "")["vgpu.type"] == "v100-8q-8GB"
    assert labels([V100], "")["vgpu.type"] is None
