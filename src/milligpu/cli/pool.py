"""`milligpu pool`: the GPU servers that clients know, and the tokens that give access to them."""

import csv
import sys
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

import click

from milligpu.cli.exit_codes import ExitCode
from milligpu.cli.output import OutputFormat, format_option, show_data, show_table
from milligpu.cli.pool_options import access_of, admin_option, folder_option
from milligpu.cli.pool_token import token
from milligpu.cli.remote_options import pool_access, remote_options
from milligpu.cli.tables import show_share
from milligpu.model.errors import MilligpuError
from milligpu.model.units import BYTES_PER_MIB, Milli, show_milli
from milligpu.remote.client import answered, drain_servers, list_gpus, read_servers
from milligpu.remote.pool import admin_access, create_pool
from milligpu.remote.protocol import GpuList, RemoteAnswer, ServerDrained, ServerStatus
from milligpu.remote.token_file import parse_server


@click.group()
def command() -> None:
    """Make and use pools of GPU servers."""


command.add_command(token)


@command.command()
@folder_option
def create(folder: Path) -> None:
    """Make a pool's authority, unless there is one. Whoever has it can make tokens: keep it as a private key."""
    create_pool(folder)
    click.echo(f"milligpu: {folder}: authority of the pool; copy the directory to each of its servers", err=True)


@command.command("list")
@remote_options
@format_option(OutputFormat.TABLE, OutputFormat.JSON, OutputFormat.YAML)
def list_command(*, servers: str | None, token_file: Path | None, plain: bool, output: OutputFormat) -> int:
    """List the GPUs of the servers, and what is free of each."""
    return show_gpus(list_gpus(pool_access(servers, token_file), plain=plain), output)


def show_gpus(found: list[tuple[str, GpuList | MilligpuError]], output: OutputFormat) -> int:
    """Print the GPUs of each server; the exit code says whether any answered."""
    show_problems(found)
    rows = [
        {
            "server": server,
            "machine": answer.machine,
            "index": gpu.index,
            "uuid": gpu.uuid,
            "model": gpu.model,
            "memory_mib": gpu.mib,
            "free": show_milli(Milli(gpu.free_milli)),
            "free_mib": gpu.free_mib,
            "state": "draining" if answer.draining and gpu.state == "ok" else gpu.state,
        }
        for server, answer in answered(found, GpuList)
        for gpu in answer.gpus
    ]
    if output is OutputFormat.TABLE:
        heads = ["SERVER", "GPU", "MODEL", "MEMORY", "FREE", "FREE MEMORY", "STATE"]
        keys = ["server", "index", "model", "memory_mib", "free", "free_mib", "state"]
        show_table(heads, [[str(row[key]) for key in keys] for row in rows])
    else:
        show_data(rows, output)
    return _exit_code(found)


def show_gpu_use(found: list[tuple[str, ServerStatus | MilligpuError]]) -> int:
    """Print what is measured of each GPU; `-` is unknown."""
    show_problems(found)
    heads = ["SERVER", "GPU", "MODEL", "TEMPERATURE", "POWER", "MEMORY", "UTILIZATION"]
    rows = [
        [
            server,
            str(gpu.index),
            gpu.model,
            "-" if gpu.temperature is None else f"{gpu.temperature} C",
            "-" if gpu.power is None else f"{gpu.power:.0f} W",
            f"{'-' if gpu.memory_used is None else gpu.memory_used // BYTES_PER_MIB} / {gpu.mib} MiB",
            "-" if gpu.utilization is None else f"{gpu.utilization:.0%}",
        ]
        for server, answer in answered(found, ServerStatus)
        for gpu in answer.status.gpus
    ]
    show_table(heads, rows)
    return _exit_code(found)


@command.command()
@remote_options
@admin_option
@click.option("--csv", "as_csv", is_flag=True, help="As comma-separated values, with the GPU time of each session.")
@format_option(OutputFormat.TABLE, OutputFormat.JSON, OutputFormat.YAML)
def sessions(
    *,
    servers: str | None,
    token_file: Path | None,
    plain: bool,
    folder: Path | None,
    as_csv: bool,
    output: OutputFormat,
) -> int:
    """List the sessions of the token's owner at all servers, or with --pool those of everybody."""
    found = read_servers(access_of(folder, servers, token_file), plain=plain)
    show_problems(found)
    rows = [row for server, answer in answered(found, ServerStatus) for row in _session_rows(server, answer)]
    if as_csv:
        columns: list[str] = list(_CSV)
        writer = csv.DictWriter(sys.stdout, columns, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    elif output is OutputFormat.TABLE:
        show_table([key.upper() for key in _TABLE], [[str(row[key]) for key in _TABLE] for row in rows])
    else:
        show_data(rows, output)
    return _exit_code(found)


_TABLE = ("server", "id", "name", "client", "gpu", "share", "measured", "since", "command")
_CSV = ("server", "id", "name", "client", "gpu", "share", "gpu_seconds", "since", "command")


def _session_rows(server: str, answer: ServerStatus) -> list[dict[str, object]]:
    """A row for each GPU of each session; a session that waits has one without a GPU."""
    index = {gpu.uuid: str(gpu.index) for gpu in answer.status.gpus}
    rows: list[dict[str, object]] = []
    for each in answer.sessions:
        shared: dict[str, object] = {
            "server": server,
            "id": each.id,
            "name": each.name,
            "client": each.client,
            "since": datetime.fromtimestamp(each.since, UTC).isoformat(timespec="seconds"),
            "command": " ".join(each.command),
        }
        uses = [use for use in answer.status.shares if each.session and use.session == each.session]
        rows += [
            {
                **shared,
                "gpu": index.get(use.gpu, use.gpu),
                "share": show_share(use),
                "measured": "-" if use.utilization is None else f"{use.utilization:.2f}",
                "gpu_seconds": "" if use.gpu_time_ns is None else f"{use.gpu_time_ns / 1e9:.3f}",
            }
            for use in uses
        ]
        if not uses:
            rows.append({**shared, "gpu": "-", "share": "waits", "measured": "-", "gpu_seconds": ""})
    return rows


@command.command()
@click.argument("server")
@folder_option
@click.option("--undo", is_flag=True, help="Let the server open sessions again.")
@click.option("--plain", is_flag=True, help="Without TLS; the server must run with --plain, too.")
def drain(*, server: str, folder: Path, undo: bool, plain: bool) -> int:
    """Let SERVER open no further sessions, also after it restarts; those that run go on.

    Commands that wait there are refused, and wait at the other servers of the pool. Local commands of that machine
    are not affected.
    """
    access = admin_access(folder, [parse_server("SERVER", server)], time.time())
    found = drain_servers(access, drain=not undo, plain=plain)
    show_problems(found)
    for name, answer in answered(found, ServerDrained):
        state = "draining" if answer.draining else "open"
        click.echo(f"{name}: {state}, {answer.sessions} sessions run")
    return _exit_code(found)


def show_problems(found: Iterable[tuple[str, RemoteAnswer | MilligpuError]]) -> None:
    """Say on stderr which servers did not answer."""
    for _server, answer in found:
        if isinstance(answer, MilligpuError):
            click.echo(f"milligpu: {answer.message}", err=True)


def _exit_code(found: Iterable[tuple[str, RemoteAnswer | MilligpuError]]) -> int:
    """Whether any server answered."""
    return ExitCode.OK if any(isinstance(each, RemoteAnswer) for _, each in found) else ExitCode.CHECK_FAILED
