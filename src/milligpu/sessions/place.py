"""Which GPUs a session gets, decided from all grants each time: pure, through `placement`.

A machine has few GPUs and few sessions. Rebuilding the snapshot costs milliseconds and cannot drift.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from milligpu.model.footprint import NO_DEMAND, GpuDemand, grant_demands
from milligpu.model.gpu import Gpu, GpuState, Node
from milligpu.model.grant import Grant, NoFit
from milligpu.model.policy import SharePolicy
from milligpu.model.request import ContainerRequest, PodRef, PodRequest
from milligpu.model.requirements import Requirements
from milligpu.model.units import Mib, Milli
from milligpu.placement.decide import Placer
from milligpu.placement.snapshot import Holding, Snapshot
from milligpu.sessions.request import SessionRequest
from milligpu.tenancy.time_slots import TimeSlot, divide_frame, sessions_frame

CONTAINER = "main"
"""To placement a session is a pod with one container of this name."""

Grants = Mapping[str, Grant]
"""What each session holds, by its ID, in the order in which it was granted."""


class SessionPlacer:
    """The GPUs of one machine."""

    def __init__(self, machine: str, gpus: Sequence[Gpu], pods: Mapping[str, GpuDemand] | None = None) -> None:
        """`pods` is what sessions cannot have because it is for pods, on a node that has any; None elsewhere."""
        self.machine = machine
        self.gpus = {gpu.uuid: gpu for gpu in gpus}
        self._pods = pods

    def decide(self, session: str, request: SessionRequest, grants: Grants) -> Grant | NoFit:
        """Choose GPUs for a new session."""
        return self._decide(session, request, grants, request.gpus)

    def never_fits(self, session: str, request: SessionRequest) -> NoFit | None:
        """Say why waiting would not help: the request does not fit even when all other sessions have ended."""
        answer = self._decide(session, request, {}, request.gpus)
        return answer if isinstance(answer, NoFit) else None

    def resize(self, session: str, present: Grant, request: SessionRequest, grants: Grants) -> Grant | NoFit:
        """Give a session another share of the GPUs that it is on."""
        others = {name: grant for name, grant in grants.items() if name != session}
        answer = self._decide(session, request, others, present.gpus, closed=not self._grows(present, request))
        if isinstance(answer, NoFit):
            return answer
        by_gpu = {share.gpu: share for share in answer.containers[CONTAINER]}
        # A program knows its GPUs by their order.
        shares = tuple(by_gpu[uuid] for uuid in present.gpus)
        return replace(answer, containers={CONTAINER: shares}, generation=present.generation + 1)

    def _grows(self, present: Grant, request: SessionRequest) -> bool:
        """Whether a session would have more of any of its GPUs than it has."""
        return any(
            request.share.resolve(self.gpus[held.gpu]).milli > held.share.milli
            or request.share.resolve(self.gpus[held.gpu]).mib > held.share.mib
            for held in present.containers[CONTAINER]
            if held.gpu in self.gpus
        )

    def time_slots(self, grants: Grants) -> Mapping[str, dict[str, TimeSlot]]:
        """Divide each GPU's frame: the slots of each session, by GPU."""
        found: dict[str, dict[str, TimeSlot]] = {session: {} for session in grants}
        for gpu in self.gpus_with_policy(grants).values():
            tenants = [
                (session, held.share.milli)
                for session, grant in grants.items()
                for held in grant.containers[CONTAINER]
                if held.gpu == gpu.uuid
            ]
            if tenants:
                frame = sessions_frame(gpu, self._for_pods(gpu.uuid).milli)
                for session, slot in divide_frame(tenants, gpu.policy, frame, capacity=gpu.milli).items():
                    found[session][gpu.uuid] = slot
        return found

    def gpus_with_policy(self, grants: Grants, wanted: SharePolicy | None = None) -> dict[str, Gpu]:
        """The GPUs with the share policy that each has now, or would have for a session that wants `wanted`.

        The policy is the admin's. Only on a machine that is no node, a session that wants `equal` makes a GPU that
        nobody is on equal, for as long as it is there.
        """
        if self._pods is not None:
            return self.gpus
        used = {uuid for grant in grants.values() for uuid in grant.gpus}
        equal = {uuid for grant in grants.values() if grant.policy is SharePolicy.EQUAL for uuid in grant.gpus}
        if wanted is SharePolicy.EQUAL:
            equal |= self.gpus.keys() - used
        return {
            uuid: replace(gpu, policy=SharePolicy.EQUAL) if uuid in equal else gpu
            for uuid, gpu in self.gpus.items()
        }

    def free(self, gpu: Gpu, grants: Grants) -> GpuDemand:
        """What a new session could have of one GPU."""
        taken = [self._for_pods(gpu.uuid)]
        taken += [demands[gpu.uuid] for demands in map(self.demands, grants.values()) if gpu.uuid in demands]
        milli, mib = sum(each.milli for each in taken), sum(each.mib for each in taken)
        return GpuDemand(Milli(max(0, gpu.milli - milli)), Mib(max(0, gpu.mib - mib)))

    def demands(self, grant: Grant) -> dict[str, GpuDemand]:
        """What a grant takes of each GPU that is still there."""
        demands = grant_demands(grant.containers, {}, self.gpus)
        return {uuid: demand for uuid, demand in demands.items() if uuid in self.gpus}

    def _decide(
        self,
        session: str,
        request: SessionRequest,
        grants: Grants,
        uuids: tuple[str, ...] | None = None,
        *,
        closed: bool = False,
    ) -> Grant | NoFit:
        """Decide among all GPUs or these; `closed`: unhealthy and cordoned ones will do, as no more is taken."""
        gpus = self.gpus_with_policy(grants, request.policy)
        if closed:
            gpus = {uuid: replace(gpu, state=GpuState.OK) for uuid, gpu in gpus.items()}
        holdings = [
            Holding(name, self.machine, tuple(self.demands(grant).items()), priority=grant.priority)
            for name, grant in grants.items()
        ]
        if self._pods:
            # No session has this name: their IDs are hexadecimal.
            for_pods = tuple((uuid, demand) for uuid, demand in self._pods.items() if uuid in gpus)
            holdings.append(Holding("pods", self.machine, for_pods))
        pod = PodRequest(
            PodRef("local", session, session),
            (ContainerRequest(CONTAINER, request.share),),
            policy=request.policy,
            priority=request.priority,
            requirements=Requirements(uuids=uuids),
        )
        return Placer(Snapshot.of([Node(self.machine, tuple(gpus.values()))], holdings)).decide(pod)

    def _for_pods(self, uuid: str) -> GpuDemand:
        return (self._pods or {}).get(uuid, NO_DEMAND)
