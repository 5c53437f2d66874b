from pathlib import Path

from milligpu.model.grant import GpuShare, Grant
from milligpu.model.request import Kind
from milligpu.model.units import Mib, Milli
from milligpu.node.attach import Attached
from milligpu.node.audit import inner_pid, owner_of
from milligpu.node.checks import Tenancy

POD = "0a1b2c3d-0000-4000-8000-000000000001"
OTHER = "0a1b2c3d-0000-4000-8000-000000000002"
KINDS = {"a": Kind.MAIN, "b": Kind.MAIN}


def holder(name: str, container: str, uid: str = POD) -> Attached:
    share = GpuShare("GPU-a", Milli(500), Mib(1024), Milli(500))
    return Attached(name, container, Tenancy(uid, Grant(uid, "n1", {"a": (share,), "b": (share,)}), KINDS))


def process(proc: Path, uid: str, mounted: str = "", numbers: str = "7") -> None:
    folder = proc / "7"
    folder.mkdir()
    (folder / "cgroup").write_text(f"0::/kubepods/burstable/pod{uid}/3f1c\n")
    mount = f"/milligpu/containers/{mounted}/tenant /run/milligpu/tenant ro,nosuid - tmpfs tmpfs rw"
    (folder / "mountinfo").write_text(f"90 80 0:25 {mount}\n91 80 0:26 / /proc rw - proc proc rw\n")
    (folder / "status").write_text(f"Name:\tx\nNSpid:\t{numbers}\nNSpgid:\t{numbers}\n")


def test_a_process_belongs_to_the_one_container_of_its_pod_that_holds_the_card(tmp_path: Path) -> None:
    process(tmp_path, POD)
    mine = holder("aa", "a")
    assert owner_of(7, [holder("cc", "a", OTHER), mine], tmp_path) is mine


def test_a_process_of_a_pod_without_a_share_belongs_to_nobody(tmp_path: Path) -> None:
    process(tmp_path, OTHER)
    assert owner_of(7, [holder("aa", "a")], tmp_path) is None


def test_of_several_containers_the_mounted_folder_tells_which(tmp_path: Path) -> None:
    process(tmp_path, POD, mounted="bb")
    second = holder("bb", "b")
    assert owner_of(7, [holder("aa", "a"), second], tmp_path) is second


def test_a_mount_that_names_another_pods_folder_proves_nothing(tmp_path: Path) -> None:
    process(tmp_path, POD, mounted="cc")
    assert owner_of(7, [holder("aa", "a"), holder("bb", "b"), holder("cc", "a", OTHER)], tmp_path) is None


def test_a_process_is_known_inside_by_its_innermost_number(tmp_path: Path) -> None:
    process(tmp_path, POD, numbers="7\t31\t1")
    assert inner_pid(7, tmp_path) == 1


def test_a_process_that_has_ended_is_nobodys(tmp_path: Path) -> None:
    assert owner_of(7, [holder("aa", "a")], tmp_path) is None
    assert inner_pid(7, tmp_path) is None
