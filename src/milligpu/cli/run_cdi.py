"""`milligpu run --cdi`: print a CDI device, and hold its share in the background while its container runs."""

import fcntl
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import click

from milligpu.agent.session_cdi import ENDED, SESSION_KIND, STARTED, driver_of, find_mkdir, session_document
from milligpu.cli.main import explain_error
from milligpu.model.errors import Unavailable
from milligpu.sessions.protocol import ShareGranted

CDI_DIR = Path("/var/run/cdi")
"""Where podman and Docker look for CDI files."""
_PREFIX = "milligpu-session-"
# Pulling a large image may come between this command and the container.
_START_S = 600.0
_LOOK_S = 0.2


def run_cdi(folder: Path, take: Callable[[], ShareGranted]) -> int:
    """Start the process that takes and holds the share; print its device when the CDI file is there."""
    if folder == CDI_DIR:
        with suppress(OSError):
            folder.mkdir(exist_ok=True)
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise Unavailable(
            f"{folder}: not a directory in which you may write CDI files",
            hint="run this as root, or set --cdi-dir to a directory that your container engine reads",
        )
    reader, writer = os.pipe()
    sys.stdout.flush()
    if (child := os.fork()) == 0:
        os.close(reader)
        os.setsid()
        # Whoever reads what is printed waits until nobody can write any more.
        nowhere = os.open(os.devnull, os.O_RDWR)
        os.dup2(nowhere, 0)
        os.dup2(nowhere, 1)
        os._exit(_child(folder, take, writer))
    os.close(writer)
    with os.fdopen(reader) as answer:
        device = answer.read()
    if not device:
        _, status = os.waitpid(child, 0)
        return os.waitstatus_to_exitcode(status)
    click.echo(device)
    return 0


def _child(folder: Path, take: Callable[[], ShareGranted], writer: int) -> int:
    try:
        _hold(folder, take(), writer)
    except SystemExit:
        return 0
    except Exception as error:  # the parent exits with what this means
        return explain_error("milligpu", error)
    return 0


def _hold(folder: Path, granted: ShareGranted, writer: int) -> None:
    """Write the CDI file, and wait until the container has ended; the service then releases the share."""
    sweep(folder)
    # SIGTERM ends the holder, and with it the share, but not its files.
    signal.signal(signal.SIGTERM, _end)
    with tempfile.TemporaryDirectory(prefix="milligpu-cdi-") as notes:
        file = folder / f"{_PREFIX}{granted.session}.json"
        text = session_document(granted, driver_of(granted, os.environ), Path(notes), find_mkdir())
        draft = file.with_suffix(".draft")
        descriptor = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.write(descriptor, text.encode())
        draft.rename(file)
        try:
            os.write(writer, f"{SESSION_KIND}={granted.session}".encode())
            os.close(writer)
            _released_stderr()
            _wait(Path(notes))
        finally:
            file.unlink(missing_ok=True)


def _end(_number: int, _frame: object) -> None:
    sys.exit(0)


def _released_stderr() -> None:
    os.dup2(1, 2)


def _wait(notes: Path) -> None:
    deadline = time.monotonic() + _START_S
    while not (notes / ENDED).exists():
        if time.monotonic() > deadline and not (notes / STARTED).exists():
            return
        time.sleep(_LOOK_S)


def sweep(folder: Path) -> None:
    """Delete the files of holders that were killed; a living one has its file locked."""
    for file in (*folder.glob(f"{_PREFIX}*.json"), *folder.glob(f"{_PREFIX}*.draft")):
        with suppress(OSError):
            descriptor = os.open(file, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                file.unlink(missing_ok=True)
            finally:
                os.close(descriptor)
