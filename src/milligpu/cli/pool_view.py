"""What `top --pool` shows: each GPU server as `top` shows a machine."""

from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from milligpu.model.errors import MilligpuError
from milligpu.remote.client import read_servers
from milligpu.remote.protocol import ServerStatus
from milligpu.remote.token_file import PoolAccess
from milligpu.status.machine import machine_data

if TYPE_CHECKING:
    from milligpu.cli.top_view import TopView

PoolStatus = list[tuple[str, ServerStatus | MilligpuError]]


def read_pool_status(access: PoolAccess, *, plain: bool) -> PoolStatus:
    return read_servers(access, plain=plain)


def pool_data(found: PoolStatus) -> dict[str, object]:
    """The status as plain data, by server."""
    return {
        server: {"error": each.message}
        if isinstance(each, MilligpuError)
        else {**machine_data(each.status), "draining": each.draining}
        for server, each in found
    }


def view_pool(view: "TopView", found: PoolStatus) -> RenderableType:
    """Show one server after the other."""
    parts: list[RenderableType] = []
    for server, each in found:
        if isinstance(each, MilligpuError):
            parts += [Text.assemble((server, "bold"), (f"  {each.message}", "bold red")), Text()]
            continue
        state = "  draining" if each.draining else ""
        title = Text.assemble((server, "bold"), f"  {each.status.machine}", (state, "yellow"))
        parts += [title, view.machine(each.status), Text()]
    return Group(*parts)
