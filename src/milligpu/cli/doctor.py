"""`milligpu doctor`: whether a node has all that the agent needs."""

import asyncio
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from milligpu.cli.agent import node_options
from milligpu.cli.output import Format, format_option, show_data, show_table
from milligpu.node.settings import Settings

if TYPE_CHECKING:
    from milligpu.node.doctor.finding import Finding

_PASS, _FAIL = "pass", "FAIL"


@click.command()
@node_options
@click.option(
    "--runtime-socket",
    type=click.Path(path_type=Path),
    default=Path("/run/containerd/containerd.sock"),
    show_default=True,
    help="Of the container runtime.",
)
@format_option(Format.TABLE, Format.JSON, Format.YAML)
def command(settings: Settings, runtime_socket: Path, output: Format) -> int:
    """Look at this node: driver, CDI, container runtime, kubelet, rights, other GPU plugins, the agent.

    Each line passes, or says how to mend it. Give it the options that the agent has. Exit code 1 when one fails.
    """
    from milligpu.node.doctor.visit import visit

    found = asyncio.run(visit(settings, runtime_socket))
    if output is Format.TABLE:
        rows = [row for each in found for row in _rows(each)]
        show_table(["", "CHECK", "FOUND"], rows, colours={_PASS: "green", _FAIL: "bold red"})
    else:
        show_data([asdict(each) for each in found], output)
    return 0 if all(each.passed for each in found) else 1


def _rows(found: "Finding") -> list[list[str]]:
    lines = [[_PASS if found.passed else _FAIL, found.what, found.detail]]
    return lines if found.passed else [*lines, ["", "", f"→ {found.fix}"]]
