"""Every way to the driver goes through the limits library, and without limits there is no GPU."""

import json
import re
import shutil
import struct
import subprocess
import sys

import pytest

from milligpu.native import library
from tests.enforce.conftest import Tenants
from tests.enforce.rig import CONTEXT, MEMORY_LIMIT, MIB, SoftGpus

NO_DEVICE = 100

INIT = """
import ctypes, sys
from ctypes import byref, c_int, c_size_t, c_uint64, c_void_p
cuda = ctypes.CDLL(sys.argv[1] if len(sys.argv) > 1 else "libcuda.so.1")
status = cuda.cuInit(0)
"""
MEMORY = (
    INIT
    + """
context, free, total = c_void_p(), c_size_t(), c_size_t()
if not status:
    assert cuda.cuCtxCreate_v2(byref(context), 0, 0) == 0
    assert cuda.cuMemGetInfo_v2(byref(free), byref(total)) == 0
print(status, free.value, total.value)
"""
)


def test_a_program_sees_its_memory_limit_as_the_gpus_memory(tenant: Tenants) -> None:
    done = tenant().python(MEMORY)
    assert done.stdout.split() == ["0", str(MEMORY_LIMIT - CONTEXT), str(MEMORY_LIMIT)]


def test_the_limits_apply_when_the_library_is_opened_by_its_full_path(tenant: Tenants) -> None:
    made = tenant()
    done = made.python(MEMORY, str(made.folder / "libcuda.so.1"))
    assert done.stdout.split() == ["0", str(MEMORY_LIMIT - CONTEXT), str(MEMORY_LIMIT)]


@pytest.mark.parametrize(
    "what", ["missing", "short", "long", "corrupt", "usage corrupt", "usage short", "no driver"]
)
def test_without_valid_pages_and_driver_cuda_reports_no_device(tenant: Tenants, what: str) -> None:
    made = tenant()
    match what:
        case "missing":
            made.page.unlink()
        case "short":
            made.page.write_bytes(made.page.read_bytes()[:100])
        case "long":
            made.page.write_bytes(made.page.read_bytes() + b"x")
        case "corrupt":
            made.page.write_bytes(struct.pack("<I", 1) + made.page.read_bytes()[4:])
        case "usage corrupt":
            made.usage.write_bytes(struct.pack("<I", 1) + made.usage.read_bytes()[4:])
        case "usage short":
            made.usage.write_bytes(made.usage.read_bytes()[:-1])
        case _:
            shutil.rmtree(made.folder / "tenant/real")
    done = made.python(MEMORY)
    assert done.stdout.split() == [str(NO_DEVICE), "0", "0"]
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("milligpu: no GPU for this process")


def test_an_environment_variable_cannot_select_another_tenant_directory(tenant: Tenants) -> None:
    rich = tenant(memory_limit=1 << 30, name="rich")
    poor = tenant(memory_limit=MEMORY_LIMIT, name="poor")
    done = poor.python(MEMORY, MILLIGPU_TENANT=str(rich.folder / "tenant"), TENANT=str(rich.folder / "tenant"))
    assert done.stdout.split()[2] == str(MEMORY_LIMIT)


def test_the_limits_page_is_mapped_read_only(tenant: Tenants) -> None:
    maps = (
        INIT + "print([line.split()[1] for line in open('/proc/self/maps') if line.rstrip().endswith('/limits')])"
    )
    assert tenant().python(maps).stdout.strip() == "['r--s']"


