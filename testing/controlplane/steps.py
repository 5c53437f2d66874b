"""What happens in a simulation: a list of steps, drawn from a seed, that can be shortened."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from milligpu.dialects.resize import ShareChange, format_resize
from milligpu.kube.api import ApiUnanswered
from milligpu.model import names
from milligpu.model.gpu import GpuState
from milligpu.model.units import Milli
from testing.controlplane.client import Fault
from testing.controlplane.world import PodAsk, World

_SIZES = (100, 200, 300, 400, 500, 600, 600, 700)
_REQUESTS = ("bind", "bind", "bind", "nominate", "resize", "lease", "read", "class", "node", "ungate", "evict")
_KINDS = (*_REQUESTS, "list-pods", "list-nodes", "watch-pods")
_BLOCKS = ("claim", "only", "refused")
_CUTS = ("cut", "gone", "gone", "gone", "half-open", "repeat", "slow")


@dataclass(frozen=True, slots=True)
class Step:
    """One event of the simulation, and the seconds before it."""

    after: float
    what: str
    number: int = 0
    text: str = ""

    def __str__(self) -> str:
        return f"+{self.after:g} s: {self.what} {self.number} {self.text}".rstrip()


# Seconds between steps: a run is fast or slow, because what overlaps depends on it.
_PACES = ((0.0, 0.001, 0.003, 0.01), (0.0, 0.003, 0.02, 0.1, 0.5), (0.0, 0.02, 0.5, 1.0, 3.0, 10.0))
_ALWAYS = frozenset({"create", "finish"})
# How often each step is drawn; a test with fewer kinds finds its fault sooner.
WEIGHTS = {
    "create": 34,
    "burst": 4,
    "blocked": 4,
    "claim": 2,
    "delete": 8,
    "force-delete": 8,
    "recreate": 3,
    "finish": 24,
    "resize": 4,
    "fault": 12,
    "down": 2,
    "watch": 8,
    "relist": 14,
    "compact": 2,
    "slow-lists": 4,
    "node": 2,
    "agent": 2,
    "gpu": 2,
    "kill": 2,
    "kill-at": 3,
    "kill-in": 3,
    "stop": 2,
    "pause": 2,
    "no-binds": 1,
    "late-binds": 1,
    "scheduler": 1,
    "evict": 2,
    "budget": 2,
}


# Drawn only where they are asked for, so that older runs stay as they are.
_MORE = {"queued": 30}


def draw(dice: Random, count: int, only: Sequence[str] = ()) -> list[Step]:
    """Draw the steps of one run, of all kinds or only of some, such as `create` and `fault:nominate`.

    Each run leaves out most kinds of steps and has more of some others: faults that need two or three kinds in a
    row are found much sooner than if every run had a bit of everything.
    """
    weights = {what: weight * dice.choice((1, 1, 4)) for what, weight in WEIGHTS.items()}
    kinds = list(only) or [what for what in WEIGHTS if what in _ALWAYS or dice.random() < 0.45]
    pace = dice.choice(_PACES)
    chosen = dice.choices(kinds, [(weights | _MORE)[what.partition(":")[0]] for what in kinds], k=count)
    return [_draw(dice, what, pace) for what in chosen]


def _draw(dice: Random, what: str, pace: tuple[float, ...]) -> Step:
    after = dice.choice(pace)
    number, text = dice.randrange(1000), ""
    what, _, only = what.partition(":")
    match what:
        case "create" | "burst":
            written = dice.choice(("", "", "memory", "hami"))
            text = f"{dice.choice(_SIZES)} {dice.choice((0, 0, 0, 10))} {written}".rstrip()
        case "queued":
            text = f"{dice.choice(_SIZES)} {dice.choice((0, 0, 0, 10))} queued"
        case "blocked":
            text = f"{dice.choice(_SIZES)} {dice.choice((0, 10))} {only or dice.choice(_BLOCKS)}"
        case "resize":
            text = str(dice.choice(_SIZES[:6]))
        case "fault":
            text = f"{only or dice.choice(_KINDS)} {dice.choice(list(Fault)).name}"
        case "down":
            text = f"{only or dice.choice(_KINDS)} {dice.choice((3, 12, 20))}"
        case "watch":
            text = f"{dice.choice(('pods', 'pods', 'nodes'))} {only or dice.choice(_CUTS)}"
        case "slow-lists":
            text = str(dice.choice((0, 0.05, 0.5, 2)))
        case "gpu":
            text = dice.choice(("unhealthy", "ok", "ok", "lost"))
        case "budget":
            text = str(dice.choice((5, 30, 60)))
        case "pause":
            text = str(dice.choice((1, 8, 20)))
        case _:
            pass
    return Step(after, what, number, text)


def apply_step(world: World, step: Step) -> None:
    """Carry out a step; a step that makes no sense now does nothing."""
    _ACTIONS[step.what](world, step.number, step.text.split())


def _create(world: World, number: int, words: list[str]) -> None:
    what = words[2] if len(words) > 2 else ""
    ask = PodAsk(
        int(words[0]),
        int(words[1]),
        memory=what == "memory",
        hami=what == "hami",
        claim=f"claim-{number % 3}" if what == "claim" else "",
        only=f"n{number % (len(world.nodes) + 1)}" if what == "only" else "",
        refused=what == "refused",
        choosy=number % 4 == 0,
        queued=what == "queued",
    )
    world.create(ask)


def _burst(world: World, number: int, words: list[str]) -> None:
    for _ in range(2 + number % 5):
        _create(world, number, words)


def _pod_step(name: str) -> Callable[[World, int, list[str]], None]:
    def act(world: World, number: int, words: list[str]) -> None:
        pod = world.pod(number, running=name in {"finish", "resize"})
        if pod is None:
            return
        match name:
            case "finish":
                world.server.finish_pod(pod)
            case "resize":
                world.server.annotate_pod(pod, names.RESIZE, _resize_to(int(words[0])))
            case "recreate":
                world.recreate(pod)
            case _:
                world.server.delete_pod(pod, force=name == "force-delete")

    return act


def _resize_to(milli: int) -> str:
    return format_resize({"main": ShareChange(milli=Milli(milli))})


def _fault(world: World, number: int, words: list[str]) -> None:
    due = world.network.due.setdefault(words[0], deque())
    due.extend([Fault[words[1]]] * (1 + number % 3))


def _down(world: World, _: int, words: list[str]) -> None:
    world.network.down_until[words[0]] = world.clock.now + float(words[1])


def _watch(world: World, number: int, words: list[str]) -> None:
    if words[1] == "slow":
        world.network.watch_s = (0.0, 0.05, 0.5, 3.0)[number % 4]
    for stream in tuple(world.network.streams):
        if stream.kind != words[0]:
            continue
        match words[1]:
            case "cut":
                stream.put(ApiUnanswered("the connection was reset"))
            case "gone":
                stream.put(b'{"type":"ERROR","object":{"code":410,"message":"too old resource version"}}')
            case "half-open":
                stream.half_open = True
            case "repeat":
                stream.repeat()
            case _:
                pass


def _relist(world: World, number: int, _: list[str]) -> None:
    """Make the service list pods again; the list and the watch after it are slow."""
    world.network.list_s, world.network.watch_s = (0.3, 1.0, 2.0)[number % 3], (0.0, 0.05, 0.3)[number // 3 % 3]
    _watch(world, number, ["pods", "gone"])


def _compact(world: World, number: int, _: list[str]) -> None:
    world.server.compacted = max(world.server.compacted, world.server.version - number % 8)


def _slow_lists(world: World, number: int, words: list[str]) -> None:
    world.network.list_s = float(words[0])
    world.network.page = (500, 500, 3, 1)[number % 4]


def _node(world: World, number: int, _: list[str]) -> None:
    node = world.nodes[number % len(world.nodes)]
    node.there = not node.there
    world.server.put_node(node)


def _agent(world: World, number: int, _: list[str]) -> None:
    node = world.nodes[number % len(world.nodes)]
    node.agent = not node.agent
    world.server.put_node(node)


def _gpu(world: World, number: int, words: list[str]) -> None:
    node = world.nodes[number % len(world.nodes)]
    if words[0] == "lost":
        node.lost = number % (len(node.gpus) + 1)
        world.server.put_node(node)
        return
    world.set_gpu(node, number % len(node.gpus), GpuState(words[0]))


def _evict(world: World, number: int, _: list[str]) -> None:
    """Let a node's agent ask to evict a pod."""
    name = world.pod(number, running=True)
    if name is not None:
        world.ask_to_evict(name)


