"""`milligpu softgpu`: software GPUs, for machines without a GPU and for tests."""

import json
import math
import os
import tempfile
from pathlib import Path

import click
from click.core import ParameterSource

from milligpu.cli.gpu_uuid import find_uuid
from milligpu.cli.output import CommandRefused, OutputFormat, format_option, show_data, show_table
from milligpu.cli.replace_process import replace_process
from milligpu.model.errors import BadRequest
from milligpu.model.units import parse_size_with_unit
from milligpu.native import library
from milligpu.softgpu.faults import parse_fault
from milligpu.softgpu.fleet import GPUS_MAX, describe, read_fleet
from milligpu.softgpu.models import DEFAULT_MODEL
from milligpu.softgpu.names import SOCKET_VARIABLE
from milligpu.softgpu.start import (
    SoftgpuPaths,
    SoftgpuSpec,
    client_environment,
    inject_fault,
    is_running,
    read_state,
    start_daemon,
    stop_daemon,
)


def _read_size(_ctx: click.Context, _param: click.Parameter, value: str | None) -> int | None:
    return None if value is None else parse_size_with_unit("--memory", value) << 20


def _read_model(_ctx: click.Context, _param: click.Parameter, value: str) -> str:
    read_fleet(value)
    return str(Path(value).absolute()) if value.endswith(".toml") else value


def _folder() -> Path:
    """Directory of the software GPUs in this environment, or else of those that `up` started."""
    seen = os.environ.get(SOCKET_VARIABLE)
    return Path(seen) if seen else SoftgpuPaths.from_env(os.environ).folder


def _read_speed(ctx: click.Context, param: click.Parameter, value: float) -> float:
    given = ctx.get_parameter_source(param.name or "") is not ParameterSource.DEFAULT
    if given and not (value > 0 and math.isfinite(value)):
        raise BadRequest("--speed", str(value), "a positive number such as 1 or 0.5")
    return value


def _fleet_options(function: click.decorators.FC) -> click.decorators.FC:
    options = [
        click.option(
            "--devices",
            type=click.IntRange(1, GPUS_MAX),
            metavar="COUNT",
            help="Number of GPUs (default: 1, or as in --model).",
        ),
        click.option(
            "--memory",
            metavar="SIZE",
            callback=_read_size,
            help="Memory of each GPU, such as 4Gi (default: that of the model).",
        ),
        click.option(
            "--model",
            default=DEFAULT_MODEL,
            show_default=True,
            metavar="MODEL",
            callback=_read_model,
            help="Model of the GPUs: a name, several such as A100-40GBx2,T4x2, or a .toml file.",
        ),
        click.option(
            "--speed",
            type=float,
            default=0.0,
            metavar="X",
            callback=_read_speed,
            help="Kernels take as long as on the modeled GPU, divided by X (default: as long as the CPU needs).",
        ),
    ]
    for option in reversed(options):
        function = option(function)
    return function


@click.group()
def command() -> None:
    """Run unmodified CUDA programs on software GPUs, which compute on the CPU."""


@command.command("exec", context_settings={"allow_interspersed_args": False})
@_fleet_options
@click.argument("argv", nargs=-1, required=True, type=click.UNPROCESSED, metavar="[--] COMMAND…")
def exec_(devices: int | None, memory: int | None, model: str, speed: float, argv: tuple[str, ...]) -> int:
    """Run a command on software GPUs of its own.

    The GPUs stop when the command ends. The command replaces this process, so it has its own exit code, signals and
    terminal.
    """
    places = SoftgpuPaths.from_env(os.environ)
    folder = Path(tempfile.mkdtemp(prefix="milligpu-softgpu-"))
    start_daemon(folder, places.cache, SoftgpuSpec(devices, model, memory, speed), watch=os.getpid())
    environment = {**os.environ, **client_environment(folder, os.environ)}
    return replace_process(argv, environment)


@command.command()
@_fleet_options
def up(devices: int | None, memory: int | None, model: str, speed: float) -> None:
    """Start software GPUs that run until `milligpu softgpu down`."""
    places = SoftgpuPaths.from_env(os.environ)
    if is_running(places.folder):
        raise CommandRefused("software GPUs are already running", hint="stop them with: milligpu softgpu down")
    start_daemon(places.folder, places.cache, SoftgpuSpec(devices, model, memory, speed))
    click.echo(f"{describe(read_fleet(model, devices))}; use with: eval $(milligpu softgpu env)")


