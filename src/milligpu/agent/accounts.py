"""Who holds each GPU of this node, as the division of energy and time needs it. Pure."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from milligpu.model.gpu import Gpu
from milligpu.model.grant import GpuShare
from milligpu.tenancy.energy import Holder


def holders_by_gpu(
    gpus: Mapping[str, Gpu],
    held: Iterable[tuple[str, Sequence[GpuShare]]],
    charged: Callable[[str], Sequence[int]],
) -> dict[str, list[Holder]]:
    """List the holders of every GPU; `charged` returns a tenant's GPU time in the order of its shares."""
    found: dict[str, list[Holder]] = {uuid: [] for uuid in gpus}
    for name, shares in held:
        times = charged(name)
        for number, each in enumerate(shares):
            gpu = gpus.get(each.gpu)
            if gpu is not None:
                time = times[number] if number < len(times) else None
                found[gpu.uuid].append(Holder(name, each.resolve(gpu).milli / gpu.milli, time))
    return found
