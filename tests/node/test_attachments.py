"""What is on disk follows the records, whatever was left there."""

from pathlib import Path

from milligpu.agent.tenant import CUDA, LIMITS, NVML
from milligpu.model.grant import GpuShare, Grant
from milligpu.model.request import Kind
from milligpu.model.units import Mib, Milli
from milligpu.node.attach import Attached
from milligpu.node.attachments import Attachments
from milligpu.node.checks import Tenancy
from milligpu.node.driver import Driver

LIBRARIES = {name: Path("/usr/lib", name) for name in (CUDA, NVML)}
DRIVER = Driver(LIBRARIES, sockets={"GPU-a": Path("/run/gpu0.sock")}, contexts={"GPU-a": 0})
# Where a page says whether it is being written.
SEQUENCE = slice(8, 12)


def attached(name: str, milli: int = 500, generation: int = 1) -> Attached:
    share = GpuShare("GPU-a", Milli(milli), Mib(1024), Milli(milli))
    grant = Grant(f"uid-{name}", "n1", {"main": (share,)}, generation=generation)
    return Attached(name, "main", Tenancy(grant.uid, grant, {"main": Kind.MAIN}))


def open_in(folder: Path) -> Attachments:
    return Attachments(folder / "containers", folder / "cdi", DRIVER, LIBRARIES)


def files(folder: Path) -> list[str]:
    return sorted(file.name for file in (folder / "cdi").iterdir())


def test_files_that_outlived_a_reboot_without_their_pages_go(tmp_path: Path) -> None:
    open_in(tmp_path).attach(attached("a"))
    assert (tmp_path / "cdi/milligpu-a.json").exists()
    (tmp_path / "containers").rename(tmp_path / "lost")
    assert not (tmp_path / "cdi/milligpu-a.json").exists()
    (tmp_path / "cdi/other-vendor.json").touch()
    (tmp_path / "cdi/milligpu-b.json.tmp").touch()

    open_in(tmp_path).restore()

    assert files(tmp_path) == ["other-vendor.json"]


def test_a_file_that_is_missing_or_cut_short_is_written_again(tmp_path: Path) -> None:
    first = open_in(tmp_path)
    for name in ("a", "b"):
        first.attach(attached(name))
    whole = (tmp_path / "cdi/milligpu-a.json").read_text()
    (tmp_path / "cdi/milligpu-a.json").write_text("")
    (tmp_path / "cdi/milligpu-b.json").unlink()

    open_in(tmp_path).restore()

    assert (tmp_path / "cdi/milligpu-a.json").read_text() == whole
    assert files(tmp_path) == ["milligpu-a.json", "milligpu-b.json"]


def test_a_page_whose_writer_died_halfway_is_whole_again(tmp_path: Path) -> None:
    open_in(tmp_path).attach(attached("a"))
    page = tmp_path / "containers/a/tenant" / LIMITS
    spoilt = bytearray(page.read_bytes())
    spoilt[SEQUENCE] = (7).to_bytes(4, "little")
    page.write_bytes(spoilt)

    again = open_in(tmp_path)
    again.restore()

    assert again.tenant("a").limits().gpus[0].milli == 500


def test_a_resize_that_was_written_down_reaches_the_page_after_a_crash(tmp_path: Path) -> None:
    first = open_in(tmp_path)
    first.attach(attached("a"))
    old = first.tenant("a").limits()
    first.resize(attached("a", 700, generation=2))
    first.tenant("a").change(old)

    again = open_in(tmp_path)
    again.restore()

    assert again.tenant("a").limits().gpus[0].milli == 700
    assert again.tenant("a").limits().generation == 2


def test_who_comes_and_goes_moves_the_slots_of_others_and_nobody_overlaps(tmp_path: Path) -> None:
    held = open_in(tmp_path)
    for name, milli in (("a", 500), ("b", 300), ("c", 200)):
        held.attach(attached(name, milli))
    held.detach("a")
    held.attach(attached("d", 400))
    slots = sorted((held.tenant(name).limits().gpus[0] for name in "bcd"), key=lambda gpu: gpu.slot_start_us)
    ends = [gpu.slot_start_us + gpu.slot_length_us for gpu in slots]
    assert all(end <= later.slot_start_us for end, later in zip(ends, slots[1:], strict=False))
    assert [gpu.slot_length_us for gpu in slots] == [30000, 20000, 40000]