@command.command()
def down() -> None:
    """Stop the software GPUs that `up` started."""
    stop_daemon(SoftgpuPaths.from_env(os.environ).folder)


@command.command()
def env() -> None:
    """Print the environment for programs, as shell commands.

    With it, programs find the software GPUs that `up` started.
    """
    folder = SoftgpuPaths.from_env(os.environ).folder
    read_state(folder)
    for name, value in client_environment(folder, os.environ).items():
        click.echo(f"export {name}='{value}'")


@command.command()
@format_option(OutputFormat.TABLE, OutputFormat.JSON, OutputFormat.YAML)
def status(output: OutputFormat) -> None:
    """Show the running software GPUs and their processes."""
    gpus = read_state(_folder())
    if output is not OutputFormat.TABLE:
        show_data(gpus, output)
        return
    rows = [
        [
            str(gpu["index"]),
            gpu["name"],
            gpu["uuid"],
            f"{gpu['used'] >> 20} / {gpu['memory'] >> 20} MiB",
            ", ".join(str(process["pid"]) for process in gpu["processes"]) or "-",
        ]
        for gpu in gpus
    ]
    show_table(["GPU", "NAME", "UUID", "MEMORY", "PROCESSES"], rows, right=["MEMORY"])
    for gpu in gpus:
        if late := gpu["late"]["launches"]:
            worst = gpu["late"]["worst_ns"] / 1e6
            click.echo(f"GPU {gpu['index']}: the CPU was too slow for {late} launches, by up to {worst:.1f} ms")


@command.command()
@click.argument("gpu", metavar="GPU")
@click.option("--xid", metavar="NUMBER", help="Raise this XID error, such as 79.")
@click.option("--ecc", metavar="COUNT", help="Add this many uncorrectable memory errors.")
@click.option("--temperature", metavar="CELSIUS", help="Temperature to report, in degrees Celsius.")
@click.option("--throttle", metavar="REASON", help="Throttle the clocks: power, thermal or power-brake.")
@click.option("--replays", metavar="COUNT", help="Add this many replays of the PCIe link.")
@click.option("--encoder", metavar="PERCENT", help="Utilization of the video encoder to report.")
@click.option("--decoder", metavar="PERCENT", help="Utilization of the video decoder to report.")
@click.option("--lost", is_flag=True, help="Let the GPU fall off the bus.")
@click.option("--clear", is_flag=True, help="Clear all faults of the GPU; CUDA contexts that failed stay failed.")
def fault(gpu: str, **asked: object) -> None:
    """Inject a fault into a software GPU, given by index or UUID.

    All processes see it immediately. A unique beginning of the UUID is enough, with or without GPU-.
    """
    wanted = {name: value for name, value in asked.items() if value not in (None, False)}
    parse_fault(wanted)
    folder = _folder()
    if not (gpu.isdigit() and int(gpu) < GPUS_MAX):
        gpu = find_uuid(gpu, (each["uuid"] for each in read_state(folder)))
    inject_fault(folder, gpu, wanted)


@command.command()
@click.option("--missing", is_flag=True, help="List only missing functions.")
@click.option("--nvml", is_flag=True, help="List the functions of NVML instead.")
@format_option(OutputFormat.TABLE, OutputFormat.JSON, OutputFormat.YAML)
def coverage(missing: bool, nvml: bool, output: OutputFormat) -> None:
    """List which CUDA functions the software GPU implements.

    Lists all functions of the CUDA driver API, or of NVML.
    """
    found = json.loads(library("softgpu/nvml-coverage.json" if nvml else "softgpu/coverage.json").read_text())
    symbols = {name: state for name, state in found["symbols"].items() if not missing or state == "missing"}
    if output is not OutputFormat.TABLE:
        show_data({**found, "symbols": symbols}, output)
        return
    show_table(["FUNCTION", "STATE"], [[name, state] for name, state in symbols.items()])
    states = list(found["symbols"].values())
    if nvml:
        click.echo(
            f"\nNVML {found['nvml']}: {len(states)} functions, {states.count('implemented')} implemented, "
            f"{states.count('missing')} missing (these return NVML_ERROR_NOT_SUPPORTED)"
        )
        return
    click.echo(
        f"\nCUDA {found['cuda'] // 1000}.{found['cuda'] % 1000 // 10}: {len(states)} functions, "
        f"{states.count('implemented')} implemented, {states.count('variant')} variants of these for per-thread "
        f"streams, {states.count('missing')} missing (these return CUDA_ERROR_NOT_SUPPORTED)"
    )
