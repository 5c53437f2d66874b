"""`milligpu gpu`: the GPUs of this machine, and an admin's word about those of a cluster."""

from dataclasses import dataclass

import click

from milligpu.cli.output import Format, format_option, show_data, show_table
from milligpu.devices.cards import Cards
from milligpu.devices.health import Health, Record, judge, note_observation
from milligpu.devices.reading import Lost, Observation, Reading
from milligpu.model.gpu import Gpu


@dataclass(frozen=True, slots=True)
class _Row:
    gpu: Gpu | None
    seen: Observation
    health: Health


@click.group()
def command() -> None:
    """The GPUs of this machine, and single ones of the cluster."""


@command.command("list")
@format_option(Format.TABLE, Format.WIDE, Format.JSON, Format.YAML, Format.NAME)
def list_(output: Format) -> None:
    """List the GPUs: memory, utilisation, temperature, health."""
    with Cards() as cards:
        gpus = {gpu.uuid: gpu for gpu in cards.gpus()}
        rows = [_Row(gpus.get(seen.uuid), seen, _health(seen)) for seen in cards.read()]
    match output:
        case Format.NAME:
            click.echo("\n".join(row.seen.uuid for row in rows if row.seen.uuid))
        case Format.JSON | Format.YAML:
            show_data([_data(row) for row in rows], output)
        case _:
            _show(rows, wide=output is Format.WIDE)


@command.command()
@click.argument("gpu")
@click.option("--reason", default="cordoned by an admin", show_default=True, help="Shown to whoever waits for it.")
@click.option("--kubeconfig", metavar="FILE", help="Default: as kubectl.")
def cordon(gpu: str, reason: str, kubeconfig: str | None) -> None:
    """Take one GPU of the cluster out of use, by its UUID; who holds a share of it keeps it."""
    from milligpu.cli.orders import change_orders

    node = change_orders(gpu, lambda orders, uuid: orders.cordon(uuid, reason), kubeconfig)
    click.echo(f"{gpu} on {node}: cordoned")


@command.command()
@click.argument("gpu")
@click.option("--kubeconfig", metavar="FILE", help="Default: as kubectl.")
def uncordon(gpu: str, kubeconfig: str | None) -> None:
    """Take a GPU of the cluster into use again, whether it was cordoned or is held to be sick after an error."""
    from milligpu.cli.orders import change_orders, moment

    node = change_orders(gpu, lambda orders, uuid: orders.uncordon(uuid, moment()), kubeconfig)
    click.echo(f"{gpu} on {node}: in use again")


def _health(seen: Observation) -> Health:
    """What one look can tell; XIDs are known to an agent that was there when they came."""
    return judge(note_observation(Record(), seen, now=0.0))


def _show(rows: list[_Row], *, wide: bool) -> None:
    columns = ["GPU", "NAME", "UUID", "MEMORY", "UTIL", "TEMP", "HEALTH"]
    extra = ["POWER", "CLOCK", "NUMA", "CC", "LINKS", "PROCESSES"] if wide else []
    cells = [_cells(row) + (_wide_cells(row) if wide else []) for row in rows]
    show_table(columns + extra, cells, right=["MEMORY", "UTIL", "TEMP", "POWER", "CLOCK", "NUMA"])


def _cells(row: _Row) -> list[str]:
    name = row.gpu.model if row.gpu else "-"
    health = f"{row.health.state}: {row.health.reason}" if row.health.reason else str(row.health.state)
    if isinstance(row.seen, Lost):
        return [str(row.seen.index), name, row.seen.uuid or "-", "-", "-", "-", health]
    seen = row.seen
    memory = f"{seen.memory_used} / {seen.memory_total} MiB"
    return [
        str(seen.index),
        name,
        seen.uuid,
        memory,
        _shown(seen.utilisation, "%"),
        _shown(seen.temperature, "C"),
        health,
    ]


def _wide_cells(row: _Row) -> list[str]:
    if isinstance(row.seen, Lost) or row.gpu is None:
        return ["-"] * 6
    seen, gpu = row.seen, row.gpu
    watts = None if seen.milliwatts is None else seen.milliwatts // 1000
    return [
        _shown(watts, "W"),
        _shown(seen.clock_mhz, "MHz"),
        str(gpu.numa),
        str(gpu.capability),
        ",".join(str(link) for link in gpu.links.values()) or "-",
        ",".join(str(process.pid) for process in seen.processes) or "-",
    ]


def _shown(value: int | None, unit: str) -> str:
    return "-" if value is None else f"{value}{unit}"


def _data(row: _Row) -> dict[str, object]:
    data: dict[str, object] = {"index": row.seen.index, "uuid": row.seen.uuid or None}
    if row.gpu:
        data |= {
            "name": row.gpu.model,
            "numa": row.gpu.numa,
            "capability": str(row.gpu.capability),
            "ecc": row.gpu.ecc,
            "links": {uuid: str(link) for uuid, link in row.gpu.links.items()},
        }
    data |= {"health": str(row.health.state), "reason": row.health.reason or None}
    return data | _readings(row.seen) if isinstance(row.seen, Reading) else data


def _readings(seen: Reading) -> dict[str, object]:
    return {
        "memory_total_mib": seen.memory_total,
        "memory_used_mib": seen.memory_used,
        "utilisation_percent": seen.utilisation,
        "memory_utilisation_percent": seen.memory_utilisation,
        "temperature_celsius": seen.temperature,
        "power_milliwatts": seen.milliwatts,
        "power_limit_milliwatts": seen.milliwatts_limit,
        "energy_millijoules": seen.millijoules,
        "clock_mhz": seen.clock_mhz,
        "memory_clock_mhz": seen.memory_clock_mhz,
        "throttled": sorted(seen.throttled),
        "ecc_corrected": seen.ecc_corrected,
        "ecc_uncorrected": seen.ecc_uncorrected,
        "processes": [
            {"pid": each.pid, "memory_mib": each.memory, "utilisation_percent": each.utilisation}
            for each in seen.processes
        ],
    }
