import ctypes
import os
from pathlib import Path

from milligpu.agent.attachment import Attachment
from milligpu.agent.audit import inner_pid, mapped_drivers, owner_of, with_libraries
from milligpu.model.grant import GpuShare, Grant
from milligpu.model.reasons import ViolationKind
from milligpu.model.request import ContainerKind, Share, container_of_uid
from milligpu.model.units import Mib, Milli
from milligpu.native import library
from milligpu.wire.status import Violation

POD = "0a1b2c3d-0000-4000-8000-000000000001"
OTHER = "0a1b2c3d-0000-4000-8000-000000000002"
KINDS = {"a": ContainerKind.MAIN, "b": ContainerKind.MAIN}


def holder(name: str, container: str, uid: str = POD) -> Attachment:
    share = GpuShare("GPU-a", Share(Milli(500), Mib(1024), Milli(500)))
    grant = Grant(uid, "n1", {"a": (share,), "b": (share,)})
    return Attachment(name, container_of_uid(uid, container), grant, KINDS)


def process(proc: Path, uid: str, mounted: str = "", numbers: str = "7") -> None:
    folder = proc / "7"
    folder.mkdir()
    (folder / "cgroup").write_text(f"0::/kubepods/burstable/pod{uid}/3f1c\n")
    mount = f"/milligpu/containers/{mounted}/tenant /run/milligpu/tenant ro,nosuid - tmpfs tmpfs rw"
    (folder / "mountinfo").write_text(f"90 80 0:25 {mount}\n91 80 0:26 / /proc rw - proc proc rw\n")
    (folder / "status").write_text(f"Name:\tx\nNSpid:\t{numbers}\nNSpgid:\t{numbers}\n")


def test_a_process_belongs_to_its_pods_only_container_on_the_gpu(tmp_path: Path) -> None:
    process(tmp_path, POD)
    mine = holder("aa", "a")
    assert owner_of(7, [holder("cc", "a", OTHER), mine], tmp_path) is mine


def test_a_process_of_a_pod_without_a_share_has_no_owner(tmp_path: Path) -> None:
    process(tmp_path, OTHER)
    assert owner_of(7, [holder("aa", "a")], tmp_path) is None


def test_among_several_containers_the_mounted_directory_names_the_owner(tmp_path: Path) -> None:
    process(tmp_path, POD, mounted="bb")
    second = holder("bb", "b")
    assert owner_of(7, [holder("aa", "a"), second], tmp_path) is second


def test_a_mount_that_names_another_pods_directory_is_ignored(tmp_path: Path) -> None:
    process(tmp_path, POD, mounted="cc")
    assert owner_of(7, [holder("aa", "a"), holder("bb", "b"), holder("cc", "a", OTHER)], tmp_path) is None


def test_the_inner_pid_is_the_one_in_the_innermost_namespace(tmp_path: Path) -> None:
    process(tmp_path, POD, numbers="7\t31\t1")
    assert inner_pid(7, tmp_path) == 1


def test_a_process_that_has_ended_has_no_owner(tmp_path: Path) -> None:
    assert owner_of(7, [holder("aa", "a")], tmp_path) is None
    assert inner_pid(7, tmp_path) is None


def test_the_drivers_that_a_process_has_loaded_are_named_once() -> None:
    maps = (
        "7f00-7f01 r--p 00000000 08:01 12 /opt/conda/cuda-compat/libcuda.so.570.1\n"
        "7f01-7f02 r-xp 00001000 08:01 12 /opt/conda/cuda-compat/libcuda.so.570.1\n"
        "7f02-7f03 r--p 00000000 08:01 13 /usr/lib/libcudart.so.12\n"
        "7f03-7f04 rw-p 00000000 00:00 0\n"
    )
    assert mapped_drivers(maps) == ["/opt/conda/cuda-compat/libcuda.so.570.1"]


def test_a_bypass_names_the_libcuda_that_the_process_has_loaded() -> None:
    own = str(library("softgpu/libcuda.so.1"))
    ctypes.CDLL(own)
    bypass = Violation(ViolationKind.BYPASS, "GPU-a", "tenant", os.getpid(), "it is not on the page")
    assert own in with_libraries(bypass).message
    unknown = Violation(ViolationKind.UNKNOWN_PROCESS, "GPU-a", None, os.getpid(), "nobody's")
    assert with_libraries(unknown) == unknown
