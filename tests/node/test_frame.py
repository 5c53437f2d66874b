import pytest

from milligpu.agent.slots import Slot
from milligpu.model.grant import GpuShare, Grant
from milligpu.model.qos import Policy
from milligpu.model.request import Kind
from milligpu.model.units import Mib, Milli
from milligpu.node.attach import Attached
from milligpu.node.checks import Tenancy
from milligpu.node.frame import frame
from milligpu.wire.limits import FRAME_US

KINDS = {"init": Kind.INIT, "side": Kind.SIDECAR, "late": Kind.INIT, "one": Kind.MAIN, "two": Kind.MAIN}


def pod(uid: str, policy: Policy = Policy.FIXED, **milli: int) -> list[Attached]:
    shares = {name: (GpuShare("G", Milli(each), Mib(1), Milli(1000)),) for name, each in milli.items()}
    kinds = {name: KINDS[name] for name in KINDS if name in milli}
    tenancy = Tenancy(uid, Grant(uid, "n", shares, policy=policy), kinds)
    return [Attached(f"{uid}-{name}", name, tenancy) for name in milli]


def test_containers_that_never_run_together_use_the_same_part_of_the_frame() -> None:
    found = frame("G", [*pod("a", init=400, side=100, late=200, one=300, two=200), *pod("b", one=400)])
    assert found == {
        "a-init": Slot(0, 40_000),
        "a-side": Slot(0, 10_000),
        "a-late": Slot(10_000, 20_000),
        "a-one": Slot(10_000, 30_000),
        "a-two": Slot(40_000, 20_000),
        "b-one": Slot(60_000, 40_000),
    }


@pytest.mark.parametrize("policy", Policy)
def test_whatever_the_policy_all_slots_end_within_the_frame(policy: Policy) -> None:
    pods = [pod(uid, policy, init=900, side=50, one=100, two=150) for uid in ("a",)]
    found = frame("G", [each for one in pods for each in one] + pod("b", policy, one=50) + pod("c", policy, one=0))
    assert all(0 <= slot.start_us <= slot.start_us + slot.length_us <= FRAME_US for slot in found.values())
    assert all(slot.length_us > 0 for slot in found.values())


def test_who_is_guaranteed_nothing_has_a_part_of_what_is_left() -> None:
    found = frame("G", [*pod("a", one=600), *pod("b", one=0, two=200)])
    assert found == {"a-one": Slot(0, 60_000), "b-one": Slot(60_000, 20_000), "b-two": Slot(80_000, 20_000)}


def test_nobody_there_is_no_slot() -> None:
    assert frame("G", []) == {}
