from dataclasses import replace

from milligpu.agent.attach_plan import AttachInput, AttachPlan, NodePod, newer_attachment, plan_attachments
from milligpu.agent.attachment import Allocation, Attachment
from milligpu.agent.grant_check import NodeGpus, demand_by_gpu
from milligpu.model.footprint import GpuDemand
from milligpu.model.gpu import Gpu
from milligpu.model.grant import GpuShare, Grant
from milligpu.model.reasons import AttachReason
from milligpu.model.request import ContainerKind, ContainerRef, PodRef, Share
from milligpu.model.units import Mib, Milli
from milligpu.wire.grant import encode_grant

GPUS = {"GPU-a": Gpu("GPU-a", "V100", Mib(16384))}
MAIN = {"main": ContainerKind.MAIN}


def ref(uid: str) -> PodRef:
    return PodRef("default", f"pod-{uid}", uid)


def granted(uid: str, milli: int, generation: int = 1) -> Grant:
    share = GpuShare("GPU-a", Share(Milli(milli), Mib(1024), Milli(milli)))
    return Grant(uid, "n1", {"main": (share,)}, generation=generation)


def pod(uid: str, milli: int = 500, *, finished: bool = False, generation: int = 1) -> NodePod:
    grant = encode_grant(granted(uid, milli, generation))
    return NodePod(ref(uid), MAIN, grant, finished)


def slots(name: str, number: int = 1) -> Allocation:
    return Allocation(name, number, "nvidia.com/vgpu", frozenset({f"slot-{name}"}))


def attached(name: str, uid: str, milli: int = 500) -> Attachment:
    return Attachment(name, ContainerRef(ref(uid), "main"), granted(uid, milli), MAIN)


def view(
    *pods: NodePod,
    allocations: list[Allocation],
    holders: dict[str, str],
    held: list[Attachment] | None = None,
    running: frozenset[str] = frozenset(),
) -> AttachInput:
    return AttachInput(
        allocations,
        {name: ContainerRef(ref(uid), "main") for name, uid in holders.items()},
        {each.ref.uid: each for each in pods},
        {each.name: each for each in held or []},
        running,
        NodeGpus("n1", GPUS),
    )


def test_a_container_with_a_valid_grant_is_attached() -> None:
    found = plan_attachments(view(pod("u1"), allocations=[slots("a")], holders={"a": "u1"}))
    assert found == AttachPlan((attached("a", "u1"),), (), ())


def test_an_allocation_without_a_known_container_is_left_alone() -> None:
    assert plan_attachments(view(pod("u1"), allocations=[slots("a")], holders={})) == AttachPlan((), (), ())


def test_of_two_containers_that_do_not_fit_together_the_first_one_is_attached() -> None:
    found = plan_attachments(
        view(
            pod("u1", 600),
            pod("u2", 600),
            allocations=[slots("b", 2), slots("a", 1)],
            holders={"a": "u1", "b": "u2"},
        )
    )
    assert [each.name for each in found.attach] == ["a"]
    assert [(each.name, each.problem.reason) for each in found.refused] == [("b", AttachReason.OVERCOMMIT)]


def test_a_share_is_released_when_the_pods_processes_have_ended_not_when_the_pod_is_deleted() -> None:
    held = [attached("old", "u1", 600)]
    allocations, holders = [slots("old"), slots("new", 2)], {"old": "u1", "new": "u2"}
    still = plan_attachments(
        view(pod("u2", 600), allocations=allocations, holders=holders, held=held, running=frozenset({"u1"}))
    )
    assert (still.attach, still.detach) == ((), ())
    assert [each.problem.reason for each in still.refused] == [AttachReason.OVERCOMMIT]
    after = plan_attachments(view(pod("u2", 600), allocations=allocations, holders=holders, held=held))
    assert [each.name for each in after.attach] == ["new"]
    assert after.detach == ("old",)


def test_a_finished_pod_releases_its_share() -> None:
    found = plan_attachments(
        view(pod("u1", finished=True), allocations=[slots("a")], holders={"a": "u1"}, held=[attached("a", "u1")])
    )
    assert found == AttachPlan((), ("a",), ())


def test_an_attached_container_stays_attached_if_its_grant_annotation_is_removed() -> None:
    bare = NodePod(ref("u1"), MAIN)
    assert plan_attachments(
        view(bare, allocations=[slots("a")], holders={"a": "u1"}, held=[attached("a", "u1")])
    ) == AttachPlan((), (), ())


