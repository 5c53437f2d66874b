"""`milligpu.nvml` on software GPUs; its code does not know that they are software."""

import json
import sys
from typing import Any

import pytest

from milligpu.model.gpu import ComputeCapability, GpuLink
from milligpu.wire.inventory import decode_inventory
from tests.softgpu.conftest import Softgpu
from tests.softgpu.machine import CLIENTS, Machine

pytestmark = pytest.mark.usefixtures("sound")


def look(machine: Machine) -> dict[str, Any]:
    done = machine.run(sys.executable, CLIENTS / "devices.py")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_discovery_reports_models_memory_and_links(machine: Machine) -> None:
    gpus = decode_inventory(json.dumps(look(machine)["inventory"]))
    assert [(gpu.model, gpu.mib, gpu.numa, gpu.ecc) for gpu in gpus] == [
        ("NVIDIA A100-SXM4-40GB", 40960, 0, True),
        ("NVIDIA A100-SXM4-40GB", 40960, 0, True),
        ("Tesla T4", 15360, 0, True),
        ("Tesla T4", 15360, 0, True),
    ]
    assert gpus[0].capability == ComputeCapability(8, 0)
    assert list(gpus[0].links.values()) == [GpuLink("NV", 12), GpuLink("NODE", 0), GpuLink("NODE", 0)]
    assert gpus[2].links[gpus[3].uuid] == GpuLink("PIX", 0)


def test_readings_follow_the_running_processes(machine: Machine) -> None:
    with machine.program("busy.py", "1", "64") as process:
        machine.until(lambda: bool(look(machine)["readings"][1]["utilization"]))
        reading = look(machine)["readings"][1]
        assert reading["processes"][0]["pid"] == process.pid
        assert reading["processes"][0]["memory"] == 64 + 128
        assert reading["memory_used"] == 64 + 128


def test_discovery_reports_nvlink_switches_and_two_numa_nodes(softgpu: Softgpu) -> None:
    done = softgpu("exec", "--model", "H100x8", "--", sys.executable, CLIENTS / "devices.py")
    assert done.returncode == 0, done.stderr
    gpus = decode_inventory(json.dumps(json.loads(done.stdout)["inventory"]))
    assert [gpu.numa for gpu in gpus] == [0] * 4 + [1] * 4
    assert all(link == GpuLink("NV", 18) for gpu in gpus for link in gpu.links.values())


def test_health_follows_injected_faults_and_recovery(machine: Machine) -> None:
    with machine.program("devices.py", "watch") as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline()) == ["", "", "", ""]
        for fault, words in (
            ({"xid": 79}, "XID 79: GPU has fallen off the bus"),
            ({"temperature": 97}, "too hot: 97 degrees"),
            ({"lost": True}, "lost: the GPU no longer answers"),
        ):
            machine.fault(2, **fault)
            # The XID of a lost GPU may arrive before the loss is noticed.
            while (seen := json.loads(process.stdout.readline())[2]) != words:
                assert seen in ("", "XID 79: GPU has fallen off the bus")
            machine.fault(2, clear=True)
            while json.loads(process.stdout.readline())[2]:
                pass
        machine.fault(2, xid=31)
        machine.fault(1, temperature=99)
        assert json.loads(process.stdout.readline()) == ["", "too hot: 99 degrees", "", ""]
