"""`milligpu gpu`: the GPUs of this machine, and the settings of single GPUs of the cluster."""

import os
from contextlib import suppress
from dataclasses import dataclass

import click

from milligpu.cli.output import OutputFormat, format_option, show_data, show_table
from milligpu.model.errors import MilligpuError
from milligpu.model.gpu import Gpu, GpuState, short_uuid
from milligpu.model.policy import parse_policy
from milligpu.nvml.health import GpuHealth, assess_once
from milligpu.nvml.readings import GpuReading, LostGpu, Observation

_DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class _Row:
    gpu: Gpu | None
    reading: Observation
    health: GpuHealth


@click.group()
def command() -> None:
    """List this machine's GPUs, or change settings of single GPUs of the cluster."""


@command.command("list")
@format_option(OutputFormat.TABLE, OutputFormat.WIDE, OutputFormat.JSON, OutputFormat.YAML, OutputFormat.NAME)
def list_(output: OutputFormat) -> None:
    """List this machine's GPUs.

    Shows memory, utilization, temperature and health.
    """
    from milligpu.sessions.gpu_source import open_nvml

    known = _known_health()
    with open_nvml(os.environ) as nvml:
        gpus = {gpu.uuid: gpu for gpu in nvml.gpus()}
        rows = [
            _Row(gpus.get(reading.uuid), reading, known.get(reading.uuid) or assess_once(reading))
            for reading in nvml.read()
        ]
    match output:
        case OutputFormat.NAME:
            click.echo("\n".join(row.reading.uuid for row in rows if row.reading.uuid))
        case OutputFormat.JSON | OutputFormat.YAML:
            show_data([_data(row) for row in rows], output)
        case _:
            _show(rows, wide=output is OutputFormat.WIDE)


def _known_health() -> dict[str, GpuHealth]:
    """Health by UUID from a session service, if one runs: it remembers errors that a reading no longer shows."""
    from milligpu.sessions.client import SessionClient
    from milligpu.softgpu.names import SOCKET_VARIABLE
    from milligpu.status.machine import read_machine_status

    if SOCKET_VARIABLE in os.environ or not SessionClient(os.environ).is_running():
        return {}
    with suppress(MilligpuError):
        gpus = read_machine_status().gpus
        return {gpu.uuid: GpuHealth(GpuState(gpu.state), gpu.message) for gpu in gpus if gpu.state != GpuState.OK}
    return {}


@command.command()
@click.argument("gpu", metavar="UUID")
@click.option(
    "--reason",
    default="cordoned by an admin",
    show_default=True,
    metavar="TEXT",
    help="Shown to pods that wait for the GPU.",
)
@click.option("--kubeconfig", metavar="FILE", help="Kubeconfig of the cluster (default: as kubectl).")
def cordon(gpu: str, reason: str, kubeconfig: str | None) -> None:
    """Stop new shares on one GPU of the cluster.

    Pods that hold a share of the GPU keep it, and the node stays schedulable. A unique beginning of the UUID is
    enough, with or without GPU-.
    """
    from milligpu.cli.gpu_settings import change_gpu_settings

    uuid, node = change_gpu_settings(gpu, lambda settings, uuid: settings.cordon(uuid, reason), kubeconfig)
    click.echo(f"{uuid} on {node}: cordoned")


@command.command()
@click.argument("gpu", metavar="UUID")
@click.option("--kubeconfig", metavar="FILE", help="Kubeconfig of the cluster (default: as kubectl).")
def uncordon(gpu: str, kubeconfig: str | None) -> None:
    """Allow new shares on one GPU of the cluster again.

    Also clears past errors that made a GPU unhealthy. A GPU that still shows an error stays unhealthy. A unique
    beginning of the UUID is enough, with or without GPU-.
    """
    from milligpu.cli.gpu_settings import change_gpu_settings, gpu_when_offered, timestamp

    uuid, node = change_gpu_settings(gpu, lambda settings, uuid: settings.uncordon(uuid, timestamp()), kubeconfig)
    found = gpu_when_offered(uuid, node, kubeconfig)
    click.echo(f"{uuid} on {node}: uncordoned{_still_closed(found)}")


def _still_closed(gpu: Gpu | None) -> str:
    """Say why an uncordoned GPU gets no new shares all the same."""
    if gpu is None or gpu.state is GpuState.OK:
        return ""
    if gpu.state is GpuState.UNHEALTHY:
        return f", but it stays unhealthy: {gpu.message}; it gets new shares when this is over"
    return "; the node's agent has not confirmed it yet"


