"""The process behind the GPUs: `python -m milligpu.softgpu.daemon FOLDER …`, started by `milligpu softgpu`.

It moves to the background once its sockets exist, so the exit of the foreground process means that the GPUs can be
used; with `--foreground`, for a container, it stays. It ends on SIGTERM, or with the process given as `--watch`,
and removes its directory.
"""

import argparse
import asyncio
import os
import shutil
import signal
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from uuid import NAMESPACE_OID, uuid5

from milligpu.logs import configure_logs
from milligpu.softgpu.account import SoftGpuMemory
from milligpu.softgpu.activity import Activity
from milligpu.softgpu.checkpoint import CheckpointRelay
from milligpu.softgpu.compile import CompileService
from milligpu.softgpu.control import Control
from milligpu.softgpu.fleet import SoftGpu, read_fleet
from milligpu.softgpu.management import Management, sample_all
from milligpu.softgpu.names import CONTROL, LOG_FILE, PID_FILE
from milligpu.softgpu.server import SoftGpuServer, listen

# As with a driver's device files, any user who can reach a GPU's socket may use it; only its owner injects faults.
_FOR_ALL, _FOR_ME = 0o666, 0o600


@dataclass(frozen=True, slots=True)
class SoftgpuSettings:
    """The daemon's command line."""

    folder: Path
    cache: Path
    devices: int | None
    model: str
    memory: int | None
    speed: float
    watch: int | None
    foreground: bool

    @classmethod
    def from_arguments(cls, arguments: list[str]) -> "SoftgpuSettings":
        """Parse the command line, which only our own commands write."""
        parser = argparse.ArgumentParser(prog="softgpu-daemon")
        parser.add_argument("folder", type=Path)
        parser.add_argument("--cache", type=Path, required=True)
        parser.add_argument("--devices", type=int)
        parser.add_argument("--model", required=True)
        parser.add_argument("--memory", type=int)
        parser.add_argument("--speed", type=float, default=0.0)
        parser.add_argument("--watch", type=int)
        parser.add_argument("--foreground", action="store_true")
        return cls(**vars(parser.parse_args(arguments)))


def accounts(settings: SoftgpuSettings, gpus: tuple[SoftGpu, ...]) -> list[SoftGpuMemory]:
    """The GPUs' memory accounts; the same directory always gives the same UUIDs."""
    return [
        SoftGpuMemory(gpu.index, gpu.model, uuid5(NAMESPACE_OID, f"{settings.folder}/{gpu.index}"), gpu.memory)
        for gpu in gpus
    ]


def main(arguments: list[str]) -> None:
    """Bind the sockets, move to the background and serve."""
    settings = SoftgpuSettings.from_arguments(arguments)
    gpus = read_fleet(settings.model, settings.devices, settings.memory)
    settings.folder.mkdir(parents=True, exist_ok=True)
    listeners = [listen(settings.folder / f"gpu{gpu.index}.sock", _FOR_ALL) for gpu in gpus]
    control = listen(settings.folder / CONTROL, _FOR_ME)
    watched = os.pidfd_open(settings.watch) if settings.watch is not None else None
    if not settings.foreground:
        if os.fork():
            os._exit(0)
        _detach(settings.folder / LOG_FILE)
    (settings.folder / PID_FILE).write_text(f"{os.getpid()}\n")
    configure_logs()
    try:
        asyncio.run(_serve(settings, gpus, listeners, control, watched))
    finally:
        shutil.rmtree(settings.folder, ignore_errors=True)


def _detach(log: Path) -> None:
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(null, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(null)
    os.close(output)


async def _serve(
    settings: SoftgpuSettings,
    gpus: tuple[SoftGpu, ...],
    listeners: list[socket.socket],
    control: socket.socket,
    watched: int | None,
) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if watched is not None:
        loop.add_reader(watched, stop.set)
    compiler = CompileService(settings.cache, timed=settings.speed > 0)
    compiler.warm_up()
    managed = [
        Management(gpu, account, Activity(settings.speed))
        for gpu, account in zip(gpus, accounts(settings, gpus), strict=True)
    ]
    checkpoints = CheckpointRelay()
    tasks = [
        asyncio.create_task(SoftGpuServer(gpu, compiler, checkpoints).serve(listener))
        for gpu, listener in zip(managed, listeners, strict=True)
    ]
    tasks.append(asyncio.create_task(Control(managed).serve(control)))
    tasks.append(asyncio.create_task(sample_all(managed)))
    await stop.wait()
    compiler.close()
    for task in tasks:
        task.cancel()


if __name__ == "__main__":
    main(sys.argv[1:])