def _budget(world: World, _: int, words: list[str]) -> None:
    world.server.budget_until = world.clock.now + float(words[0])


def _kill(world: World, number: int, _: list[str]) -> None:
    world.instances[number % len(world.instances)].kill()


def _kill_at(world: World, number: int, _: list[str]) -> None:
    leader = world.leader
    if leader is not None:
        leader.client.die_at = 1 + number % 12


def _kill_in(world: World, number: int, _: list[str]) -> None:
    leader = world.leader
    if leader is not None:
        leader.loop.die_in = 1 + number % 40


def _restart_scheduler(world: World, _number: int, _words: list[str]) -> None:
    world.scheduler.restart()


def _stop(world: World, _number: int, _words: list[str]) -> None:
    leader = world.leader
    if leader is not None:
        leader.stop()


def _pause(world: World, _: int, words: list[str]) -> None:
    leader = world.leader
    if leader is not None:
        leader.pause(float(words[0]))


def _no_binds(world: World, number: int, _: list[str]) -> None:
    world.scheduler.forgets_binds_until = world.clock.now + 1 + number % 20


def _late_binds(world: World, number: int, _: list[str]) -> None:
    world.scheduler.binds_late_until = world.clock.now + 1 + number % 20


def _claim(world: World, number: int, _: list[str]) -> None:
    world.make_claim(f"claim-{number % 3}")


_ACTIONS: dict[str, Callable[[World, int, list[str]], None]] = {
    "create": _create,
    "queued": _create,
    "burst": _burst,
    "blocked": _create,
    "claim": _claim,
    "delete": _pod_step("delete"),
    "force-delete": _pod_step("force-delete"),
    "recreate": _pod_step("recreate"),
    "finish": _pod_step("finish"),
    "resize": _pod_step("resize"),
    "fault": _fault,
    "down": _down,
    "watch": _watch,
    "relist": _relist,
    "compact": _compact,
    "slow-lists": _slow_lists,
    "node": _node,
    "agent": _agent,
    "gpu": _gpu,
    "evict": _evict,
    "budget": _budget,
    "kill": _kill,
    "kill-at": _kill_at,
    "kill-in": _kill_in,
    "stop": _stop,
    "pause": _pause,
    "no-binds": _no_binds,
    "late-binds": _late_binds,
    "scheduler": _restart_scheduler,
}
