"""Tenant folders: what the tenant may write, and pages that change under running readers."""

import ctypes
import mmap
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from milligpu.model.errors import BadRequest
from milligpu.model.gpu import Gpu
from milligpu.model.grant import GpuShare, Grant
from milligpu.model.overheads import GpuOverheads
from milligpu.model.policy import SharePolicy
from milligpu.model.request import Share
from milligpu.model.units import Mib, Milli
from milligpu.native import library
from milligpu.tenancy.tenant import DriverLibraries, TenantFolder, limits_page
from milligpu.tenancy.time_slots import FRAME
from milligpu.wire.limits import LIMITS_SIZE, GpuLimits, LimitsPage, decode_limits

DRIVERS = DriverLibraries(Path("/driver/libcuda.so.1"), Path("/driver/libnvidia-ml.so.1"))
NOBODY = 65534


def page(milli: int, generation: int = 1) -> LimitsPage:
    share = GpuLimits("GPU-1", Milli(milli), Milli(milli), milli << 20, SharePolicy.FIXED, 0, 100 * milli)
    return LimitsPage((share,), generation=generation)


def make(folder: Path, uid: int | None = None) -> TenantFolder:
    return TenantFolder.make(folder / "tenant", page(500), DRIVERS, os.geteuid() if uid is None else uid)


def test_a_new_tenant_directory_has_both_pages_and_the_driver(tmp_path: Path) -> None:
    tenant = make(tmp_path)
    assert tenant.limits() == page(500)
    usage = tenant.usage()
    assert usage is not None
    assert len(usage.accounts) == 1
    assert (tenant.folder / "real/libcuda.so.1").readlink() == DRIVERS.cuda


@pytest.mark.parametrize(
    ("milli", "limit", "policy", "on_page"),
    [
        (300, 300, SharePolicy.BEST_EFFORT, (600, 600)),
        (300, 400, SharePolicy.BEST_EFFORT, (600, 800)),
        (300, 400, SharePolicy.FIXED, (600, 600)),
        (300, 300, SharePolicy.EQUAL, (600, 1000)),
        (300, 1000, SharePolicy.BEST_EFFORT, (600, 1000)),
        (0, 250, SharePolicy.BEST_EFFORT, (0, 500)),
        (1, 1, SharePolicy.FIXED, (2, 2)),
    ],
)
def test_a_share_of_a_vgpu_is_on_the_page_as_a_part_of_the_vgpus_own_time(
    milli: int, limit: int, policy: SharePolicy, on_page: tuple[int, int]
) -> None:
    half = Gpu("GPU-1", "V100-8Q", Mib(8192), Milli(500), policy=policy)
    share = GpuShare("GPU-1", Share(Milli(milli), Mib(1024), Milli(limit)))
    grant = Grant("uid", "n1", {"main": (share,)})
    (line,) = limits_page(grant, (share,), {"GPU-1": half}, {"GPU-1": FRAME}, {"GPU-1": GpuOverheads(0)}).gpus
    assert (line.milli, line.limit) == on_page


def test_only_the_usage_page_is_the_tenants(request: pytest.FixtureRequest) -> None:
    if os.geteuid():
        pytest.skip("another user's files need root")
    folder = Path(tempfile.mkdtemp())
    request.addfinalizer(lambda: shutil.rmtree(folder))
    folder.chmod(0o755)
    tenant = make(folder, NOBODY)
    modes = {path.name: (stat.S_IMODE(path.stat().st_mode), path.stat().st_uid) for path in tenant.folder.iterdir()}
    assert modes["limits"] == (0o644, 0)
    assert modes["usage"] == (0o600, NOBODY)
    tried = """
import os, sys
os.setuid(65534)
for name, how in (("limits", os.O_RDWR), ("usage", os.O_RDWR), ("mine", os.O_RDWR | os.O_CREAT)):
    try:
        os.close(os.open(f"{sys.argv[1]}/{name}", how))
        print(name)
    except PermissionError:
        pass
"""
    done = subprocess.run([sys.executable, "-c", tried, tenant.folder], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["usage"]


def test_the_umask_does_not_change_the_modes_of_the_pages(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        tenant = make(tmp_path)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tenant.folder / "limits").stat().st_mode) == 0o644


def test_a_reader_never_sees_half_a_change(tmp_path: Path) -> None:
    """The C reader against the Python writer: milli, cap and slot of one page always belong together."""
    tenant = make(tmp_path)
    pages = ctypes.CDLL(str(library("libmilligpu-pages.so")))
    stop = threading.Event()

    def write() -> None:
        generation = 1
        while not stop.is_set():
            generation += 1
            tenant.change(page(1 + generation * 7 % 999, generation))

    writer = threading.Thread(target=write)
    seen: set[int] = set()
    with (tenant.folder / "limits").open("r+b") as file, mmap.mmap(file.fileno(), LIMITS_SIZE) as shared:
        present = (ctypes.c_char * LIMITS_SIZE).from_buffer(shared)
        copy = (ctypes.c_char * LIMITS_SIZE)()
        writer.start()
        try:
            while len(seen) < 50:
                assert pages.mg_limits_read(ctypes.byref(present), copy) == 0
                gpu = decode_limits(b"".join([copy.raw[:8], bytes(4), copy.raw[12:]])).gpus[0]
                assert gpu.memory_cap == gpu.milli << 20
                assert gpu.slot_length_us == 100 * gpu.milli
                seen.add(gpu.milli)
        finally:
            stop.set()
            writer.join()
            del present


def test_a_bad_change_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    tenant = make(tmp_path)
    with pytest.raises(BadRequest, match="milli: invalid value 2000"):
        tenant.change(page(2000))
    assert tenant.limits() == page(500)


@pytest.mark.parametrize("spoilt", [b"", b"x" * 100, b"\xff" * 77824, bytes(77824), b"y" * 200_000])
def test_a_corrupt_usage_page_reads_as_none(tmp_path: Path, spoilt: bytes) -> None:
    tenant = make(tmp_path)
    (tenant.folder / "usage").write_bytes(spoilt)
    assert tenant.usage() is None


def test_a_missing_usage_page_or_a_directory_in_its_place_reads_as_none(tmp_path: Path) -> None:
    tenant = make(tmp_path)
    (tenant.folder / "usage").unlink()
    assert tenant.usage() is None
    (tenant.folder / "usage").mkdir()
    assert tenant.usage() is None
