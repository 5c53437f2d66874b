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

from milligpu.agent.tenant import Drivers, Tenant
from milligpu.model.errors import BadRequest
from milligpu.model.qos import Policy
from milligpu.model.units import Milli
from milligpu.native import library
from milligpu.wire.limits import LIMITS_SIZE, GpuLimits, LimitsPage, decode_limits

DRIVERS = Drivers(Path("/driver/libcuda.so.1"), Path("/driver/libnvidia-ml.so.1"))
NOBODY = 65534


def page(milli: int, generation: int = 1) -> LimitsPage:
    share = GpuLimits("GPU-1", Milli(milli), Milli(milli), milli << 20, Policy.FIXED, 0, 100 * milli)
    return LimitsPage((share,), generation=generation)


def make(folder: Path, uid: int | None = None) -> Tenant:
    return Tenant.make(folder / "tenant", page(500), DRIVERS, os.geteuid() if uid is None else uid)


def test_a_new_folder_has_both_pages_and_the_driver(tmp_path: Path) -> None:
    tenant = make(tmp_path)
    assert tenant.limits() == page(500)
    usage = tenant.usage()
    assert usage is not None
    assert len(usage.accounts) == 1
    assert (tenant.folder / "real/libcuda.so.1").readlink() == DRIVERS.cuda


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


def test_the_umask_takes_nothing_from_the_pages(tmp_path: Path) -> None:
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
    with pytest.raises(BadRequest, match="milli=2000"):
        tenant.change(page(2000))
    assert tenant.limits() == page(500)


@pytest.mark.parametrize("spoilt", [b"", b"x" * 100, b"\xff" * 77824, bytes(77824), b"y" * 200_000])
def test_a_spoilt_usage_page_is_no_account_and_no_harm(tmp_path: Path, spoilt: bytes) -> None:
    tenant = make(tmp_path)
    (tenant.folder / "usage").write_bytes(spoilt)
    assert tenant.usage() is None


def test_a_usage_page_that_is_gone_or_a_folder_is_no_harm(tmp_path: Path) -> None:
    tenant = make(tmp_path)
    (tenant.folder / "usage").unlink()
    assert tenant.usage() is None
    (tenant.folder / "usage").mkdir()
    assert tenant.usage() is None
