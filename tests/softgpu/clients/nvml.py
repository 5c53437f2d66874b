"""Call everything that management tools use of unmodified nvidia-ml-py, and print the answers as JSON.

`nvml.py`: one object per GPU; `nvml.py wrong`: the error of each invalid call; `nvml.py events`: waits for events.
"""

import ctypes
import json
import os
import sys
from collections.abc import Callable

import pynvml as nvml


def told(call: Callable, *arguments: object) -> object:
    """The answer of a call, or the name of its error."""
    try:
        return call(*arguments)
    except nvml.NVMLError as error:
        return type(error).__name__


def process_utilization(handle: object) -> dict[int, int]:
    """The utilization of each process; NVML answers "not found" where it has no sample."""
    try:
        return {sample.pid: sample.smUtil for sample in nvml.nvmlDeviceGetProcessUtilization(handle, 0)}
    except nvml.NVMLError_NotFound:
        return {}


def gpu(index: int) -> dict[str, object]:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    memory, rates = nvml.nvmlDeviceGetMemoryInfo(handle), nvml.nvmlDeviceGetUtilizationRates(handle)
    handles = [nvml.nvmlDeviceGetHandleByIndex(at) for at in range(nvml.nvmlDeviceGetCount())]
    fields = nvml.nvmlDeviceGetFieldValues(handle, [nvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION, 91, 230, 99999])
    return {
        "name": nvml.nvmlDeviceGetName(handle),
        "uuid": nvml.nvmlDeviceGetUUID(handle),
        "serial": nvml.nvmlDeviceGetSerial(handle),
        "minor": nvml.nvmlDeviceGetMinorNumber(handle),
        "bus": nvml.nvmlDeviceGetPciInfo(handle).busId,
        "capability": nvml.nvmlDeviceGetCudaComputeCapability(handle),
        "driver": [nvml.nvmlSystemGetDriverVersion(), nvml.nvmlSystemGetCudaDriverVersion_v2()],
        "cores": nvml.nvmlDeviceGetNumGpuCores(handle),
        "memory": [memory.total, memory.free, memory.used],
        "memory_v2": nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2).total,
        "processes": {p.pid: p.usedGpuMemory for p in nvml.nvmlDeviceGetComputeRunningProcesses(handle)},
        "graphics": nvml.nvmlDeviceGetGraphicsRunningProcesses(handle),
        "utilization": [rates.gpu, rates.memory],
        "process_utilization": process_utilization(handle),
        "temperature": nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
        "slowdown": nvml.nvmlDeviceGetTemperatureThreshold(handle, nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN),
        "power": nvml.nvmlDeviceGetPowerUsage(handle),
        "power_limit": nvml.nvmlDeviceGetEnforcedPowerLimit(handle),
        "power_range": nvml.nvmlDeviceGetPowerManagementLimitConstraints(handle),
        "energy": nvml.nvmlDeviceGetTotalEnergyConsumption(handle),
        "clock": nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
        "clock_max": nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM),
        "memory_clock": nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),
        "state": nvml.nvmlDeviceGetPerformanceState(handle),
        "reasons": nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle),
        "pcie": [nvml.nvmlDeviceGetMaxPcieLinkGeneration(handle), nvml.nvmlDeviceGetCurrPcieLinkWidth(handle)],
        "pcie_sent": nvml.nvmlDeviceGetPcieThroughput(handle, nvml.NVML_PCIE_UTIL_TX_BYTES),
        "pcie_received": nvml.nvmlDeviceGetPcieThroughput(handle, nvml.NVML_PCIE_UTIL_RX_BYTES),
        "power_sample": nvml.nvmlDeviceGetSamples(handle, nvml.NVML_TOTAL_POWER_SAMPLES, 0)[1][0].sampleValue.uiVal,
        "clocks": nvml.nvmlDeviceGetSupportedGraphicsClocks(
            handle, nvml.nvmlDeviceGetSupportedMemoryClocks(handle)[0]
        )[:2],
        "ecc": nvml.nvmlDeviceGetEccMode(handle),
        "ecc_errors": nvml.nvmlDeviceGetTotalEccErrors(handle, 1, nvml.NVML_VOLATILE_ECC),
        "mig": told(nvml.nvmlDeviceGetMigMode, handle),
        "instance": told(nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, 0),
        "fan": told(nvml.nvmlDeviceGetFanSpeed, handle),
        "nvlinks": [told(nvml.nvmlDeviceGetNvLinkState, handle, link) for link in range(18)],
        "nvlink_peer": getattr(told(nvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, 0), "busId", None),
        "ancestors": [nvml.nvmlDeviceGetTopologyCommonAncestor(handle, each) for each in handles],
        "affinity": list(nvml.nvmlDeviceGetCpuAffinity(handle, 1)),
        "fields": [value.nvmlReturn for value in fields],
        "energy_field": fields[0].value.ullVal,
    }


