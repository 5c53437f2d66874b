"""The GPUs that a tenant sees through CUDA and NVML: its own, with consistent indices and its memory limit."""

import json
import os

import pytest

from tests.enforce.conftest import Tenants
from tests.enforce.rig import CONTEXT, MEMORY_LIMIT, MIB, SoftGpus
from tests.enforce.test_memory import PROGRAM, finish, python, read

UUIDS = (
    PROGRAM
    + """
import ctypes, json, uuid
status, count = cuda.cuInit(0), c_int()
cuda.cuDeviceGetCount(byref(count))
def name(device):
    found = ctypes.create_string_buffer(16)
    check(cuda.cuDeviceGetUuid_v2(found, device))
    return f"GPU-{uuid.UUID(bytes=found.raw)}"
print(json.dumps([name(device) for device in range(count.value)] if not status else status))
"""
)

NVML = (
    PROGRAM
    + """
import json, pynvml
pynvml.nvmlInit()
def refused(call, *arguments):
    try:
        call(*arguments)
    except pynvml.NVMLError as error:
        return type(error).__name__
    return "answered"
handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
memory = pynvml.nvmlDeviceGetMemoryInfo(handles[0])
newer = pynvml.nvmlDeviceGetMemoryInfo(handles[0], version=pynvml.nvmlMemory_v2)
print(json.dumps({
    "uuids": [pynvml.nvmlDeviceGetUUID(handle) for handle in handles],
    "indices": [pynvml.nvmlDeviceGetIndex(handle) for handle in handles],
    "memory": [memory.total, memory.used, memory.free],
    "newer": [newer.total, newer.used, newer.free],
    "processes": [[p.pid, p.usedGpuMemory] for p in pynvml.nvmlDeviceGetComputeRunningProcesses(handles[0])],
    "another GPU": refused(pynvml.nvmlDeviceGetHandleByUUID, sys.argv[1]),
    "index out of range": refused(pynvml.nvmlDeviceGetHandleByIndex, len(handles)),
    "clocks": refused(pynvml.nvmlDeviceSetGpuLockedClocks, handles[0], 500, 500),
    "power": refused(pynvml.nvmlDeviceSetPowerManagementLimit, handles[0], 100000),
    "name": pynvml.nvmlDeviceGetName(handles[0]),
}))
"""
)


def test_only_gpus_on_the_limits_page_are_visible_whatever_cuda_visible_devices_says(
    tenant: Tenants, two_gpus: SoftGpus
) -> None:
    first, second = two_gpus.uuids
    made = tenant(on=two_gpus, uuids=[second])
    for variable in ({}, {"CUDA_VISIBLE_DEVICES": "0"}, {"CUDA_VISIBLE_DEVICES": f"{second[:12]}"}):
        assert json.loads(made.python(UUIDS, **variable).stdout) == [second]
    for nothing in ("1", first, "", "-1", "GPU-"):
        assert json.loads(made.python(UUIDS, CUDA_VISIBLE_DEVICES=nothing).stdout) == 100


def test_device_indices_follow_the_limits_page_and_cuda_visible_devices(
    tenant: Tenants, two_gpus: SoftGpus
) -> None:
    first, second = two_gpus.uuids
    made = tenant(on=two_gpus, uuids=[second, first])
    assert json.loads(made.python(UUIDS).stdout) == [second, first]
    assert json.loads(made.python(UUIDS, CUDA_VISIBLE_DEVICES="1,0").stdout) == [first, second]
    assert json.loads(made.python(UUIDS, CUDA_VISIBLE_DEVICES=f"{first},5,0").stdout) == [first]


def test_cuda_visible_devices_stays_as_the_program_set_it(tenant: Tenants) -> None:
    code = PROGRAM + (
        "import ctypes\ncuda.cuInit(0); libc = ctypes.CDLL(None); libc.getenv.restype = ctypes.c_char_p\n"
        "print(libc.getenv(b'CUDA_VISIBLE_DEVICES'))"
    )
    made = tenant()
    assert made.python(code, CUDA_VISIBLE_DEVICES="0").stdout.strip() == "b'0'"
    assert "CUDA_VISIBLE_DEVICES" not in os.environ
    assert made.python(code).stdout.strip() == "None"


def test_each_gpu_has_its_own_memory_account(tenant: Tenants, two_gpus: SoftGpus) -> None:
    made = tenant(on=two_gpus)
    code = """
first = start(0); print(allocate(200 * MIB)[0], allocate(100 * MIB)[0], memory()[0])
second = start(1); print(allocate(200 * MIB)[0], memory()[0])
check(cuda.cuCtxSetCurrent(first)); print(memory()[0])
"""
    assert finish(python(made, code)).split() == ["0", "2", str(56 * MIB), "0", str(56 * MIB), str(56 * MIB)]
    assert made.account(0).peak == made.account(1).peak == CONTEXT + 200 * MIB


@pytest.fixture
def seen(tenant: Tenants, two_gpus: SoftGpus) -> dict[str, object]:
    """What NVML shows a tenant on the second of two GPUs, next to another tenant."""
    first, second = two_gpus.uuids
    made = tenant(on=two_gpus, uuids=[second])
    other = python(tenant(on=two_gpus, uuids=[second], name="other"), "start(); print(allocate(MIB)[0]); input()")
    assert read(other) == "0"
    own = python(made, "start(); allocate(50 * MIB); print('ready'); input()")
    assert read(own) == "ready"
    done = made.python(NVML, first)
    assert done.returncode == 0, done.stderr
    return {**json.loads(done.stdout), "pid": own.pid, "second": second}


def test_nvml_shows_only_the_tenants_gpu_memory_and_processes_and_refuses_changes(seen: dict[str, object]) -> None:
    used = CONTEXT + 50 * MIB
    assert seen["uuids"] == [seen["second"]]
    assert seen["indices"] == [0]
    assert seen["memory"] == seen["newer"] == [MEMORY_LIMIT, used, MEMORY_LIMIT - used]
    assert seen["processes"] == [[seen["pid"], used]]
    assert seen["another GPU"] == "NVMLError_NotFound"
    assert seen["index out of range"] == "NVMLError_InvalidArgument"
    assert seen["clocks"] == seen["power"] == "NVMLError_NoPermission"
    assert seen["name"] == "Tesla T4"


def test_nvml_in_a_process_that_uses_cuda_does_not_change_its_memory_account(tenant: Tenants) -> None:
    code = """
import pynvml
start(); allocate(50 * MIB); pynvml.nvmlInit()
print(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).used, flush=True); input()
"""
    made = tenant()
    process = python(made, code)
    assert read(process) == str(CONTEXT + 50 * MIB)
    assert made.held() == CONTEXT + 50 * MIB


def test_nvml_without_a_limits_page_reports_no_driver(tenant: Tenants) -> None:
    made = tenant()
    made.page.unlink()
    code = "import pynvml\ntry:\n    pynvml.nvmlInit()\nexcept pynvml.NVMLError as error:\n    print(error)"
    assert made.python(code).stdout.strip() == "Driver Not Loaded"
