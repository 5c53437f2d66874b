import base64
import json
import os
from pathlib import Path

import pytest

from milligpu.agent.allocations import AllocationStore
from milligpu.agent.attachment import Allocation
from milligpu.agent.device_owners import owners_from_checkpoint, owners_from_pod_resources
from milligpu.kubelet._generated import deviceplugin_pb2 as pb
from milligpu.kubelet.checkpoint import FILE, read_checkpoint
from milligpu.kubelet.held_devices import HeldDevices
from milligpu.model.request import PodRef, container_of_uid


def test_a_promise_survives_the_agent(tmp_path: Path) -> None:
    first = AllocationStore(tmp_path)
    promised = [first.add("nvidia.com/vgpu", ["s1", "s2"]), first.add("nvidia.com/vgpu", ["s1", "s2"])]
    again = AllocationStore(tmp_path)
    assert list(again.entries) == promised
    assert again.add("nvidia.com/vgpu", ["s3"]).number == 3
    again.remove(promised[0].name)
    assert promised[0] not in AllocationStore(tmp_path).entries


def test_an_allocation_survives_a_power_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its content must be on the disk before its name is, and its name before the kubelet gets the answer."""
    done: list[tuple[str, str, str]] = []
    sync, rename = os.fsync, Path.rename

    def record_sync(descriptor: int) -> None:
        sync(descriptor)
        done.append(("sync", str(Path(f"/proc/self/fd/{descriptor}").readlink()), ""))

    def record_rename(path: Path, target: Path) -> Path:
        done.append(("rename", str(path), str(target)))
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", record_sync)
    monkeypatch.setattr(Path, "rename", record_rename)
    file = str(tmp_path / AllocationStore(tmp_path).add("nvidia.com/vgpu", ["s1"]).name) + ".json"
    assert done == [("sync", f"{file}.tmp", ""), ("rename", f"{file}.tmp", file), ("sync", str(tmp_path), "")]


def test_a_half_written_allocation_is_removed(tmp_path: Path) -> None:
    kept = AllocationStore(tmp_path).add("nvidia.com/vgpu", ["s1"])
    (tmp_path / "broken.json").write_text('{"v":1,"number":2,"reso')
    (tmp_path / "other.json.tmp").write_text("{}")
    assert AllocationStore(tmp_path).entries == (kept,)
    assert [file.name for file in tmp_path.iterdir()] == [f"{kept.name}.json"]


def test_an_allocation_of_a_newer_agent_is_kept(tmp_path: Path) -> None:
    newer = tmp_path / "abc.json"
    newer.write_text('{"v":99,"number":1,"resource":"nvidia.com/vgpu","slots":["s1"],"zone":"z"}')
    assert AllocationStore(tmp_path).entries == ()
    assert newer.exists()


def write_checkpoint(folder: Path, containers: dict[str, Allocation]) -> None:
    def answer(entry: Allocation) -> str:
        message = pb.ContainerAllocateResponse(cdi_devices=[pb.CDIDevice(name=entry.device)])
        return base64.b64encode(message.SerializeToString()).decode()

    entries = [
        {
            "PodUID": "uid-1",
            "ContainerName": name,
            "ResourceName": entry.resource,
            "DeviceIDs": {"-1": sorted(entry.slots)},
            "AllocResp": answer(entry),
        }
        for name, entry in containers.items()
    ]
    text = json.dumps({"Data": {"PodDeviceEntries": entries, "RegisteredDevices": {}}, "Checksum": 1})
    (folder / FILE).write_text(text)


def test_the_kubelets_record_names_the_holder_by_our_own_name(tmp_path: Path) -> None:
    ledger = AllocationStore(tmp_path / "ledger")
    init, main = ledger.add("nvidia.com/vgpu", ["s1"]), ledger.add("nvidia.com/vgpu", ["s1"])
    write_checkpoint(tmp_path, {"first": init, "main": main})
    assert owners_from_checkpoint(ledger.entries, read_checkpoint(tmp_path) or ()) == {
        init.name: container_of_uid("uid-1", "first"),
        main.name: container_of_uid("uid-1", "main"),
    }


def test_a_record_that_does_not_read_is_no_record(tmp_path: Path) -> None:
    assert read_checkpoint(tmp_path) is None
    (tmp_path / FILE).write_text('{"Data": 7}')
    assert read_checkpoint(tmp_path) is None


def test_an_empty_checkpoint_is_a_valid_one(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, {})
    assert read_checkpoint(tmp_path) == []


def test_slots_name_a_container_only_if_no_other_container_is_possible(tmp_path: Path) -> None:
    ledger = AllocationStore(tmp_path)
    alone = ledger.add("nvidia.com/vgpu", ["s1", "s2"])
    twins = [ledger.add("nvidia.com/vgpu", ["s3"]) for _ in range(2)]
    held = [
        HeldDevices(PodRef("ns", "a"), "main", "nvidia.com/vgpu", frozenset({"s1", "s2"})),
        HeldDevices(PodRef("ns", "b"), "main", "nvidia.com/vgpu", frozenset({"s3"})),
    ]
    uids = {("ns", "a"): frozenset({"uid-a"}), ("ns", "b"): frozenset({"uid-b"})}
    assert owners_from_pod_resources(ledger.entries, held, uids) == {alone.name: container_of_uid("uid-a", "main")}
    assert owners_from_pod_resources([alone], held, {("ns", "a"): frozenset({"uid-a", "uid-old"})}) == {}
    assert owners_from_pod_resources([twins[0]], held, uids) == {twins[0].name: container_of_uid("uid-b", "main")}
