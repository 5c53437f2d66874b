"""The invariants of `testing.chaos` detect each violation, and a seed always gives the same script."""

from dataclasses import replace

from milligpu.model.gpu import Gpu
from milligpu.model.grant import GpuShare, Grant
from milligpu.model.request import Share
from milligpu.model.units import Mib, Milli
from testing.chaos.invariants import (
    NodeCapacity,
    RequestedPod,
    differences,
    is_interrupted_start,
    may_be_stranded,
    overcommitted_in_api,
    overcommitted_on_node,
    unexpected_end,
)
from testing.chaos.observe import ApiPod, AttachmentRecord, LimitsLine, NodeState, Observation, ProcessGpus, common
from testing.chaos.script import Component, PodLifecycle, Script

CAPACITY = NodeCapacity([Gpu("GPU-0", "A100", Mib(1000)), Gpu("GPU-1", "A100", Mib(1000))])


def granted(uid: str, milli: int, gpu: str = "GPU-0") -> Grant:
    return Grant(uid, "n1", {"main": (GpuShare(gpu, Share(Milli(milli), Mib(milli), Milli(milli))),)})


def process(uid: str, milli: int, *, tenant: str = "", lost: bool = False) -> ProcessGpus:
    shares: tuple[LimitsLine, ...] = (("GPU-0", milli, milli),) if tenant else ()
    return ProcessGpus(uid, frozenset({0}), tenant, lost, shares)


def running(name: str, milli: int) -> tuple[ApiPod, str, AttachmentRecord, ProcessGpus]:
    """A pod that all sources agree on."""
    grant = granted(name, milli)
    pod = ApiPod(name, name, "Running", "n1", grant=grant, running=True)
    return pod, f"b-{name}", AttachmentRecord(name, grant), process(name, milli, tenant=f"b-{name}")


def observation(*pods: tuple[ApiPod, str, AttachmentRecord, ProcessGpus]) -> Observation:
    names = frozenset(name for _, name, _, _ in pods)
    attachments = {name: record for _, name, record, _ in pods}
    node = NodeState(attachments, names, names, frozenset(each for _, _, _, each in pods))
    return Observation(tuple(pod for pod, _, _, _ in pods), node, {"bound": len(pods)})


def differs(found: Observation, *sizes: int, fits: bool = False) -> list[str]:
    requested = {f"pod-{number}": RequestedPod(PodLifecycle.STAYS, (size,)) for number, size in enumerate(sizes)}
    return differences(requested, found, CAPACITY, lambda _uid: fits)


def test_no_difference_when_all_sources_agree() -> None:
    assert differs(observation(running("pod-0", 600), running("pod-1", 400)), 600, 400) == []


def test_processes_that_overcommit_a_gpu_are_reported_without_any_record() -> None:
    both = [process("a", 600, tenant="x"), process("b", 600, tenant="y")]
    assert len(overcommitted_on_node(CAPACITY, NodeState(processes=frozenset(both)))) == 1
    whole = [process("a", 1000), process("b", 100, tenant="y")]
    assert len(overcommitted_on_node(CAPACITY, NodeState(processes=frozenset(whole)))) == 1
    assert overcommitted_on_node(CAPACITY, NodeState(processes=frozenset(both[:1]))) == []


def test_records_or_grants_that_overcommit_a_gpu_are_reported() -> None:
    attachments = {uid: AttachmentRecord(uid, granted(uid, 600)) for uid in ("a", "b")}
    assert len(overcommitted_on_node(CAPACITY, NodeState(attachments=attachments))) == 1
    pods = [ApiPod(uid, uid, "Running", "n1", grant=granted(uid, 600)) for uid in ("a", "b")]
    assert len(overcommitted_in_api(CAPACITY, pods)) == 1
    assert overcommitted_in_api(CAPACITY, [pods[0], replace(pods[1], phase="Failed")]) == []


def test_processes_that_did_not_run_at_the_same_time_are_no_overcommitment() -> None:
    before, after = (
        NodeState(processes=frozenset({process("a", 600, tenant="x")})),
        NodeState(processes=frozenset({process("b", 600, tenant="y")})),
    )
    assert overcommitted_on_node(CAPACITY, common(before, after)) == []