PROC = (
    INIT
    + """
import json
PER_THREAD = 2
def ask(name, version, flags=0):
    found, result = c_void_p(), c_int(-1)
    status = cuda.cuGetProcAddress_v2(name.encode(), byref(found), version, c_uint64(flags), byref(result))
    return [status, result.value, found.value or 0]
def symbol(name):
    return ctypes.cast(getattr(cuda, name), c_void_p).value
first = c_void_p()
driver = c_int()
cuda.cuDriverGetVersion(byref(driver))
assert cuda.cuGetProcAddress(b"cuMemAlloc", byref(first), 12000, c_uint64(0)) == 0
real = ctypes.CDLL(sys.argv[2])
print(json.dumps({
    "version 1": first.value == symbol("cuMemAlloc_v2"),
    "newest": ask("cuMemAlloc", 12000)[2] == symbol("cuMemAlloc_v2"),
    "oldest": ask("cuMemAlloc", 2000)[2] == symbol("cuMemAlloc"),
    "itself": ask("cuGetProcAddress", 12000)[2] == symbol("cuGetProcAddress_v2"),
    "itself, old": ask("cuGetProcAddress", 11030)[2] == symbol("cuGetProcAddress"),
    "per thread": ask("cuLaunchKernel", 12000, PER_THREAD)[2] == symbol("cuLaunchKernel_ptsz"),
    "per thread, synchronous": ask("cuMemcpyDtoH", 12000, PER_THREAD)[2] == symbol("cuMemcpyDtoH_v2_ptds"),
    "passed on": ask("cuStreamQuery", 12000)[2] == ctypes.cast(real.cuStreamQuery, c_void_p).value,
    "unknown": ask("cuNoSuchThing", 12000),
    "too old": ask("cuMemAllocAsync", 3000),
    "from the future": ask("cuMemAlloc", 99000)[2] == symbol("cuMemAlloc_v2"),
    "driver": driver.value,
}))
"""
)


def test_cugetprocaddress_returns_our_functions_by_version_and_flags(tenant: Tenants) -> None:
    made = tenant()
    done = made.python(PROC, "libcuda.so.1", str(made.folder / "tenant/real/libcuda.so.1"))
    found = json.loads(done.stdout)
    assert found.pop("unknown") == [0, 1, 0]
    assert found.pop("too old") == [0, 2, 0]
    assert found.pop("driver") >= 13000
    assert {name for name, good in found.items() if good is not True} == set()


def test_cuda_bindings_and_nvrtc_work_within_the_limits(tenant: Tenants) -> None:
    made = tenant()
    done = made.run(sys.executable, "tests/softgpu/clients/libraries.py")
    results = json.loads(done.stdout.splitlines()[-1])
    assert {name for name, good in results.items() if not good} == set()
    assert made.account().peak > CONTEXT


def test_numba_cuda_works_within_the_limits(tenant: Tenants, two_gpus: SoftGpus) -> None:
    made = tenant(on=two_gpus)
    done = made.run(sys.executable, "tests/softgpu/clients/numba_kernels.py")
    assert done.returncode == 0, done.stderr[-2000:]
    results = json.loads(done.stdout.splitlines()[-1])
    assert {name for name, good in results.items() if not good} == set()
    assert made.account(0).peak > CONTEXT < made.account(1).peak


def test_tinygrad_trains_within_its_memory_limit(tenant: Tenants) -> None:
    made = tenant()
    done = made.run(sys.executable, "examples/train.py")
    assert float(done.stdout.split()[-1]) > 0.95, done.stderr
    assert CONTEXT < made.account().peak <= MEMORY_LIMIT
    assert made.account().refused == 0


@pytest.mark.parametrize("name", ["libcuda.so.1", "libnvidia-ml.so.1"])
def test_the_library_can_be_loaded_with_glibc_2_17(name: str) -> None:
    command = ["objdump", "-T", library(f"enforce/{name}")]
    table = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    needed = {tuple(map(int, version.split("."))) for version in re.findall(r"GLIBC_([0-9.]+)", table)}
    assert needed
    assert max(needed) <= (2, 17), re.findall(r"\(GLIBC_2\.(?:1[89]|[23]\d)\) (\w+)", table)


def test_an_allocation_over_the_limit_fails_and_logs_the_limit_and_the_use(tenant: Tenants) -> None:
    code = MEMORY + f"p = c_uint64()\nprint(cuda.cuMemAlloc_v2(byref(p), c_size_t({256 * MIB} + 1)))"
    done = tenant().python(code)
    assert done.stdout.splitlines()[-1] == "2"
    assert f"asks for {256 * MIB + 1} bytes" in done.stderr
    assert f"the limit is {MEMORY_LIMIT} and {CONTEXT} are in use" in done.stderr
