"""Which GPU server a request goes to, decided over the answers of all: pure, through `placement`.

To placement a server is a node. What its sessions and local commands hold is what is not free.
"""

from collections.abc import Mapping

from milligpu.model.footprint import GpuDemand
from milligpu.model.gpu import Gpu, GpuState, Node
from milligpu.model.grant import Grant
from milligpu.model.policy import DEFAULT_POLICY, SharePolicy
from milligpu.model.request import ContainerRequest, PodRef, PodRequest
from milligpu.model.units import Mib, Milli
from milligpu.placement.decide import Placer
from milligpu.placement.snapshot import Holding, Snapshot
from milligpu.remote.protocol import GpuList, OpenSession
from milligpu.sessions.request import session_share
from milligpu.wire.status import GpuStatus


def choose_server(request: OpenSession, answers: Mapping[str, GpuList]) -> str | None:
    """Return the server whose GPUs the request fits best now; None if it fits nowhere now."""
    open_servers = {server: answer for server, answer in answers.items() if not answer.draining}
    nodes = [
        Node(server, tuple(_gpu(server, each, request.policy) for each in answer.gpus))
        for server, answer in open_servers.items()
    ]
    holdings = [
        Holding(f"{server}/{gpu.uuid}", server, ((_uuid(server, gpu), _held(gpu)),))
        for server, answer in open_servers.items()
        for gpu in answer.gpus
        if not _is_idle(gpu)
    ]
    share = session_share(
        request.count,
        None if request.milli is None else Milli(request.milli),
        None if request.mib is None else Mib(request.mib),
        None if request.limit is None else Milli(request.limit),
    )
    pod = PodRequest(
        PodRef("pool", "session", "session"), (ContainerRequest("main", share),), policy=request.policy
    )
    answer = Placer(Snapshot.of(nodes, holdings)).decide(pod)
    return answer.node if isinstance(answer, Grant) else None


def _uuid(server: str, gpu: GpuStatus) -> str:
    """Servers are asked by several addresses; the same GPU behind two of them is two to placement."""
    return f"{server}/{gpu.uuid}"


def _is_idle(gpu: GpuStatus) -> bool:
    return (gpu.free_milli, gpu.free_mib) == (gpu.milli, gpu.mib)


def _gpu(server: str, gpu: GpuStatus, wanted: SharePolicy | None) -> Gpu:
    known = gpu.state in {str(each) for each in GpuState}
    policy = gpu.policy or DEFAULT_POLICY
    if wanted is SharePolicy.EQUAL and _is_idle(gpu):
        policy = wanted  # the server makes a GPU that nobody is on equal for it
    return Gpu(
        _uuid(server, gpu),
        gpu.model,
        Mib(gpu.mib),
        Milli(gpu.milli),
        policy=policy,
        state=GpuState(gpu.state) if known else GpuState.UNHEALTHY,
    )


def _held(gpu: GpuStatus) -> GpuDemand:
    return GpuDemand(Milli(gpu.milli - gpu.free_milli), Mib(gpu.mib - gpu.free_mib))
