import pytest

from milligpu.agent.attachment import Attachment
from milligpu.agent.time_slots import container_time_slots
from milligpu.model.grant import GpuShare, Grant
from milligpu.model.policy import SharePolicy
from milligpu.model.request import ContainerKind, Share, container_of_uid
from milligpu.model.units import Mib, Milli
from milligpu.tenancy.time_slots import TimeSlot
from milligpu.wire.limits import FRAME_US

KINDS = {
    "init": ContainerKind.INIT,
    "side": ContainerKind.SIDECAR,
    "late": ContainerKind.INIT,
    "one": ContainerKind.MAIN,
    "two": ContainerKind.MAIN,
}


def pod(uid: str, **milli: int) -> list[Attachment]:
    shares = {name: (GpuShare("G", Share(Milli(each), Mib(1), Milli(1000))),) for name, each in milli.items()}
    kinds = {name: KINDS[name] for name in KINDS if name in milli}
    grant = Grant(uid, "n", shares)
    return [Attachment(f"{uid}-{name}", container_of_uid(uid, name), grant, kinds) for name in milli]


def test_containers_that_never_run_together_use_the_same_part_of_the_frame() -> None:
    found = container_time_slots(
        "G", [*pod("a", init=400, side=100, late=200, one=300, two=200), *pod("b", one=400)], SharePolicy.FIXED
    )
    assert found == {
        "a-init": TimeSlot(0, 40_000),
        "a-side": TimeSlot(0, 10_000),
        "a-late": TimeSlot(10_000, 20_000),
        "a-one": TimeSlot(10_000, 30_000),
        "a-two": TimeSlot(40_000, 20_000),
        "b-one": TimeSlot(60_000, 40_000),
    }


@pytest.mark.parametrize("policy", SharePolicy)
def test_all_time_slots_end_within_the_frame_under_every_policy(policy: SharePolicy) -> None:
    pods = [pod(uid, init=900, side=50, one=100, two=150) for uid in ("a",)]
    found = container_time_slots(
        "G", [each for one in pods for each in one] + pod("b", one=50) + pod("c", one=0), policy
    )
    assert all(0 <= slot.start_us <= slot.start_us + slot.length_us <= FRAME_US for slot in found.values())
    assert all(slot.length_us > 0 for slot in found.values())


def test_a_container_with_a_share_of_zero_gets_a_slot_of_the_rest_of_the_frame() -> None:
    found = container_time_slots("G", [*pod("a", one=600), *pod("b", one=0, two=200)], SharePolicy.FIXED)
    assert found == {
        "a-one": TimeSlot(0, 60_000),
        "b-one": TimeSlot(60_000, 20_000),
        "b-two": TimeSlot(80_000, 20_000),
    }


def test_a_gpu_without_containers_has_no_time_slots() -> None:
    assert container_time_slots("G", [], SharePolicy.FIXED) == {}
