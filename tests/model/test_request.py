import pytest
from hypothesis import given
from hypothesis import strategies as st

from milligpu.model.errors import BadRequest
from milligpu.model.footprint import Demand, footprint, held
from milligpu.model.gpu import Gpu
from milligpu.model.grant import GpuShare
from milligpu.model.qos import Policy, parse_policy, parse_priority, parse_strategy
from milligpu.model.request import ContainerRequest, Kind, ShareRequest, Slice
from milligpu.model.units import Mib, Milli

CARD = Gpu("GPU-a", "V100", Mib(16384))
HALF_CARD = Gpu("GPU-v", "GRID V100-8Q", Mib(8192), milli=Milli(500))


def share(milli: int | None = None, mib: int | None = None, count: int = 1) -> ShareRequest:
    return ShareRequest(count, None if milli is None else Milli(milli), None if mib is None else Mib(mib))


@pytest.mark.parametrize(
    ("request_", "card", "part"),
    [
        (share(500), CARD, Slice(Milli(500), Mib(8192), Milli(500))),
        (share(500, 1024), CARD, Slice(Milli(500), Mib(1024), Milli(500))),
        (share(None, 4096), CARD, Slice(Milli(250), Mib(4096), Milli(250))),
        (ShareRequest(milli=Milli(300), card_memory=Milli(500)), CARD, Slice(Milli(300), Mib(8192), Milli(300))),
        (share(300), HALF_CARD, Slice(Milli(300), Mib(4915), Milli(300))),
        (share(500), HALF_CARD, Slice(Milli(500), Mib(8192), Milli(500))),
        (share(1000), CARD, Slice(Milli(1000), Mib(16384), Milli(1000), whole=True)),
        (share(0, 1024), CARD, Slice(Milli(0), Mib(1024), Milli(1000))),
    ],
)
def test_what_is_unsaid_follows_from_the_card(request_: ShareRequest, card: Gpu, part: Slice) -> None:
    policy = Policy.BEST_EFFORT if request_.milli == 0 else Policy.FIXED
    assert request_.on(card, policy) == part


def test_a_limit_applies_as_written_and_only_fixed_shares_are_ceilings() -> None:
    elastic = ShareRequest(milli=Milli(300), limit=Milli(600))
    assert elastic.on(CARD).limit == 600
    assert share(300).on(CARD, Policy.FIXED).limit == 300
    assert share(300).on(CARD, Policy.BEST_EFFORT).limit == 1000
    assert share(300).on(CARD, Policy.EQUAL).limit == 1000


def test_thirds_of_the_memory_fit_three_times() -> None:
    assert 3 * share(None, 16384 // 3).on(CARD).milli <= 1000


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"count": 0, "milli": 1},
        {"count": 65, "milli": 1000},
        {"milli": 1001},
        {"milli": -1},
        {"milli": 0},
        {"mib": 0},
        {"milli": 500, "limit": 400},
        {"milli": 500, "limit": 1001},
        {"mib": 5, "card_memory": 5},
        {"card_memory": 1001},
    ],
)
def test_a_request_without_meaning_cannot_be_made(fields: dict[str, int]) -> None:
    with pytest.raises(BadRequest):
        ShareRequest(**fields)  # pyright: ignore[reportArgumentType]


def containers(*parts: tuple[str, ShareRequest | None, Kind]) -> list[ContainerRequest]:
    return [ContainerRequest(*part) for part in parts]


def demands(*amounts: tuple[int, int, bool]) -> tuple[Demand, ...]:
    return tuple(Demand(Milli(milli), Mib(mib), whole) for milli, mib, whole in amounts)


def test_containers_that_run_together_add_up_on_one_gpu() -> None:
    need = footprint(containers(("a", share(300), Kind.MAIN), ("b", share(400, 100), Kind.MAIN)), CARD)
    assert need.demands == demands((700, 4915 + 100, False))
    assert {name: [number for number, _ in parts] for name, parts in need.slices.items()} == {"a": [0], "b": [0]}