def wrong() -> dict[str, object]:
    """Calls that a real driver refuses, and the error of each."""
    library = ctypes.CDLL("libnvidia-ml.so.1")
    found: dict[str, object] = {"before init": told(nvml.nvmlDeviceGetCount)}
    nvml.nvmlInit()
    nvml.nvmlInit()
    nvml.nvmlShutdown()
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    found["init counts"] = nvml.nvmlDeviceGetCount()
    found["no such index"] = told(nvml.nvmlDeviceGetHandleByIndex, 99)
    found["no such uuid"] = told(nvml.nvmlDeviceGetHandleByUUID, "GPU-none")
    found["no such bus"] = told(nvml.nvmlDeviceGetHandleByPciBusId, "0000:77:00.0")
    found["by bus in short"] = nvml.nvmlDeviceGetHandleByPciBusId("01:00.0") is not None
    for name, value in (
        ("null", None),
        ("number", 12345),
        ("inside", ctypes.cast(handle, ctypes.c_void_p).value + 8),
    ):
        found[f"handle {name}"] = library.nvmlDeviceGetPowerUsage(
            ctypes.c_void_p(value), ctypes.byref(ctypes.c_uint())
        )
    text = ctypes.create_string_buffer(4)
    found["small buffer"] = library.nvmlDeviceGetName(handle, text, 4)
    found["null answer"] = library.nvmlDeviceGetPowerUsage(handle, None)
    count = ctypes.c_uint(0)
    found["short list"] = library.nvmlDeviceGetComputeRunningProcesses_v3(handle, ctypes.byref(count), None)
    found["its length"] = count.value
    found["old structure"] = library.nvmlDeviceGetMemoryInfo_v2(handle, ctypes.create_string_buffer(64))
    found["sensor"] = told(nvml.nvmlDeviceGetTemperature, handle, 7)
    found["clock"] = told(nvml.nvmlDeviceGetClockInfo, handle, 99)
    found["link"] = told(nvml.nvmlDeviceGetNvLinkState, handle, 99)
    found["event set"] = library.nvmlEventSetFree(ctypes.c_void_p(4711))
    found["power limit"] = told(nvml.nvmlDeviceSetPowerManagementLimit, handle, 1)
    found["unwritten"] = told(nvml.nvmlDeviceGetFanSpeed, handle)
    found["words"] = nvml.nvmlErrorString(nvml.NVML_ERROR_GPU_IS_LOST)
    if os.fork() == 0:
        os._exit(nvml.nvmlDeviceGetIndex(handle))
    found["child of fork"] = os.waitstatus_to_exitcode(os.wait()[1])
    found["and its parent"] = nvml.nvmlDeviceGetIndex(handle)
    nvml.nvmlShutdown()
    found["after shutdown"] = told(nvml.nvmlDeviceGetName, handle)
    found["one too many"] = told(nvml.nvmlShutdown)
    return found


def events() -> dict[str, object]:
    nvml.nvmlInit()
    handles = [nvml.nvmlDeviceGetHandleByIndex(at) for at in range(nvml.nvmlDeviceGetCount())]
    waiting = nvml.nvmlEventSetCreate()
    for handle in handles:
        nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, waiting)
    nothing = told(nvml.nvmlEventSetWait_v2, waiting, 1)
    print("waiting", flush=True)
    data = nvml.nvmlEventSetWait_v2(waiting, 200_000)
    found = {
        "nothing": nothing,
        "index": nvml.nvmlDeviceGetIndex(data.device),
        "type": data.eventType,
        "xid": data.eventData,
        "instance": data.gpuInstanceId,
    }
    print(json.dumps(found), flush=True)
    found["loss"] = nvml.nvmlEventSetWait_v2(waiting, 60_000).eventData
    found["lost"] = told(nvml.nvmlEventSetWait_v2, waiting, 60_000)
    found["name"] = told(nvml.nvmlDeviceGetName, handles[1])
    found["handle"] = told(nvml.nvmlDeviceGetHandleByIndex, 1)
    found["other"] = nvml.nvmlDeviceGetName(handles[0])
    found["count"] = nvml.nvmlDeviceGetCount()
    nvml.nvmlEventSetFree(waiting)
    return found


def settings() -> dict[str, object]:
    """Settings that root may change and others may not."""
    nvml.nvmlInit()
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    least, most = nvml.nvmlDeviceGetPowerManagementLimitConstraints(handle)
    found: dict[str, object] = {}
    nvml.nvmlDeviceSetPowerManagementLimit(handle, least)
    found["least"] = nvml.nvmlDeviceGetPowerManagementLimit(handle) == least
    found["too much"] = told(nvml.nvmlDeviceSetPowerManagementLimit, handle, most + 1)
    nvml.nvmlDeviceSetPowerManagementLimit(handle, most)
    nvml.nvmlDeviceSetPersistenceMode(handle, 1)
    found["persistence"] = nvml.nvmlDeviceGetPersistenceMode(handle)
    nvml.nvmlDeviceSetPersistenceMode(handle, 0)
    nvml.nvmlShutdown()
    os.chdir(os.environ["MILLIGPU_SOFTGPU"])
    os.environ["MILLIGPU_SOFTGPU"] = "."  # other users cannot read the directories above
    if os.fork() == 0:
        os.setuid(65534)
        nvml.nvmlInit()
        refused = told(nvml.nvmlDeviceSetPersistenceMode, nvml.nvmlDeviceGetHandleByIndex(0), 1)
        os._exit(refused != "NVMLError_NoPermission")
    found["other user"] = os.waitstatus_to_exitcode(os.wait()[1])
    return found


def accounting(mode: str) -> list[dict[str, object]]:
    nvml.nvmlInit()
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    nvml.nvmlDeviceSetAccountingMode(handle, int(mode == "on"))
    lives = []
    for pid in nvml.nvmlDeviceGetAccountingPids(handle):
        stats = nvml.nvmlDeviceGetAccountingStats(handle, pid)
        fields = ("gpuUtilization", "maxMemoryUsage", "time", "startTime", "isRunning")
        lives.append({"pid": pid} | {name: getattr(stats, name) for name in fields})
    return lives


def main() -> None:
    match sys.argv[1:]:
        case ["wrong"]:
            result: object = wrong()
        case ["events"]:
            result = events()
        case ["settings"]:
            result = settings()
        case ["accounting", mode]:
            result = accounting(mode)
        case _:
            nvml.nvmlInit()
            result = [gpu(index) for index in range(nvml.nvmlDeviceGetCount())]
    print(json.dumps(result))


main()
