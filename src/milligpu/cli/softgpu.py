"""`milligpu softgpu`: GPUs in software, for machines that have none and for tests."""

import json
import math
import os
import tempfile
from pathlib import Path

import click
from click.core import ParameterSource

from milligpu.cli.become import become
from milligpu.cli.output import Format, format_option, show_data, show_table
from milligpu.model.errors import BadRequest
from milligpu.model.units import parse_size
from milligpu.native import library
from milligpu.softgpu.faults import parse_fault
from milligpu.softgpu.fleet import CARDS_MAX, describe, read_fleet
from milligpu.softgpu.models import DEFAULT_MODEL
from milligpu.softgpu.names import SOCKET_VARIABLE
from milligpu.softgpu.start import (
    Fleet,
    Places,
    client_environment,
    inject_fault,
    is_running,
    read_state,
    start_daemon,
    stop_daemon,
)


def _read_size(_ctx: click.Context, _param: click.Parameter, value: str | None) -> int | None:
    return None if value is None else parse_size("memory", value) << 20


def _read_model(_ctx: click.Context, _param: click.Parameter, value: str) -> str:
    read_fleet(value)
    return str(Path(value).absolute()) if value.endswith(".toml") else value


def _folder() -> Path:
    """Of the cards that this environment sees, or else of those that `up` started."""
    seen = os.environ.get(SOCKET_VARIABLE)
    return Path(seen) if seen else Places.from_env(os.environ).folder


def _read_speed(ctx: click.Context, param: click.Parameter, value: float) -> float:
    given = ctx.get_parameter_source(param.name or "") is not ParameterSource.DEFAULT
    if given and not (value > 0 and math.isfinite(value)):
        raise BadRequest("speed", str(value), "a positive number, such as 1 or 0.5")
    return value


def _fleet_options(function: click.decorators.FC) -> click.decorators.FC:
    options = [
        click.option(
            "--devices",
            type=click.IntRange(1, CARDS_MAX),
            help="How many, unless --model says. [default: 1]",
        ),
        click.option(
            "--memory", metavar="SIZE", callback=_read_size, help="Of each, such as 4Gi. [default: the model's]"
        ),
        click.option(
            "--model",
            default=DEFAULT_MODEL,
            show_default=True,
            callback=_read_model,
            help="What they say they are; A100-40GBx2,T4x2 or a .toml file for several kinds.",
        ),
        click.option(
            "--speed",
            type=float,
            default=0.0,
            metavar="X",
            callback=_read_speed,
            help="Modelled time: launches take as long as on the modelled card, divided by X. [default: real time]",
        ),
    ]
    for option in reversed(options):
        function = option(function)
    return function


@click.group()
def command() -> None:
    """GPUs in software: unmodified CUDA programs run on the CPU."""


@command.command("exec", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@_fleet_options
@click.argument("argv", nargs=-1, required=True, type=click.UNPROCESSED, metavar="[--] COMMAND…")
def exec_(devices: int | None, memory: int | None, model: str, speed: float, argv: tuple[str, ...]) -> int:
    """Run a command on software GPUs of its own; they end with it.

    The command takes the place of this process: its exit code, signals and terminal are its own.
    """
    places = Places.from_env(os.environ)
    folder = Path(tempfile.mkdtemp(prefix="milligpu-softgpu-"))
    start_daemon(folder, places.cache, Fleet(devices, model, memory, speed), watch=os.getpid())
    environment = {**os.environ, **client_environment(folder, os.environ)}
    return become(argv, environment)


@command.command()
@_fleet_options
def up(devices: int | None, memory: int | None, model: str, speed: float) -> None:
    """Start software GPUs that stay until `down`."""
    places = Places.from_env(os.environ)
    if is_running(places.folder):
        raise BadRequest(
            "softgpu", "up", "no software GPU yet", hint="end the running one with: milligpu softgpu down"
        )
    start_daemon(places.folder, places.cache, Fleet(devices, model, memory, speed))
    click.echo(f"{describe(read_fleet(model, devices))}; use with: eval $(milligpu softgpu env)")


@command.command()
def down() -> None:
    """End the software GPUs that `up` started."""
    stop_daemon(Places.from_env(os.environ).folder)


@command.command()
def env() -> None:
    """Print what to export so that programs find the GPUs that `up` started."""
    folder = Places.from_env(os.environ).folder
    read_state(folder)
    for name, value in client_environment(folder, os.environ).items():
        click.echo(f"export {name}='{value}'")


@command.command()
@format_option(Format.TABLE, Format.JSON, Format.YAML)
def status(output: Format) -> None:
    """Show the software GPUs that `up` started, and who uses them."""
    cards = read_state(_folder())
    if output is not Format.TABLE:
        show_data(cards, output)
        return
    rows = [
        [
            str(card["index"]),
            card["name"],
            card["uuid"],
            f"{card['used'] >> 20} / {card['memory'] >> 20} MiB",
            ", ".join(str(process["pid"]) for process in card["processes"]) or "-",
        ]
        for card in cards
    ]
    show_table(["GPU", "NAME", "UUID", "MEMORY", "PROCESSES"], rows, right=["MEMORY"])
    for card in cards:
        if late := card["late"]["launches"]:
            worst = card["late"]["worst_ns"] / 1e6
            click.echo(f"GPU {card['index']}: the CPU was too late for {late} launches, at worst by {worst:.1f} ms")


@command.command()
@click.argument("gpu", metavar="GPU")
@click.option("--xid", metavar="NUMBER", help="Raise this XID error, such as 79.")
@click.option("--ecc", metavar="COUNT", help="So many uncorrectable memory errors.")
@click.option("--temperature", metavar="CELSIUS", help="Hold the sensor there.")
@click.option("--throttle", metavar="WHY", help="Hold clocks down: power, thermal or power-brake.")
@click.option("--lost", is_flag=True, help="It falls off the bus.")
@click.option("--clear", is_flag=True, help="All is well again.")
def fault(gpu: str, **asked: object) -> None:
    """Let something befall a GPU, by its number or UUID; every process sees it at once."""
    wanted = {name: value for name, value in asked.items() if value not in (None, False)}
    parse_fault(wanted)
    inject_fault(_folder(), gpu, wanted)


@command.command()
@click.option("--missing", is_flag=True, help="Only what is not there.")
@click.option("--nvml", is_flag=True, help="The management API instead.")
@format_option(Format.TABLE, Format.JSON, Format.YAML)
def coverage(missing: bool, nvml: bool, output: Format) -> None:
    """List the functions of the CUDA driver API, or of NVML, and whether the software GPU has them."""
    found = json.loads(library("softgpu/nvml-coverage.json" if nvml else "softgpu/coverage.json").read_text())
    symbols = {name: state for name, state in found["symbols"].items() if not missing or state == "missing"}
    if output is not Format.TABLE:
        show_data({**found, "symbols": symbols}, output)
        return
    show_table(["FUNCTION", "STATE"], [[name, state] for name, state in symbols.items()])
    states = list(found["symbols"].values())
    if nvml:
        click.echo(
            f"\nNVML {found['nvml']}: {len(states)} functions, {states.count('implemented')} implemented, "
            f"{states.count('missing')} missing (they answer NVML_ERROR_NOT_SUPPORTED)"
        )
        return
    click.echo(
        f"\nCUDA {found['cuda'] // 1000}.{found['cuda'] % 1000 // 10}: {len(states)} functions, "
        f"{states.count('implemented')} implemented, {states.count('variant')} variants of these for per-thread "
        f"streams, {states.count('missing')} missing (they answer CUDA_ERROR_NOT_SUPPORTED)"
    )
