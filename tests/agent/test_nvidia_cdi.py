"""Which part of NVIDIA's CDI specification a container gets."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from milligpu.agent.cdi import Hook, cdi_document
from milligpu.agent.driver import NodeDriver, nvidia_driver, share_edits, whole_edits
from milligpu.agent.host_paths import HostPaths
from milligpu.agent.nvidia_cdi import NvidiaSpec, decode_spec, unshareable
from milligpu.agent.nvidia_spec import NvidiaSpecs
from milligpu.model.errors import BadFormat
from milligpu.tenancy.tenant import CUDA, NVML

LIB = "/usr/lib/x86_64-linux-gnu"
HOOK = "/usr/bin/nvidia-cdi-hook"
OURS = {name: Path("/opt/milligpu", name) for name in (CUDA, NVML)}


def mount(path: str) -> dict[str, Any]:
    return {"hostPath": path, "containerPath": path, "options": ["ro", "rbind"]}


def hook(*words: str, path: str = HOOK) -> dict[str, Any]:
    return {"hookName": "createContainer", "path": path, "args": [Path(path).name, *words]}


SPEC: dict[str, Any] = {
    "cdiVersion": "0.7.0",
    "kind": "nvidia.com/gpu",
    "devices": [
        {"name": name, "containerEdits": {"deviceNodes": [{"path": path} for path in paths]}}
        for name, paths in {
            "0": ["/dev/nvidia0"],
            "GPU-a": ["/dev/nvidia0", "/dev/dri/card0"],
            "1": ["/dev/nvidia1"],
            "all": ["/dev/nvidia0", "/dev/nvidia1"],
        }.items()
    ],
    "containerEdits": {
        "env": ["NVIDIA_CTK_LIBCUDA_DIR=/usr/lib/x86_64-linux-gnu"],
        "deviceNodes": [{"path": "/dev/nvidiactl"}, {"path": "/dev/nvidia-modeset"}],
        "mounts": [
            mount(path)
            for path in (
                f"{LIB}/libcuda.so.550.1",
                f"{LIB}/libnvidia-ml.so.550.1",
                f"{LIB}/libnvidia-ptxjitcompiler.so.550.1",
                f"{LIB}/libnvidia-of-tomorrow.so.550.1",
                f"{LIB}/libnvidia-opencl.so.550.1",
                f"{LIB}/libnvcuvid.so.550.1",
                f"{LIB}/libnvidia-glcore.so.550.1",
                f"{LIB}/vdpau/libvdpau_nvidia.so.550.1",
                "/usr/share/vulkan/icd.d/nvidia_icd.json",
                "/lib/firmware/nvidia/550.1",
                "/usr/bin/nvidia-smi",
                "/usr/bin/nvidia-cuda-mps-control",
                "/run/nvidia-persistenced/socket",
            )
        ],
        "hooks": [
            hook("create-symlinks", "--link", f"libcuda.so.1::{LIB}/libcuda.so"),
            hook("enable-cuda-compat", "--host-driver-version=550.1"),
            hook("update-ldcache", "--folder", LIB),
            hook("hook", "update-ldcache", "--folder", LIB, path="/usr/bin/nvidia-ctk"),
            hook("of-tomorrow"),
        ],
    },
}


def spec(**changed: object) -> NvidiaSpec:
    found = decode_spec(json.dumps({**SPEC, **changed}).encode(), is_json=True)
    assert found
    return found


def driver(found: NvidiaSpec | None) -> NodeDriver:
    libraries = {name: Path(LIB, name) for name in (CUDA, NVML, "libnvidia-opencl.so.1")}
    specs = NvidiaSpecs(HostPaths())
    specs.spec = found
    return nvidia_driver(libraries, {"GPU-a": 0, "GPU-b": 1}, Path("/nowhere"), specs=specs)


def attached(found: NvidiaSpec | None, *gpus: str, whole: bool = False) -> dict[str, Any]:
    """The container edits in the CDI file that is written."""
    node = driver(found)
    edits = whole_edits(node, gpus) if whole else share_edits(node, OURS, gpus, Path("/run/t"), "usage")
    return json.loads(cdi_document("x", edits))["devices"][0]["containerEdits"]


def mounted(edits: dict[str, Any]) -> dict[str, str]:
    return {each["containerPath"]: each["hostPath"] for each in edits["mounts"]}


def test_a_whole_gpu_gets_all_that_nvidias_toolkit_attaches() -> None:
    edits = attached(spec(), "GPU-a", whole=True)
    common = SPEC["containerEdits"]
    assert [each for each in edits["mounts"] if each in common["mounts"]] == common["mounts"]
    assert edits["hooks"] == common["hooks"]
    nodes = [each["path"] for each in edits["deviceNodes"]]
    assert nodes == ["/dev/nvidiactl", "/dev/nvidia-modeset", "/dev/nvidia0", "/dev/dri/card0"]
    assert "NVIDIA_VISIBLE_DEVICES=void" in edits["env"]
    assert not any("milligpu" in host for host in mounted(edits).values())


def test_a_share_gets_the_driver_without_what_reaches_a_gpu_past_the_limits_library() -> None:
    edits = attached(spec(), "GPU-a")
    found = mounted(edits)
    kept = {path for path in found if found[path] == path}
    assert kept == {
        f"{LIB}/libnvidia-ptxjitcompiler.so.550.1",
        f"{LIB}/libnvidia-of-tomorrow.so.550.1",
        "/lib/firmware/nvidia/550.1",
        "/usr/bin/nvidia-smi",
        "/run/nvidia-persistenced/socket",
    }
    assert [each["path"] for each in edits["deviceNodes"]] == ["/dev/nvidiactl", "/dev/nvidia0"]
    assert [each["args"][-4:] for each in edits["hooks"]] == [
        ["--folder", LIB, "--folder", "/run/milligpu/lib"]
    ] * 2


def test_ours_is_in_front_and_the_drivers_own_behind() -> None:
    found = mounted(attached(spec(), "GPU-a"))
    ours = str(OURS[CUDA])
    folders = {path.removesuffix("/libcuda.so.1") for path, host in found.items() if host == ours}
    assert {LIB, "/usr/lib64", "/run/milligpu/lib", "/usr/local/nvidia/lib64"} <= folders
    assert all(found[f"{folder}/libcuda.so"] == ours for folder in (LIB, "/run/milligpu/lib"))
    assert found["/run/milligpu/driver/libcuda.so.1"] == f"{LIB}/libcuda.so.1"
    assert f"{LIB}/libcuda.so.550.1" not in found


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("found", [spec(), None])
def test_nvidia_smi_is_where_images_of_gpu_manager_call_it(found: NvidiaSpec | None, whole: bool) -> None:
    node = driver(found)
    if found is None:
        node = NodeDriver(node.libraries, programs={"nvidia-smi": Path("/usr/bin/nvidia-smi")})
    edits = whole_edits(node, ["GPU-a"]) if whole else share_edits(node, OURS, ["GPU-a"], Path("/run/t"), "usage")
    inside = {each.inside: each.host for each in edits.mounts}
    assert inside["/usr/local/nvidia/bin/nvidia-smi"] == inside["/usr/bin/nvidia-smi"] == "/usr/bin/nvidia-smi"


def test_without_a_hook_for_the_loaders_cache_libraries_have_their_names_and_triton_is_told() -> None:
    bare = spec(containerEdits={**SPEC["containerEdits"], "hooks": []})
    assert mounted(attached(bare, "GPU-a", whole=True))[f"{LIB}/libcuda.so.1"] == f"{LIB}/libcuda.so.1"
    assert "TRITON_LIBCUDA_PATH=/run/milligpu/lib" in attached(bare, "GPU-a")["env"]
    assert not any(each.startswith("TRITON") for each in attached(spec(), "GPU-a")["env"])


def test_a_gpu_that_the_specification_names_by_index_is_found_by_its_node() -> None:
    found = spec().edits_of({"GPU-b": "/dev/nvidia1"})
    assert found
    assert [each.path for each in found.device_nodes][2:] == ["/dev/nvidia1"]
    assert spec().edits_of({"GPU-c": "/dev/nvidia7"}) is None
    assert spec().edits_of({"GPU-c": ""}) is None


def test_the_cdi_file_has_a_version_that_can_say_all_of_it() -> None:
    whole = whole_edits(driver(spec()), ["GPU-a"])
    assert json.loads(cdi_document("x", whole))["cdiVersion"] == "0.7.0"
    old = whole_edits(driver(spec(cdiVersion="0.5.0")), ["GPU-a"])
    assert json.loads(cdi_document("x", old))["cdiVersion"] == "0.6.0"


def test_files_of_other_kinds_are_none_and_broken_ones_are_refused() -> None:
    assert decode_spec(b"kind: vendor.com/device\ncdiVersion: 0.5.0", is_json=False) is None
    assert decode_spec(yaml.safe_dump(SPEC).encode(), is_json=False) == spec()
    for text in (b"kind: [", b"kind: nvidia.com/gpu\ndevices: 7"):
        with pytest.raises(BadFormat, match="CDI specification"):
            decode_spec(text, is_json=False)


def test_capabilities_that_a_share_does_not_have_are_named() -> None:
    assert unshareable("compute,video, graphics") == ["graphics", "video"]
    assert unshareable("all") == unshareable("compute,utility") == unshareable("") == []


class Node:
    """A node's files below a directory, with a specification in /etc/cdi."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.specs = NvidiaSpecs(HostPaths(root), now=lambda: self.now)
        self.now = 0.0
        for each in SPEC["containerEdits"]["mounts"]:
            self.add(each["hostPath"])
        self.write(SPEC)

    def add(self, path: str) -> None:
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()

    def write(self, found: dict[str, Any], name: str = "etc/cdi/nvidia.yaml") -> None:
        self.add(name)
        (self.root / name).write_text(yaml.safe_dump(found))

    def refresh(self) -> str:
        return self.specs.refresh({"GPU-a": "/dev/nvidia0"})


