import base64
import json
from pathlib import Path

from milligpu.kubelet._generated import deviceplugin_pb2 as pb
from milligpu.kubelet.checkpoint import FILE, read_checkpoint
from milligpu.kubelet.pod_resources import Held
from milligpu.node.holders import Holder, by_record, by_slots
from milligpu.node.ledger import Allocation, Ledger


def test_a_promise_survives_the_agent(tmp_path: Path) -> None:
    first = Ledger(tmp_path)
    promised = [first.promise("nvidia.com/vgpu", ["s1", "s2"]), first.promise("nvidia.com/vgpu", ["s1", "s2"])]
    again = Ledger(tmp_path)
    assert list(again.entries) == promised
    assert again.promise("nvidia.com/vgpu", ["s3"]).number == 3
    again.forget(promised[0].name)
    assert promised[0] not in Ledger(tmp_path).entries


def test_a_half_written_promise_was_never_made(tmp_path: Path) -> None:
    kept = Ledger(tmp_path).promise("nvidia.com/vgpu", ["s1"])
    (tmp_path / "broken.json").write_text('{"v":1,"number":2,"reso')
    (tmp_path / "other.json.tmp").write_text("{}")
    assert Ledger(tmp_path).entries == (kept,)
    assert [file.name for file in tmp_path.iterdir()] == [f"{kept.name}.json"]


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
    ledger = Ledger(tmp_path / "ledger")
    init, main = ledger.promise("nvidia.com/vgpu", ["s1"]), ledger.promise("nvidia.com/vgpu", ["s1"])
    write_checkpoint(tmp_path, {"first": init, "main": main})
    assert by_record(ledger.entries, read_checkpoint(tmp_path) or ()) == {
        init.name: Holder("uid-1", "first"),
        main.name: Holder("uid-1", "main"),
    }


def test_a_record_that_does_not_read_is_no_record(tmp_path: Path) -> None:
    assert read_checkpoint(tmp_path) is None
    (tmp_path / FILE).write_text('{"Data": 7}')
    assert read_checkpoint(tmp_path) is None


def test_a_record_of_nothing_is_a_record(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, {})
    assert read_checkpoint(tmp_path) == []


def test_by_slots_only_where_nobody_else_could_be_meant(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    alone = ledger.promise("nvidia.com/vgpu", ["s1", "s2"])
    twins = [ledger.promise("nvidia.com/vgpu", ["s3"]) for _ in range(2)]
    held = [
        Held("ns", "a", "main", {"nvidia.com/vgpu": frozenset({"s1", "s2"})}),
        Held("ns", "b", "main", {"nvidia.com/vgpu": frozenset({"s3"})}),
    ]
    uids = {("ns", "a"): frozenset({"uid-a"}), ("ns", "b"): frozenset({"uid-b"})}
    assert by_slots(ledger.entries, held, uids) == {alone.name: Holder("uid-a", "main")}
    assert by_slots([alone], held, {("ns", "a"): frozenset({"uid-a", "uid-old"})}) == {}
    assert by_slots([twins[0]], held, uids) == {twins[0].name: Holder("uid-b", "main")}
