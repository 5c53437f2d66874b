"""What `milligpu server install` does to a machine, as a plan that is shown before anything is written."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from milligpu.remote.files import write_file

UNIT = "milligpu-server.service"
UNITS = Path("/etc/systemd/system")


@dataclass(frozen=True, slots=True)
class NewFile:
    """A file that is written."""

    path: Path
    text: str
    what: str
    is_secret: bool = False
    """Its text is not shown, and only root reads it."""


def unit_text(command: Sequence[str]) -> str:
    """Return the unit of a server that starts with the machine, and again whenever it fails.

    Only the server itself is stopped with the unit: its sessions end with it. The machine's session service, which
    local commands use, too, goes on.
    """
    return f"""\
[Unit]
Description=milligpu GPU server
Wants=network-online.target
After=network-online.target nvidia-persistenced.service

[Service]
ExecStart={shlex.join(command)}
Restart=always
RestartSec=2
KillMode=process
LimitNOFILE=65536

[Install]
WantedBy=multi-user.target
"""


def is_same(file: NewFile) -> bool:
    """Whether the file is there already, as it should be."""
    return file.path.is_file() and file.path.read_text() == file.text


def write_new(file: NewFile) -> None:
    """Write it, whole or not at all."""
    file.path.parent.mkdir(parents=True, exist_ok=True)
    write_file(file.path, file.text.encode())
    if not file.is_secret:
        file.path.chmod(0o644)