def test_a_process_whose_tenant_directory_was_removed_is_reported() -> None:
    assert (
        "no record"
        in overcommitted_on_node(
            CAPACITY, NodeState(processes=frozenset({process("a", 1, tenant="x", lost=True)}))
        )[0]
    )


def test_a_wrong_page_grant_gpu_file_or_count_is_a_difference() -> None:
    pod, name, record, has = running("pod-0", 600)
    assert differs(observation((pod, name, record, replace(has, shares=(("GPU-0", 500, 600),)))), 600) != []
    assert differs(observation((pod, name, replace(record, grant=granted("pod-0", 500)), has)), 600) != []
    assert differs(observation((pod, name, record, replace(has, gpus=frozenset({1})))), 600) != []
    found = observation((pod, name, record, has))
    assert differs(replace(found, node=replace(found.node, files=frozenset())), 600) != []
    assert differs(replace(found, stages={"bound": 2}), 600) != []


def test_records_and_processes_of_a_deleted_pod_are_differences() -> None:
    found = observation(running("pod-0", 600))
    assert len(differs(replace(found, pods=(), stages={"bound": 0}))) == 2


def test_a_pod_may_wait_only_while_it_does_not_fit() -> None:
    found = Observation((ApiPod("pod-0", "u", "Pending"),), NodeState(), {})
    assert differs(found, 600) == []
    assert differs(found, 600, fits=True) == ["pod-0: waits although it would fit"]


def test_a_resize_may_wait_only_while_it_does_not_fit() -> None:
    requested = {
        "pod-0": RequestedPod(PodLifecycle.STAYS, (600, 700)),
        "pod-1": RequestedPod(PodLifecycle.STAYS, (400,)),
    }
    full = observation(running("pod-0", 600), running("pod-1", 400))
    assert differences(requested, full, CAPACITY, lambda _uid: False) == []
    del requested["pod-1"]
    assert (
        "although the GPU has room"
        in differences(requested, observation(running("pod-0", 600)), CAPACITY, lambda _uid: False)[0]
    )


def test_a_rejected_or_lost_pod_is_not_an_unexpected_end() -> None:
    pod = ApiPod("pod-0", "u", "Failed")
    assert unexpected_end(pod, lost=False)
    assert not unexpected_end(pod, lost=True)
    assert not unexpected_end(replace(pod, reason="UnexpectedAdmissionError"), lost=False)
    assert unexpected_end(ApiPod("pod-0", "u", "Running", ends=(("StartError", 128, "no such file"),)), lost=True)
    assert unexpected_end(ApiPod("pod-0", "u", "Running", ends=(("Error", 1, ""),)), lost=True)
    assert not unexpected_end(ApiPod("pod-0", "u", "Running", ends=(("Error", 137, ""),)), lost=False)


def test_a_start_interrupted_by_a_killed_kubelet_is_not_an_unexpected_end() -> None:
    interrupted = ("StartError", 128, 'failed to start containerd task "x": context canceled')
    once, twice = ApiPod("pod-0", "u", "Running", ends=(interrupted,)), (interrupted, ("Error", 1, ""))
    assert is_interrupted_start(interrupted)
    assert not is_interrupted_start(twice[1])
    assert unexpected_end(once, lost=False)
    assert not unexpected_end(once, lost=False, interrupted=[interrupted])
    assert not unexpected_end(replace(once, phase="Failed"), lost=False, interrupted=[interrupted])
    assert unexpected_end(replace(once, ends=twice), lost=False, interrupted=[interrupted])


def test_only_a_pod_that_starts_once_and_never_started_may_be_stranded() -> None:
    once = RequestedPod(PodLifecycle.ONCE, (300,))
    pod = ApiPod("pod-0", "u", "Pending", node="n1", waiting="ContainerCreating")
    assert may_be_stranded(once, pod)
    assert not may_be_stranded(RequestedPod(PodLifecycle.STAYS, (300,)), pod)
    assert not may_be_stranded(once, replace(pod, node=""))
    assert not may_be_stranded(once, replace(pod, phase="Running"))
    assert not may_be_stranded(once, replace(pod, ends=(("Error", 137, ""),)))


def test_the_same_seed_gives_the_same_script() -> None:
    assert list(Script(7).rounds(50)) == list(Script(7).rounds(50))
    assert {component for each in Script(7).rounds(50) for component in each.components} == set(Component)
