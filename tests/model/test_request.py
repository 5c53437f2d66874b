from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milligpu.model.errors import BadRequest
from milligpu.model.footprint import GpuDemand, footprint, grant_demands
from milligpu.model.gpu import Gpu
from milligpu.model.grant import GpuShare, whole_gpu
from milligpu.model.policy import SharePolicy, parse_policy, parse_priority, parse_strategy
from milligpu.model.request import ContainerKind, ContainerRequest, Share, ShareRequest, policy_problem
from milligpu.model.units import Mib, Milli

CARD = Gpu("GPU-a", "V100", Mib(16384))
HALF_CARD = Gpu("GPU-v", "GRID V100-8Q", Mib(8192), milli=Milli(500))


def share(milli: int | None = None, mib: int | None = None, count: int = 1) -> ShareRequest:
    return ShareRequest(count, None if milli is None else Milli(milli), None if mib is None else Mib(mib))


@pytest.mark.parametrize(
    ("request_", "card", "part"),
    [
        (share(500), CARD, Share(Milli(500), Mib(8192), Milli(500))),
        (share(500, 1024), CARD, Share(Milli(500), Mib(1024), Milli(500))),
        (share(None, 4096), CARD, Share(Milli(250), Mib(4096), Milli(250))),
        (ShareRequest(milli=Milli(300), card_memory=Milli(500)), CARD, Share(Milli(300), Mib(8192), Milli(300))),
        (share(300), HALF_CARD, Share(Milli(300), Mib(4915), Milli(300))),
        (share(500), HALF_CARD, Share(Milli(500), Mib(8192), Milli(500))),
        (share(1000), CARD, Share(Milli(1000), Mib(16384), Milli(1000), whole=True)),
        (share(0, 1024), CARD, Share(Milli(0), Mib(1024), Milli(1))),
    ],
)
def test_missing_compute_or_memory_follows_from_the_gpu(request_: ShareRequest, card: Gpu, part: Share) -> None:
    assert request_.resolve(card) == part


@pytest.mark.parametrize(
    ("policy", "named", "limit"),
    [
        (None, None, 300),
        (None, 600, 600),
        (SharePolicy.FIXED, None, 300),
        (SharePolicy.FIXED, 300, 300),
        (SharePolicy.BEST_EFFORT, None, 1000),
        (SharePolicy.BEST_EFFORT, 600, 600),
        (SharePolicy.EQUAL, None, 1000),
        (SharePolicy.EQUAL, 600, 600),
    ],
)
def test_the_share_is_the_limit_unless_the_request_names_one_or_a_policy_with_idle_time(
    policy: SharePolicy | None, named: int | None, limit: int
) -> None:
    request = ShareRequest(milli=Milli(300), limit=None if named is None else Milli(named))
    assert policy_problem(request, policy) == ""
    for gpu in (CARD, HALF_CARD, replace(CARD, policy=SharePolicy.FIXED)):
        assert request.resolve(gpu, policy).limit == limit, "the GPU's own policy decides later"


@pytest.mark.parametrize(
    ("policy", "limits"),
    [(SharePolicy.BEST_EFFORT, (300, 600)), (SharePolicy.FIXED, (300, 300)), (SharePolicy.EQUAL, (1000, 600))],
)
def test_the_gpus_policy_decides_what_a_limit_is_worth(policy: SharePolicy, limits: tuple[int, int]) -> None:
    plain, elastic = Share(Milli(300), Mib(1), Milli(300)), Share(Milli(300), Mib(1), Milli(600))
    assert (plain.limit_on(policy), elastic.limit_on(policy)) == limits


@st.composite
def _requests(draw: st.DrawFn) -> ShareRequest:
    milli = draw(st.one_of(st.none(), st.integers(0, 1000).map(Milli)))
    limit = draw(st.one_of(st.none(), st.integers(max(1, milli or 0), 1000).map(Milli)))
    return ShareRequest(milli=milli, mib=draw(st.integers(1, 8192).map(Mib)), limit=limit)


@given(_requests(), st.sampled_from([None, *SharePolicy]), st.sampled_from(SharePolicy))
def test_no_request_is_limited_below_its_share_nor_gets_idle_time_that_it_or_the_gpu_rules_out(
    request: ShareRequest, named: SharePolicy | None, of_gpu: SharePolicy
) -> None:
    if policy_problem(request, named):
        return
    granted = request.resolve(CARD, named)
    allowed = granted.limit_on(of_gpu)
    assert max(1, granted.milli) <= allowed <= 1000
    if of_gpu is SharePolicy.FIXED:
        assert allowed == max(1, granted.milli), "nobody gets more than requested"
    elif of_gpu is SharePolicy.BEST_EFFORT:
        idle_time = named in {SharePolicy.BEST_EFFORT, SharePolicy.EQUAL}
        unnamed = 1000 if idle_time else max(1, granted.milli)
        assert allowed == (unnamed if request.limit is None else max(request.limit, granted.milli))