def test_a_pod_without_a_valid_grant_is_refused() -> None:
    for text, reason in ((None, AttachReason.NO_GRANT), ("{", AttachReason.BAD_GRANT)):
        bare = NodePod(ref("u1"), MAIN, text)
        found = plan_attachments(view(bare, allocations=[slots("a")], holders={"a": "u1"}))
        assert [each.problem.reason for each in found.refused] == [reason]
        assert found.attach == ()


def test_a_later_grant_resizes_a_running_container_if_it_fits() -> None:
    held = [attached("a", "u1", 500), attached("b", "u2", 300)]
    allocations, holders = [slots("a"), slots("b", 2)], {"a": "u1", "b": "u2"}
    later = pod("u1", 700, generation=2)
    found = plan_attachments(view(later, pod("u2", 300), allocations=allocations, holders=holders, held=held))
    assert found.resize == (replace(held[0], grant=granted("u1", 700, 2)),)
    greedy = pod("u1", 701, generation=2)
    assert (
        plan_attachments(view(greedy, pod("u2", 300), allocations=allocations, holders=holders, held=held)).resize
        == ()
    )
    earlier = pod("u1", 100, generation=1)
    assert (
        plan_attachments(view(earlier, pod("u2", 300), allocations=allocations, holders=holders, held=held)).resize
        == ()
    )


def test_a_pod_that_shrinks_makes_room_for_one_that_grows_in_either_order() -> None:
    allocations, holders = [slots("a"), slots("b", 2)], {"a": "u1", "b": "u2"}
    held = [attached("a", "u1", 500), attached("b", "u2", 500)]
    pods = pod("u1", 800, generation=2), pod("u2", 200, generation=2)
    first = plan_attachments(view(*pods, allocations=allocations, holders=holders, held=held))
    assert ([each.name for each in first.resize], first.held_back) == (["b"], ("a",))
    then = plan_attachments(view(*pods, allocations=allocations, holders=holders, held=[held[0], *first.resize]))
    assert ([each.name for each in then.resize], then.held_back) == (["a"], ())


def test_a_share_that_shrinks_now_is_not_granted_again_in_the_same_plan() -> None:
    allocations, holders = [slots("a"), slots("b", 2)], {"a": "u1", "b": "u2"}
    pods = pod("u1", 200, generation=2), pod("u2", 500)
    found = plan_attachments(view(*pods, allocations=allocations, holders=holders, held=[attached("a", "u1", 800)]))
    assert [each.name for each in found.resize] == ["a"]
    assert [each.problem.reason for each in found.refused] == [AttachReason.OVERCOMMIT]


def test_a_later_grant_that_does_not_fit_is_held_back() -> None:
    allocations, holders = [slots("a"), slots("b", 2)], {"a": "u1", "b": "u2"}
    held = [attached("a", "u1", 500), attached("b", "u2", 500)]
    found = plan_attachments(
        view(pod("u1", 800, generation=2), pod("u2", 500), allocations=allocations, holders=holders, held=held)
    )
    assert (found.resize, found.held_back) == ((), ("a",))


def test_a_container_of_a_newer_agent_holds_its_gpus_whole_until_it_ends() -> None:
    allocations, holders = [slots("old"), slots("new", 2)], {"old": "u1", "new": "u2"}
    both = view(pod("u1"), pod("u2", 100), allocations=allocations, holders=holders)
    for named in (("GPU-a",), ()):
        found = plan_attachments(replace(both, newer={"old": named}))
        assert (found.attach, found.detach) == ((), ())
        assert [(each.name, each.problem.reason) for each in found.refused] == [("new", AttachReason.OVERCOMMIT)]
    after = view(pod("u2", 100), allocations=allocations, holders=holders)
    found = plan_attachments(replace(after, newer={"old": ("GPU-a",)}))
    assert found.detach == ("old",)
    assert [each.name for each in found.attach] == ["new"]


def test_the_agents_sums_count_containers_of_a_newer_agent_as_holding_their_gpus_whole() -> None:
    gpus = GPUS | {"GPU-b": Gpu("GPU-b", "V100", Mib(8192))}
    here = NodeGpus("n1", gpus)
    named = newer_attachment("new", ("GPU-b", "GPU-elsewhere"), here)
    assert demand_by_gpu([attached("a", "u1", 300), named], here) == {
        "GPU-a": GpuDemand(Milli(300), Mib(1024)),
        "GPU-b": GpuDemand(Milli(1000), Mib(8192), whole=True),
    }
    unknown = newer_attachment("new", (), here)
    assert {gpu: demand.milli for gpu, demand in demand_by_gpu([unknown], here).items()} == dict.fromkeys(
        gpus, 1000
    )