def test_no_container_is_attached_while_a_hooks_program_is_missing(tmp_path: Path) -> None:
    node = Node(tmp_path)
    assert "needs /usr/bin/nvidia-cdi-hook, which this node does not have" in node.refresh()
    node.add(HOOK)
    assert "needs /usr/bin/nvidia-ctk" in node.refresh()
    node.add("/opt/toolkit/nvidia-ctk")
    (tmp_path / "usr/bin/nvidia-ctk").symlink_to("/opt/toolkit/nvidia-ctk")
    assert node.refresh() == ""
    assert node.specs.spec == spec()


def test_a_specification_of_another_driver_version_is_not_used(tmp_path: Path) -> None:
    node = Node(tmp_path)
    for path in (HOOK, "/usr/bin/nvidia-ctk"):
        node.add(path)
    (tmp_path / LIB.lstrip("/") / "libcuda.so.550.1").unlink()
    assert (node.refresh(), node.specs.spec) == ("", None)
    newer = json.loads(json.dumps(SPEC).replace("550.1", "560.1"))
    for each in newer["containerEdits"]["mounts"]:
        node.add(each["hostPath"])
    node.write(newer, "var/run/cdi/nvidia.yaml")
    assert node.refresh() == ""
    assert node.specs.spec
    assert any("libcuda.so.560.1" in each.host for each in node.specs.spec.common.mounts)


def test_a_specification_in_run_counts_before_one_in_etc_and_is_read_again_when_it_changes(tmp_path: Path) -> None:
    node = Node(tmp_path)
    for path in (HOOK, "/usr/bin/nvidia-ctk"):
        node.add(path)
    node.write({**SPEC, "containerEdits": {}}, "var/run/cdi/nvidia.yml")
    assert node.refresh() == ""
    assert node.specs.spec == spec(containerEdits={})
    node.write({**SPEC, "kind": "other.com/gpu"}, "var/run/cdi/nvidia.yml")
    assert node.refresh() == ""
    assert node.specs.spec == spec()


def test_the_hook_of_shares_comes_last() -> None:
    node = driver(spec())
    own = Path("/opt/milligpu/milligpu-attach-hook")
    fields = {name: getattr(node, name) for name in ("libraries", "nodes", "nvidia")}
    edits = share_edits(NodeDriver(**fields, hook=own), OURS, ["GPU-a"], Path("/run/t"), "usage")
    assert edits.hooks[-1] == Hook("createContainer", str(own), (own.name, CUDA, NVML))
    assert own not in {Path(each.path) for each in whole_edits(NodeDriver(**fields, hook=own), ["GPU-a"]).hooks}
