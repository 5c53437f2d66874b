from milligpu.model.gpu import Gpu
from milligpu.model.grant import GpuShare, Grant
from milligpu.model.request import Kind
from milligpu.model.units import Mib, Milli
from milligpu.node.attach import Attached, Plan, PodView, View, plan
from milligpu.node.checks import Fault, Here, Tenancy
from milligpu.node.holders import Holder
from milligpu.node.ledger import Allocation
from milligpu.wire.grant import encode_grant

CARDS = {"GPU-a": Gpu("GPU-a", "V100", Mib(16384))}
MAIN = {"main": Kind.MAIN}


def granted(uid: str, milli: int, generation: int = 1) -> Grant:
    share = GpuShare("GPU-a", Milli(milli), Mib(1024), Milli(milli))
    return Grant(uid, "n1", {"main": (share,)}, generation=generation)


def pod(uid: str, milli: int = 500, *, finished: bool = False, generation: int = 1) -> PodView:
    grant = encode_grant(granted(uid, milli, generation))
    return PodView(uid, "default", f"pod-{uid}", MAIN, grant, finished)


def promise(name: str, number: int = 1) -> Allocation:
    return Allocation(name, number, "nvidia.com/vgpu", frozenset({f"slot-{name}"}))


def attached(name: str, uid: str, milli: int = 500) -> Attached:
    return Attached(name, "main", Tenancy(uid, granted(uid, milli), MAIN))


def view(
    *pods: PodView,
    promised: list[Allocation],
    holders: dict[str, str],
    held: list[Attached] | None = None,
    running: frozenset[str] = frozenset(),
) -> View:
    return View(
        promised,
        {name: Holder(uid, "main") for name, uid in holders.items()},
        {each.uid: each for each in pods},
        {each.name: each for each in held or []},
        running,
        Here("n1", CARDS),
    )


def test_a_known_holder_with_a_good_grant_is_attached() -> None:
    found = plan(view(pod("u1"), promised=[promise("a")], holders={"a": "u1"}))
    assert found == Plan((attached("a", "u1"),), (), ())


def test_an_unknown_holder_is_waited_for() -> None:
    assert plan(view(pod("u1"), promised=[promise("a")], holders={})) == Plan((), (), ())


def test_of_two_that_do_not_fit_together_the_first_one_wins() -> None:
    found = plan(
        view(
            pod("u1", 600),
            pod("u2", 600),
            promised=[promise("b", 2), promise("a", 1)],
            holders={"a": "u1", "b": "u2"},
        )
    )
    assert [each.name for each in found.attach] == ["a"]
    assert [(each.name, each.problem.fault) for each in found.refused] == [("b", Fault.OVERCOMMIT)]


def test_a_share_is_free_only_when_the_processes_are_gone_not_when_the_pod_is() -> None:
    held = [attached("old", "u1", 600)]
    promised, holders = [promise("old"), promise("new", 2)], {"old": "u1", "new": "u2"}
    still = plan(view(pod("u2", 600), promised=promised, holders=holders, held=held, running=frozenset({"u1"})))
    assert (still.attach, still.detach) == ((), ())
    assert [each.problem.fault for each in still.refused] == [Fault.OVERCOMMIT]
    after = plan(view(pod("u2", 600), promised=promised, holders=holders, held=held))
    assert [each.name for each in after.attach] == ["new"]
    assert after.detach == ("old",)


def test_a_finished_pod_gives_back_what_it_held() -> None:
    found = plan(
        view(pod("u1", finished=True), promised=[promise("a")], holders={"a": "u1"}, held=[attached("a", "u1")])
    )
    assert found == Plan((), ("a",), ())


def test_what_is_attached_stays_though_the_grant_is_no_longer_to_be_seen() -> None:
    bare = PodView("u1", "default", "p", MAIN, None)
    assert plan(view(bare, promised=[promise("a")], holders={"a": "u1"}, held=[attached("a", "u1")])) == Plan(
        (), (), ()
    )


def test_a_pod_without_a_grant_or_with_a_broken_one_gets_nothing() -> None:
    for text, fault in ((None, Fault.NO_GRANT), ("{", Fault.BAD_GRANT)):
        bare = PodView("u1", "default", "p", MAIN, text)
        found = plan(view(bare, promised=[promise("a")], holders={"a": "u1"}))
        assert [each.problem.fault for each in found.refused] == [fault]
        assert found.attach == ()


def test_a_later_grant_resizes_a_running_container_where_it_fits() -> None:
    held = [attached("a", "u1", 500), attached("b", "u2", 300)]
    promised, holders = [promise("a"), promise("b", 2)], {"a": "u1", "b": "u2"}
    later = pod("u1", 700, generation=2)
    found = plan(view(later, pod("u2", 300), promised=promised, holders=holders, held=held))
    assert found.resize == (Attached("a", "main", Tenancy("u1", granted("u1", 700, 2), MAIN)),)
    greedy = pod("u1", 701, generation=2)
    assert plan(view(greedy, pod("u2", 300), promised=promised, holders=holders, held=held)).resize == ()
    earlier = pod("u1", 100, generation=1)
    assert plan(view(earlier, pod("u2", 300), promised=promised, holders=holders, held=held)).resize == ()


def test_one_who_shrinks_makes_room_for_one_who_grows_whichever_is_seen_first() -> None:
    promised, holders = [promise("a"), promise("b", 2)], {"a": "u1", "b": "u2"}
    held = [attached("a", "u1", 500), attached("b", "u2", 500)]
    pods = pod("u1", 800, generation=2), pod("u2", 200, generation=2)
    first = plan(view(*pods, promised=promised, holders=holders, held=held))
    assert ([each.name for each in first.resize], first.held_back) == (["b"], ("a",))
    then = plan(view(*pods, promised=promised, holders=holders, held=[held[0], *first.resize]))
    assert ([each.name for each in then.resize], then.held_back) == (["a"], ())


def test_nobody_is_attached_to_what_is_given_back_in_the_same_moment() -> None:
    promised, holders = [promise("a"), promise("b", 2)], {"a": "u1", "b": "u2"}
    pods = pod("u1", 200, generation=2), pod("u2", 500)
    found = plan(view(*pods, promised=promised, holders=holders, held=[attached("a", "u1", 800)]))
    assert [each.name for each in found.resize] == ["a"]
    assert [each.problem.fault for each in found.refused] == [Fault.OVERCOMMIT]


def test_a_later_grant_that_does_not_fit_is_held_back_and_looked_at_again() -> None:
    promised, holders = [promise("a"), promise("b", 2)], {"a": "u1", "b": "u2"}
    held = [attached("a", "u1", 500), attached("b", "u2", 500)]
    found = plan(view(pod("u1", 800, generation=2), pod("u2", 500), promised=promised, holders=holders, held=held))
    assert (found.resize, found.held_back) == ((), ("a",))
