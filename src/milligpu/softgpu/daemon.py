"""The process behind the cards: `python -m milligpu.softgpu.daemon FOLDER …`, started by `milligpu softgpu`.

It goes into the background once its sockets are there, so whoever started it knows from its exit that the cards
can be used. It ends on SIGTERM, or with the process it was told to watch, and takes its folder with it.
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

from milligpu.softgpu.account import Account
from milligpu.softgpu.activity import Activity
from milligpu.softgpu.compile import CompileService
from milligpu.softgpu.control import Control
from milligpu.softgpu.fleet import Card, read_fleet
from milligpu.softgpu.management import Management, sample_all
from milligpu.softgpu.names import CONTROL, LOG_FILE, PID_FILE
from milligpu.softgpu.orders import Orders
from milligpu.softgpu.server import CardServer, listen

# As with a driver's device files, whoever can reach a card may use it, root or not; faults are for its owner.
_FOR_ALL, _FOR_ME = 0o666, 0o600


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that the daemon is told."""

    folder: Path
    cache: Path
    devices: int | None
    model: str
    memory: int | None
    speed: float
    watch: int | None

    @classmethod
    def from_arguments(cls, arguments: list[str]) -> "Settings":
        """Read the command line, which only our own commands write."""
        parser = argparse.ArgumentParser(prog="softgpu-daemon")
        parser.add_argument("folder", type=Path)
        parser.add_argument("--cache", type=Path, required=True)
        parser.add_argument("--devices", type=int)
        parser.add_argument("--model", required=True)
        parser.add_argument("--memory", type=int)
        parser.add_argument("--speed", type=float, default=0.0)
        parser.add_argument("--watch", type=int)
        return cls(**vars(parser.parse_args(arguments)))


def accounts(settings: Settings, cards: tuple[Card, ...]) -> list[Account]:
    """What is held of the cards; their UUIDs are the same whenever the same folder is used."""
    return [
        Account(card.index, card.model, uuid5(NAMESPACE_OID, f"{settings.folder}/{card.index}"), card.memory)
        for card in cards
    ]


def main(arguments: list[str]) -> None:
    """Bind, go into the background, serve."""
    settings = Settings.from_arguments(arguments)
    cards = read_fleet(settings.model, settings.devices, settings.memory)
    settings.folder.mkdir(parents=True, exist_ok=True)
    listeners = [listen(settings.folder / f"gpu{card.index}.sock", _FOR_ALL) for card in cards]
    control = listen(settings.folder / CONTROL, _FOR_ME)
    watched = os.pidfd_open(settings.watch) if settings.watch is not None else None
    if os.fork():
        os._exit(0)
    _detach(settings.folder / LOG_FILE)
    (settings.folder / PID_FILE).write_text(f"{os.getpid()}\n")
    try:
        asyncio.run(_serve(settings, cards, listeners, control, watched))
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
    settings: Settings,
    cards: tuple[Card, ...],
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
        Management(card, account, Activity(settings.speed))
        for card, account in zip(cards, accounts(settings, cards), strict=True)
    ]
    orders = Orders()
    tasks = [
        asyncio.create_task(CardServer(card, compiler, orders).serve(listener))
        for card, listener in zip(managed, listeners, strict=True)
    ]
    tasks.append(asyncio.create_task(Control(managed).serve(control)))
    tasks.append(asyncio.create_task(sample_all(managed)))
    await stop.wait()
    compiler.close()
    for task in tasks:
        task.cancel()


if __name__ == "__main__":
    main(sys.argv[1:])
