import json
import os
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from devcluster import network
from devcluster.errors import DevclusterError
from devcluster.record import Clusters, DamagedRecord, Owner, Record


@pytest.fixture
def record(tmp_path: Path) -> Record:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return Record(tmp_path, "mine", 3, boot, Owner.current(), "identity", {"etcd": 1}, ["10.0.0.1"], ["r"], ["n"])


def test_a_saved_record_loads_unchanged(record: Record) -> None:
    record.save()

    assert Record.load(record.folder) == record


def test_a_record_of_another_version_can_be_loaded(record: Record) -> None:
    record.save()
    file = record.folder / "record.json"
    content = json.loads(file.read_text())
    del content["identity"]
    file.write_text(json.dumps({**content, "new": "field"}))

    assert Record.load(record.folder) == replace(record, identity="")


def test_a_cluster_is_abandoned_when_its_owner_is_dead(record: Record) -> None:
    assert not record.is_abandoned()
    with subprocess.Popen(["sleep", "60"]) as child:
        owner = Owner(child.pid, Owner.current().started)
        assert not owner.is_alive(), "another process with the same PID is not the owner"
        child.kill()
    assert replace(record, owner=Owner(child.pid, 1)).is_abandoned()


def test_a_cluster_is_abandoned_when_its_owner_is_a_zombie() -> None:
    with subprocess.Popen(["true"]) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        stat = Path(f"/proc/{child.pid}/stat").read_text()
        started = int(stat.rpartition(")")[2].split()[19])

        assert not Owner(child.pid, started).is_alive()


def test_a_detached_cluster_is_abandoned_only_after_a_reboot(record: Record) -> None:
    record.detach()

    assert not Record.load(record.folder).is_abandoned()
    assert replace(record, boot="yesterday").is_abandoned()


@pytest.mark.parametrize("name", ["", "Upper", "-a", "a" * 16, "a/b", "a_b"])
def test_an_invalid_name_is_refused_before_anything_is_created(name: str) -> None:
    with pytest.raises(DevclusterError, match="cluster name"):
        Clusters(Path("/tmp/never-made")).claim(name)

    assert not Path("/tmp/never-made").exists()


def test_a_directory_too_long_for_unix_sockets_is_refused() -> None:
    with pytest.raises(DevclusterError, match="unix sockets"):
        Clusters(Path("/tmp/" + "long/" * 10))


def test_a_directory_that_others_can_write_to_is_refused() -> None:
    folder = Path(f"/tmp/mgpu-{os.getpid()}")
    folder.mkdir(mode=0o700)
    folder.chmod(0o777)
    try:
        with pytest.raises(DevclusterError, match="belong to you alone"):
            Clusters(folder).claim("mine")
        assert list(folder.iterdir()) == []
    finally:
        folder.rmdir()


def test_removing_the_last_cluster_restores_the_machines_forwarding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    switch = tmp_path / "ip_forward"
    switch.write_text("0\n")
    monkeypatch.setattr(network, "FORWARDING", switch)
    folder = Path(f"/tmp/mgpu-{os.getpid()}")
    clusters = Clusters(folder)
    try:
        one = clusters.claim("one")
        switch.write_text("1\n")  # as the CNI plugin does
        two = clusters.claim("two")

        clusters.remove(one)
        assert network.forwarding() == "1"
        clusters.remove(two)
        assert network.forwarding() == "0"
    finally:
        shutil.rmtree(folder)


def test_removing_a_cluster_twice_does_not_affect_its_successor() -> None:
    folder = Path(f"/tmp/mgpu-{os.getpid()}")
    clusters = Clusters(folder)
    try:
        first = clusters.claim("mine")
        clusters.remove(first)
        second = clusters.claim("mine")
        clusters.remove(first)

        assert clusters.find("mine") == second
        clusters.remove(second)
        assert clusters.all() == []
    finally:
        shutil.rmtree(folder)


def test_threads_that_update_a_record_at_the_same_time_lose_nothing(record: Record) -> None:
    names = [f"node-{number}" for number in range(200)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(record.add_node, names))

    assert sorted(Record.load(record.folder).nodes) == sorted(["n", *names])


def test_a_cluster_with_a_damaged_record_is_removed_and_others_can_start() -> None:
    clusters = Clusters(Path(tempfile.mkdtemp(prefix="mg-", dir="/tmp")))
    folder = clusters.folder / "broken"
    folder.mkdir()
    (folder / "record.json").write_text('{"name": "broken"}\n}')

    with pytest.raises(DamagedRecord, match="record.json is damaged"):
        Record.load(folder)
    assert clusters.sweep() == []
    assert not folder.exists()
    shutil.rmtree(clusters.folder)
