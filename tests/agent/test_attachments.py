"""Attachments on disk: pages and CDI files follow the records, whatever a crash or a reboot left."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from milligpu.agent.attachment import Attachment
from milligpu.agent.attachments import AttachmentStore
from milligpu.agent.driver import NodeDriver
from milligpu.model.gpu import Gpu
from milligpu.model.grant import GpuShare, Grant
from milligpu.model.overheads import GpuOverheads
from milligpu.model.policy import SharePolicy
from milligpu.model.request import ContainerKind, Share, container_of_uid
from milligpu.model.units import Mib, Milli
from milligpu.tenancy.arbiter import Arbiter
from milligpu.tenancy.tenant import CUDA, LIMITS, NVML, TenantFolder
from milligpu.tenancy.tenants import Tenants
from milligpu.wire.limits import LimitsPage

GPU = Gpu("GPU-a", "A10", Mib(8192))
LIBRARIES = {name: Path("/usr/lib", name) for name in (CUDA, NVML)}
DRIVER = NodeDriver(LIBRARIES, sockets={"GPU-a": Path("/run/gpu0.sock")}, overheads={"GPU-a": GpuOverheads(0)})
# Where a page says whether it is being written.
SEQUENCE = slice(8, 12)


def attached(name: str, milli: int = 500, generation: int = 1) -> Attachment:
    share = GpuShare("GPU-a", Share(Milli(milli), Mib(1024), Milli(milli)))
    grant = Grant(f"uid-{name}", "n1", {"main": (share,)}, generation=generation)
    return Attachment(name, container_of_uid(grant.uid, "main"), grant, {"main": ContainerKind.MAIN})


@pytest.fixture
def arbiter() -> Iterator[Arbiter]:
    found = Arbiter()
    yield found
    found.close()


@pytest.fixture
def agents(tmp_path: Path, arbiter: Arbiter) -> Callable[[], AttachmentStore]:
    """Start agents on the same directories, one after the other."""
    before: list[Tenants] = []

    def start() -> AttachmentStore:
        for tenants in before:
            for name in ("a", "b", "c", "d"):
                tenants.remove(name)
        before.append(Tenants(arbiter))
        return AttachmentStore(
            tmp_path / "containers",
            tmp_path / "cdi",
            DRIVER,
            LIBRARIES,
            tenants=before[-1],
            gpus=lambda: {GPU.uuid: GPU},
        )

    return start


def page(folder: Path, name: str) -> LimitsPage:
    return TenantFolder(folder / "containers" / name / "tenant").limits()


def files(folder: Path) -> list[str]:
    return sorted(file.name for file in (folder / "cdi").iterdir())


def test_containers_divide_all_the_time_of_a_vgpu(tmp_path: Path, arbiter: Arbiter) -> None:
    half = replace(GPU, milli=Milli(500))
    tenants = Tenants(arbiter)
    folders = tmp_path / "containers", tmp_path / "cdi"
    store = AttachmentStore(*folders, DRIVER, LIBRARIES, tenants=tenants, gpus=lambda: {GPU.uuid: half})
    for name, milli in (("a", 300), ("b", 200)):
        store.attach(attached(name, milli))
    lines = [page(tmp_path, name).gpus[0] for name in ("a", "b")]
    assert [(line.milli, line.limit) for line in lines] == [(600, 600), (400, 400)]
    assert [(line.slot_start_us, line.slot_length_us) for line in lines] == [(0, 60_000), (60_000, 40_000)]
    for name in ("a", "b"):
        tenants.remove(name)


def test_cdi_files_without_their_pages_are_deleted_after_a_reboot(
    tmp_path: Path, agents: Callable[[], AttachmentStore]
) -> None:
    agents().attach(attached("a"))
    assert (tmp_path / "cdi/milligpu-a.json").exists()
    (tmp_path / "containers").rename(tmp_path / "lost")
    assert not (tmp_path / "cdi/milligpu-a.json").exists()
    (tmp_path / "cdi/other-vendor.json").touch()
    (tmp_path / "cdi/milligpu-b.json.tmp").touch()

    agents().restore()

    assert files(tmp_path) == ["other-vendor.json"]


def test_a_cdi_file_that_is_missing_or_cut_short_is_written_again(
    tmp_path: Path, agents: Callable[[], AttachmentStore]
) -> None:
    first = agents()
    for name in ("a", "b"):
        first.attach(attached(name))
    whole = (tmp_path / "cdi/milligpu-a.json").read_text()
    (tmp_path / "cdi/milligpu-a.json").write_text("")
    (tmp_path / "cdi/milligpu-b.json").unlink()

    agents().restore()

    assert (tmp_path / "cdi/milligpu-a.json").read_text() == whole
    assert files(tmp_path) == ["milligpu-a.json", "milligpu-b.json"]


def test_a_limits_page_whose_writer_died_halfway_is_repaired(
    tmp_path: Path, agents: Callable[[], AttachmentStore]
) -> None:
    agents().attach(attached("a"))
    file = tmp_path / "containers/a/tenant" / LIMITS
    broken = bytearray(file.read_bytes())
    broken[SEQUENCE] = (7).to_bytes(4, "little")
    file.write_bytes(broken)

    agents().restore()

    assert page(tmp_path, "a").gpus[0].milli == 500


def test_a_resize_in_the_record_reaches_the_page_after_a_crash(
    tmp_path: Path, agents: Callable[[], AttachmentStore]
) -> None:
    first = agents()
    first.attach(attached("a"))
    old = page(tmp_path, "a")
    first.resize(attached("a", 700, generation=2))
    TenantFolder(tmp_path / "containers/a/tenant").change(old)

    agents().restore()

    assert page(tmp_path, "a").gpus[0].milli == 700
    assert page(tmp_path, "a").generation == 2


def test_time_slots_never_overlap_when_containers_come_and_go(
    tmp_path: Path, agents: Callable[[], AttachmentStore]
) -> None:
    held = agents()
    for name, milli in (("a", 500), ("b", 300), ("c", 200)):
        held.attach(attached(name, milli))
    held.detach("a")
    held.attach(attached("d", 400))
    slots = sorted((page(tmp_path, name).gpus[0] for name in "bcd"), key=lambda gpu: gpu.slot_start_us)
    ends = [gpu.slot_start_us + gpu.slot_length_us for gpu in slots]
    assert all(end <= later.slot_start_us for end, later in zip(ends, slots[1:], strict=False))
    assert [gpu.slot_length_us for gpu in slots] == [30000, 20000, 40000]


def test_a_page_has_the_share_policy_of_the_gpu_and_follows_it(tmp_path: Path, arbiter: Arbiter) -> None:
    gpu = replace(GPU, policy=SharePolicy.BEST_EFFORT)
    gpus = {gpu.uuid: gpu}
    held = AttachmentStore(
        tmp_path / "containers", tmp_path / "cdi", DRIVER, LIBRARIES, tenants=Tenants(arbiter), gpus=lambda: gpus
    )
    held.attach(attached("a"))
    assert page(tmp_path, "a").gpus[0].policy is SharePolicy.BEST_EFFORT
    gpus[gpu.uuid] = replace(GPU, policy=SharePolicy.FIXED)
    held.write_pages()
    assert page(tmp_path, "a").gpus[0].policy is SharePolicy.FIXED


@pytest.mark.parametrize("part", ["record", "grant"])
def test_an_attachment_of_a_newer_agent_is_kept_until_its_container_is_gone(
    tmp_path: Path, agents: Callable[[], AttachmentStore], part: str
) -> None:
    agents().attach(attached("a"))
    record = tmp_path / "containers/a/attachment.json"
    old, new = ('{"v":1', '{"v":99') if part == "record" else ('"{\\"v\\":', '"{\\"v\\":99')
    assert old in record.read_text()
    record.write_text(record.read_text().replace(old, new))
    written = record.read_text()

    again = agents()
    again.restore()

    assert again.held == {}
    assert again.newer == {"a": ("GPU-a",)}
    assert record.read_text() == written
    assert (tmp_path / "cdi/milligpu-a.json").exists()
    assert page(tmp_path, "a").gpus[0].milli == 500

    again.detach("a")
    assert not record.exists()
    assert files(tmp_path) == []


def test_a_container_whose_gpu_is_gone_at_a_restart_takes_turns_again_when_it_is_back(
    tmp_path: Path, arbiter: Arbiter
) -> None:
    gpus = {GPU.uuid: GPU}
    folders = tmp_path / "containers", tmp_path / "cdi"

    def start(tenants: Tenants) -> AttachmentStore:
        return AttachmentStore(*folders, DRIVER, LIBRARIES, tenants=tenants, gpus=lambda: gpus)

    before, tenants = Tenants(arbiter), Tenants(arbiter)
    start(before).attach(attached("a"))
    before.remove("a")
    gpus.clear()
    store = start(tenants)
    store.restore()
    assert ("a" in store.held, "a" in tenants) == (True, False)
    store.write_pages()
    gpus[GPU.uuid] = GPU
    store.write_pages()
    assert "a" in tenants
    assert page(tmp_path, "a").gpus[0].uuid == GPU.uuid
    store.detach("a")
    assert "a" not in tenants
