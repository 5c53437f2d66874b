from collections.abc import Iterable

import pytest

from milligpu.model.gpu import Gpu, Mode, State
from milligpu.model.grant import GpuShare, Grant
from milligpu.model.request import Kind
from milligpu.model.units import Mib, Milli
from milligpu.node.checks import Fault, Here, Tenancy, check, check_resize

CARDS = {
    "GPU-a": Gpu("GPU-a", "V100", Mib(16384)),
    "GPU-b": Gpu("GPU-b", "V100", Mib(16384), reserved=Milli(200)),
    "GPU-sick": Gpu("GPU-sick", "V100", Mib(16384), state=State.SICK, reason="XID 79"),
    "GPU-whole": Gpu("GPU-whole", "V100", Mib(16384), mode=Mode.WHOLE),
}


def tenancy(uid: str, *shares: GpuShare, node: str = "n1", grant_uid: str | None = None) -> Tenancy:
    return Tenancy(uid, Grant(grant_uid or uid, node, {"main": shares}), {"main": Kind.MAIN})


def share(gpu: str, milli: int, mib: int = 1024) -> GpuShare:
    return GpuShare(gpu, Milli(milli), Mib(mib), Milli(milli))


def fault(of: Tenancy, others: Iterable[Tenancy] = (), container: str = "main") -> Fault | None:
    problem = check(of, container, Here("n1", CARDS), others)
    return problem.fault if problem else None


def test_a_grant_for_this_pod_on_this_node_within_the_card_is_honoured() -> None:
    assert fault(tenancy("u1", share("GPU-a", 500)), [tenancy("u2", share("GPU-a", 500))]) is None
    assert fault(tenancy("u1", GpuShare("GPU-a", whole=True))) is None


@pytest.mark.parametrize(
    ("of", "wanted"),
    [
        (tenancy("u1", share("GPU-a", 500), grant_uid="u9"), Fault.OTHER_POD),
        (tenancy("u1", share("GPU-a", 500), node="n2"), Fault.OTHER_NODE),
        (tenancy("u1", share("GPU-zzz", 500)), Fault.UNKNOWN_GPU),
        (tenancy("u1", share("GPU-sick", 500)), Fault.UNFIT_GPU),
        (tenancy("u1", share("GPU-whole", 500)), Fault.UNFIT_GPU),
        (tenancy("u1", share("GPU-b", 801)), Fault.OVERCOMMIT),
        (tenancy("u1", share("GPU-a", 100, 16385)), Fault.OVERCOMMIT),
    ],
)
def test_a_grant_about_something_else_is_refused(of: Tenancy, wanted: Fault) -> None:
    assert fault(of) is wanted


def test_a_container_that_the_grant_does_not_name_gets_nothing() -> None:
    assert fault(tenancy("u1", share("GPU-a", 500)), container="other") is Fault.NO_SHARE


def test_no_card_is_promised_beyond_its_size() -> None:
    beside = [tenancy("u2", share("GPU-a", 501))]
    assert fault(tenancy("u1", share("GPU-a", 500)), beside) is Fault.OVERCOMMIT
    assert (
        fault(tenancy("u1", GpuShare("GPU-a", whole=True)), [tenancy("u2", share("GPU-a", 1))]) is Fault.OVERCOMMIT
    )
    assert (
        fault(tenancy("u1", share("GPU-a", 1)), [tenancy("u2", GpuShare("GPU-a", whole=True))]) is Fault.OVERCOMMIT
    )


def test_a_pod_does_not_stand_in_its_own_way() -> None:
    of = tenancy("u1", share("GPU-a", 900))
    assert fault(of, [of]) is None


def test_a_pod_with_several_containers_counts_once() -> None:
    of = tenancy("u2", share("GPU-a", 500))
    assert fault(tenancy("u1", share("GPU-a", 500)), [of, of]) is None


def test_memory_in_use_above_a_lowered_cap_is_nobody_elses() -> None:
    newcomer, shrunk = tenancy("u1", share("GPU-a", 100, 10000)), tenancy("u2", share("GPU-a", 100, 1000))
    assert check(newcomer, "main", Here("n1", CARDS), [shrunk]) is None
    still = Here("n1", CARDS, {("u2", "GPU-a"): Mib(8000)})
    problem = check(newcomer, "main", still, [shrunk])
    assert problem is not None
    assert problem.fault is Fault.OVERCOMMIT


def test_one_who_is_on_a_sick_card_may_still_be_resized() -> None:
    assert check_resize(tenancy("u1", share("GPU-sick", 100)), "main", Here("n1", CARDS), []) is None
    too_much = check_resize(tenancy("u1", share("GPU-sick", 1000, 20000)), "main", Here("n1", CARDS), [])
    assert too_much is not None