def test_shares_that_do_not_fit_together_take_two_gpus() -> None:
    need = footprint(containers(("a", share(600), Kind.MAIN), ("b", share(600), Kind.MAIN)), CARD)
    assert need.demands == demands((600, 9830, False), (600, 9830, False))


def test_whole_gpus_are_nobody_elses() -> None:
    need = footprint(containers(("a", share(1000), Kind.MAIN), ("b", share(100), Kind.MAIN)), CARD)
    assert need.demands == demands((1000, 16384, True), (100, 1638, False))


def test_an_init_container_counts_only_while_it_is_larger() -> None:
    need = footprint(containers(("i", share(800, 10), Kind.INIT), ("a", share(300, 20), Kind.MAIN)), CARD)
    assert need.demands == demands((800, 20, False))


def test_a_sidecar_adds_to_init_and_main_containers_after_it() -> None:
    need = footprint(
        containers(
            ("early", share(900, 1), Kind.INIT),
            ("side", share(200, 1), Kind.SIDECAR),
            ("late", share(300, 1), Kind.INIT),
            ("main", share(100, 1), Kind.MAIN),
        ),
        CARD,
    )
    assert need.demands == demands((900, 2, False))


def test_several_gpus_are_different_gpus() -> None:
    need = footprint(containers(("a", share(500, count=3), Kind.MAIN)), CARD)
    assert [number for number, _ in need.slices["a"]] == [0, 1, 2]


def test_a_container_without_a_gpu_takes_none() -> None:
    assert footprint(containers(("a", None, Kind.MAIN)), CARD).demands == ()


def test_a_share_larger_than_the_card_is_still_told_truly() -> None:
    assert footprint(containers(("a", share(800), Kind.MAIN)), HALF_CARD).demands[0].milli == 800


@pytest.mark.parametrize("text", ["Fixed", "besteffort", "", None, 1])
def test_an_unknown_policy_names_those_that_exist(text: object) -> None:
    with pytest.raises(BadRequest, match="fixed or equal or best-effort"):
        parse_policy("milligpu.dev/policy", text)


def test_priorities_and_strategies_are_closed() -> None:
    assert parse_priority("p", "100") == 100
    assert parse_strategy("s", "best-fit").value == "best-fit"
    with pytest.raises(BadRequest, match="from 0 to 100"):
        parse_priority("p", 101)
    with pytest.raises(BadRequest, match="packing or best-fit"):
        parse_strategy("s", "tightest")


@given(
    st.lists(
        st.tuples(st.integers(1, 300), st.integers(1, 4000), st.sampled_from(list(Kind))), min_size=1, max_size=6
    )
)
def test_a_grant_takes_of_its_card_what_the_request_was_placed_with(parts: list[tuple[int, int, Kind]]) -> None:
    # On one card, so that nothing needs a second: whatever the order, both formulas must agree.
    card = Gpu("GPU-a", "V100", Mib(65536))
    kept = sorted(parts, key=lambda part: part[2] is Kind.MAIN)
    if sum(milli for milli, _, _ in kept) > 1000:
        return
    names = [f"c{number}" for number in range(len(kept))]
    asked = [(name, share(milli, mib), kind) for name, (milli, mib, kind) in zip(names, kept, strict=True)]
    granted = {
        name: [GpuShare("GPU-a", Milli(milli), Mib(mib), Milli(1000))]
        for name, (milli, mib, _) in zip(names, kept, strict=True)
    }
    kinds = {name: kind for name, (_, _, kind) in zip(names, kept, strict=True)}
    assert held(granted, kinds, {"GPU-a": card}) == {"GPU-a": footprint(containers(*asked), card).demands[0]}


def test_a_granted_whole_card_is_all_of_it() -> None:
    assert held({"main": [GpuShare("GPU-v", whole=True)]}, {"main": Kind.MAIN}, {"GPU-v": HALF_CARD}) == {
        "GPU-v": Demand(Milli(500), Mib(8192), whole=True)
    }