@pytest.mark.parametrize(
    ("fields", "policy"),
    [
        ({"milli": 300, "limit": 600}, SharePolicy.FIXED),
        ({"mib": 100, "limit": 600}, SharePolicy.FIXED),
        ({"milli": 0, "mib": 100}, None),
        ({"milli": 0, "mib": 100}, SharePolicy.FIXED),
    ],
)
def test_a_limit_that_contradicts_the_policy_or_is_missing_is_a_problem(
    fields: dict[str, int], policy: SharePolicy | None
) -> None:
    assert policy_problem(ShareRequest(**fields), policy)  # pyright: ignore[reportArgumentType]


def test_thirds_of_the_memory_fit_three_times() -> None:
    assert 3 * share(None, 16384 // 3).resolve(CARD).milli <= 1000


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


def containers(*parts: tuple[str, ShareRequest | None, ContainerKind]) -> list[ContainerRequest]:
    return [ContainerRequest(*part) for part in parts]


def demands(*amounts: tuple[int, int, bool]) -> tuple[GpuDemand, ...]:
    return tuple(GpuDemand(Milli(milli), Mib(mib), whole) for milli, mib, whole in amounts)


def test_containers_that_run_together_add_up_on_one_gpu() -> None:
    need = footprint(
        containers(("a", share(300), ContainerKind.MAIN), ("b", share(400, 100), ContainerKind.MAIN)), CARD
    )
    assert need.demands == demands((700, 4915 + 100, False))
    assert {name: [number for number, _ in parts] for name, parts in need.slices.items()} == {"a": [0], "b": [0]}


def test_shares_that_do_not_fit_together_take_two_gpus() -> None:
    need = footprint(containers(("a", share(600), ContainerKind.MAIN), ("b", share(600), ContainerKind.MAIN)), CARD)
    assert need.demands == demands((600, 9830, False), (600, 9830, False))


def test_a_whole_gpu_takes_no_other_share() -> None:
    need = footprint(
        containers(("a", share(1000), ContainerKind.MAIN), ("b", share(100), ContainerKind.MAIN)), CARD
    )
    assert need.demands == demands((1000, 16384, True), (100, 1638, False))


def test_an_init_container_counts_only_while_it_is_larger() -> None:
    need = footprint(
        containers(("i", share(800, 10), ContainerKind.INIT), ("a", share(300, 20), ContainerKind.MAIN)), CARD
    )
    assert need.demands == demands((800, 20, False))


def test_a_sidecar_adds_to_init_and_main_containers_after_it() -> None:
    need = footprint(
        containers(
            ("early", share(900, 1), ContainerKind.INIT),
            ("side", share(200, 1), ContainerKind.SIDECAR),
            ("late", share(300, 1), ContainerKind.INIT),
            ("main", share(100, 1), ContainerKind.MAIN),
        ),
        CARD,
    )
    assert need.demands == demands((900, 2, False))


def test_several_gpus_are_different_gpus() -> None:
    need = footprint(containers(("a", share(500, count=3), ContainerKind.MAIN)), CARD)
    assert [number for number, _ in need.slices["a"]] == [0, 1, 2]


def test_a_container_without_a_gpu_takes_none() -> None:
    assert footprint(containers(("a", None, ContainerKind.MAIN)), CARD).demands == ()


def test_a_share_larger_than_the_gpu_keeps_its_numbers() -> None:
    assert footprint(containers(("a", share(800), ContainerKind.MAIN)), HALF_CARD).demands[0].milli == 800


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
        st.tuples(st.integers(1, 300), st.integers(1, 4000), st.sampled_from(list(ContainerKind))),
        min_size=1,
        max_size=6,
    )
)
def test_a_grants_demand_is_that_of_its_request(
    parts: list[tuple[int, int, ContainerKind]],
) -> None:
    # On one card, so that nothing needs a second: whatever the order, both formulas must agree.
    card = Gpu("GPU-a", "V100", Mib(65536))
    kept = sorted(parts, key=lambda part: part[2] is ContainerKind.MAIN)
    if sum(milli for milli, _, _ in kept) > 1000:
        return
    names = [f"c{number}" for number in range(len(kept))]
    asked = [(name, share(milli, mib), kind) for name, (milli, mib, kind) in zip(names, kept, strict=True)]
    granted = {
        name: [GpuShare("GPU-a", Share(Milli(milli), Mib(mib), Milli(1000)))]
        for name, (milli, mib, _) in zip(names, kept, strict=True)
    }
    kinds = {name: kind for name, (_, _, kind) in zip(names, kept, strict=True)}
    assert grant_demands(granted, kinds, {"GPU-a": card}) == {
        "GPU-a": footprint(containers(*asked), card).demands[0]
    }


def test_a_granted_whole_gpu_is_all_of_the_gpu() -> None:
    assert grant_demands({"main": [whole_gpu("GPU-v")]}, {"main": ContainerKind.MAIN}, {"GPU-v": HALF_CARD}) == {
        "GPU-v": GpuDemand(Milli(500), Mib(8192), whole=True)
    }
