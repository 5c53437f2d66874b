from collections.abc import Iterable

import pytest

from milligpu.agent.attachment import Attachment
from milligpu.agent.grant_check import NodeGpus, check_grant, check_resized_grant
from milligpu.model.gpu import Gpu, GpuState, SharingMode
from milligpu.model.grant import GpuShare, Grant, whole_gpu
from milligpu.model.reasons import AttachReason
from milligpu.model.request import ContainerKind, Share, container_of_uid
from milligpu.model.units import Mib, Milli

GPUS = {
    "GPU-a": Gpu("GPU-a", "V100", Mib(16384)),
    "GPU-b": Gpu("GPU-b", "V100", Mib(16384), reserved=Milli(200)),
    "GPU-unhealthy": Gpu("GPU-unhealthy", "V100", Mib(16384), state=GpuState.UNHEALTHY, message="XID 79"),
    "GPU-whole": Gpu("GPU-whole", "V100", Mib(16384), mode=SharingMode.WHOLE),
}


def attachment(
    uid: str, *shares: GpuShare, node: str = "n1", grant_uid: str | None = None, container: str = "main"
) -> Attachment:
    grant = Grant(grant_uid or uid, node, {"main": shares})
    return Attachment(f"name-{uid}", container_of_uid(uid, container), grant, {"main": ContainerKind.MAIN})


def share(gpu: str, milli: int, mib: int = 1024) -> GpuShare:
    return GpuShare(gpu, Share(Milli(milli), Mib(mib), Milli(milli)))


def reason(of: Attachment, others: Iterable[Attachment] = ()) -> AttachReason | None:
    problem = check_grant(of, NodeGpus("n1", GPUS), others)
    return problem.reason if problem else None


def test_a_grant_for_this_pod_and_node_within_the_gpus_capacity_is_accepted() -> None:
    assert reason(attachment("u1", share("GPU-a", 500)), [attachment("u2", share("GPU-a", 500))]) is None
    assert reason(attachment("u1", whole_gpu("GPU-a"))) is None


@pytest.mark.parametrize(
    ("of", "wanted"),
    [
        (attachment("u1", share("GPU-a", 500), grant_uid="u9"), AttachReason.OTHER_POD),
        (attachment("u1", share("GPU-a", 500), node="n2"), AttachReason.OTHER_NODE),
        (attachment("u1", share("GPU-zzz", 500)), AttachReason.UNKNOWN_GPU),
        (attachment("u1", share("GPU-unhealthy", 500)), AttachReason.UNFIT_GPU),
        (attachment("u1", share("GPU-whole", 500)), AttachReason.UNFIT_GPU),
        (attachment("u1", share("GPU-b", 801)), AttachReason.OVERCOMMIT),
        (attachment("u1", share("GPU-a", 100, 16385)), AttachReason.OVERCOMMIT),
    ],
)
def test_a_grant_for_another_pod_node_or_gpu_is_refused(of: Attachment, wanted: AttachReason) -> None:
    assert reason(of) is wanted


def test_a_container_that_the_grant_does_not_name_is_refused() -> None:
    assert reason(attachment("u1", share("GPU-a", 500), container="other")) is AttachReason.NO_SHARE


def test_a_grant_that_overcommits_a_gpu_is_refused() -> None:
    beside = [attachment("u2", share("GPU-a", 501))]
    assert reason(attachment("u1", share("GPU-a", 500)), beside) is AttachReason.OVERCOMMIT
    assert (
        reason(attachment("u1", whole_gpu("GPU-a")), [attachment("u2", share("GPU-a", 1))])
        is AttachReason.OVERCOMMIT
    )
    assert (
        reason(attachment("u1", share("GPU-a", 1)), [attachment("u2", whole_gpu("GPU-a"))])
        is AttachReason.OVERCOMMIT
    )


def test_a_pod_is_not_counted_against_itself() -> None:
    of = attachment("u1", share("GPU-a", 900))
    assert reason(of, [of]) is None


def test_a_pod_with_several_containers_counts_once() -> None:
    of = attachment("u2", share("GPU-a", 500))
    assert reason(attachment("u1", share("GPU-a", 500)), [of, of]) is None


def test_memory_in_use_above_a_lowered_limit_is_not_granted_again() -> None:
    newcomer, shrunk = attachment("u1", share("GPU-a", 100, 10000)), attachment("u2", share("GPU-a", 100, 1000))
    assert check_grant(newcomer, NodeGpus("n1", GPUS), [shrunk]) is None
    still = NodeGpus("n1", GPUS, {("u2", "GPU-a"): Mib(8000)})
    problem = check_grant(newcomer, still, [shrunk])
    assert problem is not None
    assert problem.reason is AttachReason.OVERCOMMIT


def test_a_pod_on_an_unhealthy_gpu_can_be_resized() -> None:
    assert check_resized_grant(attachment("u1", share("GPU-unhealthy", 100)), NodeGpus("n1", GPUS), []) is None
    too_much = check_resized_grant(attachment("u1", share("GPU-unhealthy", 1000, 20000)), NodeGpus("n1", GPUS), [])
    assert too_much is not None