@command.command()
@click.argument("gpu", metavar="UUID|NODE")
@click.argument("policy", metavar="POLICY")
@click.option("--kubeconfig", metavar="FILE", help="Kubeconfig of the cluster (default: as kubectl).")
def policy(gpu: str, policy: str, kubeconfig: str | None) -> None:
    """Set the share policy of one GPU of the cluster, or of all GPUs of a node.

    POLICY is fixed, equal or best-effort; default returns to what the node's agent was started with. Containers
    that run on the GPU follow it within a moment. A unique beginning of the UUID is enough, with or without GPU-.
    """
    from milligpu.cli.gpu_settings import change_policy

    wanted = None if policy == _DEFAULT else parse_policy("POLICY", policy, _DEFAULT)
    for uuid, node in change_policy(gpu, wanted, kubeconfig):
        click.echo(f"{uuid} on {node}: {policy}")


def _show(rows: list[_Row], *, wide: bool) -> None:
    columns = ["GPU", "NAME", "UUID", "MEMORY", "UTIL", "TEMP", "HEALTH"]
    extra = ["POWER", "CLOCK", "NUMA", "CC", "DRIVER", "CUDA", "LINKS", "PROCESSES"] if wide else []
    cells = [_cells(row, wide=wide) + (_wide_cells(row) if wide else []) for row in rows]
    show_table(columns + extra, cells, right=["MEMORY", "UTIL", "TEMP", "POWER", "CLOCK", "NUMA"])


def _cells(row: _Row, *, wide: bool) -> list[str]:
    uuid = (row.reading.uuid if wide else short_uuid(row.reading.uuid)) or "-"
    name = row.gpu.model if row.gpu else "-"
    health = f"{row.health.state}: {row.health.message}" if row.health.message else str(row.health.state)
    if isinstance(row.reading, LostGpu):
        return [str(row.reading.index), name, uuid, "-", "-", "-", health]
    reading = row.reading
    used = "-" if reading.memory_used is None else reading.memory_used
    memory = f"{used} / {reading.memory_total} MiB"
    return [
        str(reading.index),
        name,
        uuid,
        memory,
        _shown(reading.utilization, "%"),
        _shown(reading.vitals.temperature, "C"),
        health,
    ]


def _wide_cells(row: _Row) -> list[str]:
    if isinstance(row.reading, LostGpu) or row.gpu is None:
        return ["-"] * 8
    reading, gpu = row.reading, row.gpu
    watts = None if reading.milliwatts is None else reading.milliwatts // 1000
    return [
        _shown(watts, "W"),
        _shown(reading.clock_mhz, "MHz"),
        str(gpu.numa),
        str(gpu.capability),
        str(gpu.driver or "-"),
        str(gpu.cuda or "-"),
        ",".join(str(link) for link in gpu.links.values()) or "-",
        ",".join(str(process.pid) for process in reading.processes) or "-",
    ]


def _shown(value: int | None, unit: str) -> str:
    return "-" if value is None else f"{value}{unit}"


def _percent(fraction: float | None) -> int | None:
    return None if fraction is None else round(100 * fraction)


def _data(row: _Row) -> dict[str, object]:
    data: dict[str, object] = {"index": row.reading.index, "uuid": row.reading.uuid or None}
    if row.gpu:
        data |= {
            "name": row.gpu.model,
            "numa": row.gpu.numa,
            "capability": str(row.gpu.capability),
            "driver": None if row.gpu.driver is None else str(row.gpu.driver),
            "cuda": None if row.gpu.cuda is None else str(row.gpu.cuda),
            "ecc": row.gpu.ecc,
            "links": {uuid: str(link) for uuid, link in row.gpu.links.items()},
        }
    data |= {"health": str(row.health.state), "reason": row.health.message or None}
    return data | _readings(row.reading) if isinstance(row.reading, GpuReading) else data


def _readings(reading: GpuReading) -> dict[str, object]:
    return {
        "memory_total_mib": reading.memory_total,
        "memory_used_mib": reading.memory_used,
        "utilisation_percent": reading.utilization,
        "memory_utilisation_percent": reading.memory_utilization,
        "temperature_celsius": reading.vitals.temperature,
        "power_milliwatts": reading.milliwatts,
        "power_limit_milliwatts": reading.milliwatts_limit,
        "energy_millijoules": reading.vitals.millijoules,
        "clock_mhz": reading.clock_mhz,
        "memory_clock_mhz": reading.memory_clock_mhz,
        "throttled": sorted(reading.throttled),
        "ecc_corrected": reading.ecc_corrected,
        "ecc_uncorrected": reading.vitals.ecc_uncorrected,
        "processes": [
            {"pid": each.pid, "memory_mib": each.memory, "utilisation_percent": _percent(each.utilization)}
            for each in reading.processes
        ],
    }
