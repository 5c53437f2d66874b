"""Unmodified management tools on four software GPUs, each tool in a process of its own."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import msgspec
import pytest

from milligpu.nvml.readings import GpuReading, ThrottleReason
from milligpu.softgpu.models import find_model
from milligpu.softgpu.names import CONTROL, SOCKET_VARIABLE
from milligpu.softgpu.start import read_state
from tests.softgpu.conftest import PROGRAM
from tests.softgpu.machine import CLIENTS, PATIENCE, Machine

TOOLS = Path(sys.executable).parent
A100, T4 = find_model("A100-40GB"), find_model("T4")
INVALID_ARGUMENT, INSUFFICIENT_SIZE, VERSION_MISMATCH = 2, 7, 25


pytestmark = pytest.mark.usefixtures("sound")


def test_idle_gpus_report_what_their_models_say(machine: Machine) -> None:
    gpus = machine.ask()
    assert [gpu["name"] for gpu in gpus] == [A100.name] * 2 + [T4.name] * 2
    assert len({gpu["uuid"] for gpu in gpus}) == len({gpu["serial"] for gpu in gpus}) == 4
    assert [gpu["bus"] for gpu in gpus] == [f"00000000:0{bus}:00.0" for bus in range(1, 5)]
    first, last = gpus[0], gpus[3]
    assert first["memory"] == [A100.memory, A100.memory, 0]
    assert first["memory_v2"] == A100.memory
    assert (first["capability"], first["cores"], first["pcie"]) == ([8, 0], 6912, [4, 16])
    assert (first["mig"], last["mig"]) == ([0, 0], "NVMLError_NotSupported")
    assert (first["instance"], last["instance"]) == ("NVMLError_NotFound",) * 2
    assert first["fan"] == "NVMLError_NotSupported"
    assert first["ecc"] == [1, 1]
    assert (first["utilization"], first["processes"], first["graphics"]) == ([0, 0], {}, [])
    assert first["power_range"] == [100_000, 400_000]
    assert (first["power"], first["power_limit"]) == (A100.power.idle, A100.power.default)
    assert (first["state"], first["reasons"]) == (8, 1)
    assert first["clock"] < first["clock_max"] == 1410
    assert first["fields"] == [0, 0, 0, 3]
    assert (first["power_sample"], first["clocks"]) == (A100.power.idle, [1410, 1395])
    assert first["energy"] >= first["energy_field"] > 0


def test_nvml_reports_the_links_and_distances_of_the_layout(machine: Machine) -> None:
    gpus = machine.ask()
    assert gpus[0]["nvlinks"] == [1] * 12 + [0] * 6
    assert gpus[0]["nvlink_peer"] == gpus[1]["bus"]
    assert set(gpus[2]["nvlinks"]) == {"NVMLError_NotSupported"}
    assert gpus[0]["ancestors"] == [0, 10, 40, 40]
    assert gpus[3]["ancestors"] == [40, 40, 10, 0]
    assert gpus[0]["affinity"][0] & 1


def test_a_busy_process_shows_in_utilization_power_clocks_and_samples(machine: Machine) -> None:
    with machine.program("busy.py", "1", "300") as process:
        machine.until(lambda: machine.ask()[1]["temperature"] > A100.heat.idle)
        gpu, idle = machine.ask()[1], machine.ask()[0]
        held = (300 << 20) + A100.context_memory
        assert gpu["processes"] == {str(process.pid): held}
        assert gpu["memory"] == [A100.memory, A100.memory - held, held]
        assert gpu["utilization"][0] > 0
        assert gpu["process_utilization"][str(process.pid)] > 0
        assert gpu["power"] > idle["power"]
        assert (gpu["state"], gpu["clock"]) == (0, 1410)
        assert gpu["reasons"] & 1 == 0
        assert (idle["utilization"][0], idle["processes"]) == (0, {})
        listed = json.loads(machine.run(PROGRAM, "gpu", "list", "-o", "json").stdout)
        assert [each["pid"] for each in listed[1]["processes"]] == [process.pid]
        assert listed[1]["memory_used_mib"] == held >> 20
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert machine.ask()[1]["processes"] == {}


def test_time_without_a_cpu_is_no_time_of_the_gpu(machine: Machine) -> None:
    """A kernel of a software GPU is slow on a busy CPU; an audit would take that for use beyond the limit."""
    with contextlib.ExitStack() as stack:
        process = stack.enter_context(machine.program("busy.py", "1", "10"))
        hog = [sys.executable, "-c", "while True: pass"]
        others = [stack.enter_context(subprocess.Popen(hog)) for _ in range(4)]
        for each in others:
            stack.callback(each.kill)
        cpu = min(os.sched_getaffinity(0))
        threads = [int(each.name) for each in Path(f"/proc/{process.pid}/task").iterdir()]
        for pid in (*threads, *(each.pid for each in others)):
            os.sched_setaffinity(pid, {cpu})

        def times() -> tuple[float, float]:
            fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
            state = read_state(Path(machine.environment[SOCKET_VARIABLE]))
            (busy,) = (each["busy_ns"] for each in state[1]["processes"])
            return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK"), busy / 1e9

        worked, busy = times()
        machine.until(lambda: times()[0] > worked + 1)
        worked_later, busy_later = times()
        assert 0.4 * (worked_later - worked) < busy_later - busy < worked_later - worked + 0.8


def test_copies_show_as_pcie_traffic(machine: Machine) -> None:
    with machine.program("busy.py", "0", "64", "copy"):
        machine.until(lambda: machine.ask()[0]["pcie_received"] > 0)
        gpu = machine.ask()[0]
        assert gpu["pcie_sent"] == 0
        assert gpu["utilization"][1] > 0


def test_accounting_reports_processes_that_ended(machine: Machine) -> None:
    assert machine.ask("accounting", "on") == []
    with machine.program("busy.py", "0", "32") as process:
        machine.until(lambda: bool(machine.ask("accounting", "on")))
        (life,) = machine.ask("accounting", "on")
        assert (life["pid"], life["isRunning"], life["time"]) == (process.pid, 1, 0)
    machine.until(lambda: not machine.ask("accounting", "on")[0]["isRunning"])
    (life,) = machine.ask("accounting", "off")
    assert life["time"] > 0
    assert life["gpuUtilization"] > 0
    assert life["maxMemoryUsage"] == (32 << 20) + A100.context_memory


def test_an_illegal_address_in_a_kernel_raises_the_application_xid(machine: Machine) -> None:
    with machine.program("nvml.py", "events") as watcher, machine.program("busy.py", "3", "1", "wild") as culprit:
        assert culprit.stdout is not None
        assert watcher.stdout is not None
        assert culprit.stdout.readline().strip() == "700"
        event = json.loads(watcher.stdout.readline())
        assert (event["index"], event["xid"]) == (3, 31)
    assert json.loads(machine.run(PROGRAM, "gpu", "list", "-o", "json").stdout)[3]["health"] == "ok"


def test_only_root_changes_nvml_settings(machine: Machine) -> None:
    found = machine.ask("settings")
    assert found == {"least": True, "too much": "NVMLError_InvalidArgument", "persistence": 1, "other user": 0}


def test_garbage_on_the_sockets_does_not_affect_other_clients(machine: Machine) -> None:
    folder = Path(machine.environment[SOCKET_VARIABLE])
    requests = [bytes([kind, 0, 0, 0, size, 0, 0, 0]) + b"x" * size for kind in range(60, 75) for size in (0, 3, 8)]
    for rubbish in [b"", b"\xff" * 100, b"[1]", b'{"gpu": 1}', b'{"gpu": "0", "xid": {}}', *requests]:
        for name in ("gpu0.sock", CONTROL):
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(PATIENCE)
                connection.connect(str(folder / name))
                connection.sendall(rubbish)
                connection.shutdown(socket.SHUT_WR)
                with contextlib.suppress(ConnectionError):
                    while connection.recv(1 << 16):
                        pass
    assert len(machine.ask()) == 4


def test_invalid_nvml_calls_return_the_drivers_errors(machine: Machine) -> None:
    with machine.program("busy.py", "0", "1"):
        assert machine.ask("wrong") == {
            "before init": "NVMLError_Uninitialized",
            "init counts": 4,
            "no such index": "NVMLError_InvalidArgument",
            "no such uuid": "NVMLError_NotFound",
            "no such bus": "NVMLError_NotFound",
            "by bus in short": True,
            "handle null": INVALID_ARGUMENT,
            "handle number": INVALID_ARGUMENT,
            "handle inside": INVALID_ARGUMENT,
            "small buffer": INSUFFICIENT_SIZE,
            "null answer": INVALID_ARGUMENT,
            "short list": INSUFFICIENT_SIZE,
            "its length": 1,
            "old structure": VERSION_MISMATCH,
            "sensor": "NVMLError_InvalidArgument",
            "clock": "NVMLError_InvalidArgument",
            "link": "NVMLError_InvalidArgument",
            "event set": INVALID_ARGUMENT,
            "power limit": "NVMLError_InvalidArgument",
            "unwritten": "NVMLError_NotSupported",
            "words": "GPU is lost",
            "child of fork": 0,
            "and its parent": 0,
            "after shutdown": "NVMLError_Uninitialized",
            "one too many": "NVMLError_Uninitialized",
        }


def test_an_xid_event_arrives_and_a_lost_gpu_is_lost_for_all_processes(machine: Machine) -> None:
    with machine.program("nvml.py", "events") as process:
        assert process.stdout is not None
        machine.fault(2, xid=79)
        event = json.loads(process.stdout.readline())
        expected = {"nothing": "NVMLError_Timeout", "index": 2, "type": 8, "xid": 79, "instance": 0xFFFFFFFF}
        assert event == expected
        machine.fault(1, lost=True)
        assert json.loads(process.stdout.readline()) == expected | {
            "loss": 79,
            "lost": "NVMLError_GpuIsLost",
            "name": "NVMLError_GpuIsLost",
            "handle": "NVMLError_GpuIsLost",
            "other": A100.name,
            "count": 4,
        }


def test_a_lost_gpu_fails_its_programs_and_works_again_after_clear(machine: Machine) -> None:
    with machine.program("busy.py", "3", "10") as process:
        assert process.stdout is not None
        machine.fault(3, lost=True)
        assert process.stdout.readline().strip() == "999"
        listed = json.loads(machine.run(PROGRAM, "gpu", "list", "-o", "json").stdout)
        assert [gpu["health"] for gpu in listed] == ["ok", "ok", "ok", "unhealthy"]
        assert "lost" in listed[3]["reason"]
        machine.fault(3, clear=True)
    with machine.program("busy.py", "3", "10"):
        pass
    assert machine.ask()[3]["memory"][2] == 0


def test_ecc_errors_fail_programs_with_their_own_code(machine: Machine) -> None:
    with machine.program("busy.py", "0", "10") as process, machine.program("busy.py", "1", "10") as other:
        assert process.stdout is not None
        machine.fault(0, ecc=2)
        assert process.stdout.readline().strip() == "214"
        assert machine.ask()[0]["ecc_errors"] == 2
        assert other.poll() is None
    machine.fault(0, clear=True)
    assert machine.ask()[0]["ecc_errors"] == 0


def test_temperature_and_throttling_faults_show_immediately(machine: Machine) -> None:
    with machine.program("busy.py", "2", "10"):
        machine.until(lambda: machine.ask()[2]["state"] == 0)
        machine.fault(2, temperature=95)
        hot = machine.ask()[2]
        assert (hot["temperature"], hot["reasons"] & 0x40) == (95, 0x40)
        assert hot["clock"] < hot["clock_max"]
        machine.fault(2, clear=True)
        machine.fault(2, throttle="power")
        held = machine.ask()[2]
        assert (held["reasons"] & 0x4, held["reasons"] & 0x40) == (4, 0)
        assert held["clock"] < held["clock_max"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["9", "--lost"], "gpu: invalid value '9': must be one of 0, 1, 2, 3"),
        (["GPU-none", "--lost"], "gpu: invalid value 'GPU-none'"),
        (["0", "--xid", "many"], "xid: invalid value 'many': must be a whole number"),
        (["0", "--throttle", "mood"], "must be one of power, thermal, power-brake"),
        (["0"], "required: at least one of"),
    ],
)
def test_an_invalid_fault_is_refused_with_the_allowed_values(
    machine: Machine, arguments: list[str], words: str
) -> None:
    done = machine.run(PROGRAM, "softgpu", "fault", *arguments)
    assert done.returncode == 2
    assert words in done.stderr


def test_faults_are_injected_and_cleared_by_the_command(machine: Machine) -> None:
    def fault(*options: str) -> None:
        assert machine.run(PROGRAM, "softgpu", "fault", "1", *options).returncode == 0

    fault("--ecc", "3", "--throttle", "power", "--temperature", "90")
    gpu = machine.ask()[1]
    assert (gpu["ecc_errors"], gpu["temperature"], gpu["reasons"] & 4) == (3, 90, 4)
    fault("--clear")
    assert machine.ask()[1]["temperature"] < 90
    fault("--lost")
    assert "lost" in machine.run(PROGRAM, "gpu", "list").stdout.splitlines()[2]
    fault("--clear")


def counters(machine: Machine, gpu: int) -> GpuReading:
    """What our own reader makes of a GPU, in a process of its own."""
    code = "import msgspec, sys; from milligpu.nvml.gpus import NvmlGpus; "
    code += "sys.stdout.buffer.write(msgspec.json.encode(NvmlGpus().read()[int(sys.argv[1])]))"
    done = machine.run(sys.executable, "-c", code, str(gpu))
    assert done.returncode == 0, done.stderr
    return msgspec.json.decode(done.stdout, type=GpuReading)


def test_copies_between_gpus_count_on_their_nvlinks_and_copies_from_the_host_on_pcie(machine: Machine) -> None:
    before = [counters(machine, gpu) for gpu in (0, 1)]
    done = machine.run(sys.executable, CLIENTS / "peers.py", str(8 << 20), str(4 << 20))
    assert done.returncode == 0, done.stderr
    sender, receiver = (counters(machine, gpu) for gpu in (0, 1))
    assert (sender.nvlink_sent_kib or 0) - (before[0].nvlink_sent_kib or 0) == 8192
    assert (receiver.nvlink_received_kib or 0) - (before[1].nvlink_received_kib or 0) == 8192
    assert sender.nvlink_received_kib == before[0].nvlink_received_kib
    assert (sender.pcie_received_bytes or 0) - (before[0].pcie_received_bytes or 0) == 4 << 20
    assert sender.pcie_sent_bytes == before[0].pcie_sent_bytes


def test_a_gpu_without_nvlink_reports_no_nvlink_counter_instead_of_0(machine: Machine) -> None:
    assert counters(machine, 2).nvlink_sent_kib is None


def test_faults_show_as_replays_video_engines_remapped_rows_and_time_lost(machine: Machine) -> None:
    def fault(*options: str) -> None:
        assert machine.run(PROGRAM, "softgpu", "fault", "0", *options).returncode == 0

    replays = counters(machine, 0).pcie_replays or 0
    fault("--replays", "7", "--encoder", "30", "--decoder", "20", "--ecc", "1", "--throttle", "power")
    machine.until(lambda: (counters(machine, 0).vitals.throttled_ns or {}).get(ThrottleReason.POWER, 0) > 0)
    found = counters(machine, 0)
    assert (found.pcie_replays, found.encoder, found.decoder) == (replays + 7, 30, 20)
    assert found.remapped_rows is not None
    assert found.remapped_rows.pending
    assert (found.vitals.throttled_ns or {})[ThrottleReason.THERMAL] == 0
    fault("--clear")
    assert (counters(machine, 0).encoder, counters(machine, 0).pcie_replays) == (0, replays + 7)


def test_a_fault_can_name_a_gpu_by_uuid(machine: Machine) -> None:
    uuid = machine.ask()[1]["uuid"]
    assert machine.run(PROGRAM, "softgpu", "fault", uuid, "--temperature", "88").returncode == 0
    assert [gpu["temperature"] == 88 for gpu in machine.ask()] == [False, True, False, False]


def test_nvitop_shows_gpus_and_processes(machine: Machine) -> None:
    with machine.program("busy.py", "0", "100") as process:
        shown = machine.run(TOOLS / "nvitop", "--once", "--ascii").stdout
        assert shown.count("A100-SXM4-40GB") == shown.count("Tesla T4") == 2
        assert str(process.pid) in shown


def test_gpustat_shows_gpus_even_if_one_is_lost(machine: Machine) -> None:
    with machine.program("busy.py", "0", "100") as process:
        gpus = json.loads(machine.run(TOOLS / "gpustat", "--json").stdout)["gpus"]
        assert [gpu["name"] for gpu in gpus] == [A100.name] * 2 + [T4.name] * 2
        assert [each["pid"] for each in gpus[0]["processes"]] == [process.pid]
        assert gpus[0]["memory.used"] == 100 + (A100.context_memory >> 20)
    machine.fault(3, lost=True)
    assert "lost" in machine.run(TOOLS / "gpustat", "--no-color").stdout


def test_a_prometheus_exporter_reports_load_per_gpu_and_process(machine: Machine) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [TOOLS / "nvitop-exporter", "--bind-address", "127.0.0.1", "--port", str(port)]
    with (
        machine.program("busy.py", "2", "100") as process,
        subprocess.Popen(
            command, env=machine.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as exporter,
    ):
        try:
            machine.until(lambda: _sample(port, "process_gpu_sm_utilization", f'pid="{process.pid}"') > 0)
            assert _sample(port, "gpu_utilization", 'index="2"') > 0
            assert _sample(port, "gpu_memory_used", 'index="2"') == 100 + (T4.context_memory >> 20)
            assert _sample(port, "gpu_temperature", 'index="2"') >= T4.heat.idle
        finally:
            exporter.kill()


def _sample(port: int, name: str, label: str) -> float:
    """One value that the exporter serves; 0 while it has none."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE) as answer:
            lines = answer.read().decode().splitlines()
    except OSError:
        return 0.0
    return next((float(line.split()[-1]) for line in lines if line.startswith(name) and label in line), 0.0)


def test_gpu_list_prints_a_table_names_and_the_topology(machine: Machine) -> None:
    table = machine.run(PROGRAM, "gpu", "list", "-o", "wide").stdout.splitlines()
    assert table[0].split() == [
        *["GPU", "NAME", "UUID", "MEMORY", "UTIL", "TEMP", "HEALTH"],
        *["POWER", "CLOCK", "NUMA", "CC", "DRIVER", "CUDA", "LINKS", "PROCESSES"],
    ]
    assert "NV12,NODE,NODE" in table[1]
    driver, cuda = table[1].split()[-4:-2]
    assert machine.ask()[0]["driver"] == [driver, 1000 * int(cuda.split(".")[0]) + 10 * int(cuda.split(".")[1])]
    names = machine.run(PROGRAM, "gpu", "list", "-o", "name").stdout.split()
    assert names == [gpu["uuid"] for gpu in machine.ask()]


def test_gpu_list_without_a_driver_prints_a_hint() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
    done = subprocess.run([PROGRAM, "gpu", "list"], capture_output=True, text=True, env=environment, check=False)
    if "NVML Shared Library Not Found" in done.stderr:
        assert (done.returncode, "softgpu" in done.stderr) == (125, True)
