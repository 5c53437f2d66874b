"""Whether the accounts agree. Pure."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from bench.chaos.observe import Asked, End, Held, OnNode, Truth
from bench.chaos.script import WHOLE, Manner
from milligpu.model.gpu import Gpu
from milligpu.model.grant import Grant
from milligpu.model.units import Mib, Milli

# What the kubelet itself says when it would not have a pod because no plugin answered it.
_REJECTIONS = ("UnexpectedAdmissionError", "OutOfnvidia.com/")
# Killed, or lost by containerd, which was killed itself or rebooted.
_KILLED, _LOST = 137, 255
# What containerd says of a start in the middle of which the kubelet, which had asked for it, was killed.
_CUT_OFF = "context canceled"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What somebody asked for."""

    manner: Manner
    sizes: tuple[int, ...]
    """In milli-GPU; each but the first by a resize."""


@dataclass(frozen=True, slots=True)
class Cards:
    """The node's cards, in their order."""

    gpus: Sequence[Gpu]

    def overcommitted(self, grants: Iterable[Grant]) -> list[str]:
        """Cards of which more is granted than there is; pods here have one container each."""
        sizes = {gpu.uuid: (int(gpu.milli), int(gpu.mib)) for gpu in self.gpus}
        milli, mib = Counter[str](), Counter[str]()
        for grant in grants:
            for share in (share for shares in grant.containers.values() for share in shares):
                milli[share.gpu] += sizes[share.gpu][0] if share.whole else share.milli
                mib[share.gpu] += sizes[share.gpu][1] if share.whole else share.mib
        return [
            f"{gpu}: {milli[gpu]} of {size[0]} milli, {mib[gpu]} of {size[1]} MiB"
            for gpu, size in sizes.items()
            if milli[gpu] > size[0] or mib[gpu] > size[1]
        ]

    def really_overcommitted(self, held: Iterable[Held]) -> list[str]:
        """The same by what processes have: their cards, and the pages that they read."""
        milli, mib = Counter[str](), Counter[str]()
        for _, cards, book, shares in {(each.uid, each.cards, each.book, each.shares) for each in held}:
            whole = [(self.gpus[index].uuid, self.gpus[index].milli, self.gpus[index].mib) for index in cards]
            for gpu, of_time, of_memory in shares if book else whole:
                milli[gpu] += of_time
                mib[gpu] += of_memory
        return [
            f"{gpu.uuid}: processes have {milli[gpu.uuid]} milli and {mib[gpu.uuid]} MiB"
            for gpu in self.gpus
            if milli[gpu.uuid] > gpu.milli or mib[gpu.uuid] > gpu.mib
        ]


def granted_twice(cards: Cards, node: OnNode) -> list[str]:
    """What may not be at any moment, by the node's accounts."""
    grants = {book.uid: book.grant for book in node.books.values()}
    lost = [f"pod {each.uid} runs with a share that nobody remembers" for each in node.held if each.lost]
    return [*cards.overcommitted(grants.values()), *cards.really_overcommitted(node.held), *lost]


def granted_twice_in_api(cards: Cards, pods: Iterable[Asked]) -> list[str]:
    """The same by the API server's account."""
    living = (pod.grant for pod in pods if pod.phase not in {"Succeeded", "Failed"})
    return cards.overcommitted(grant for grant in living if grant is not None)


def is_rejected(pod: Asked) -> bool:
    """Whether the kubelet itself would not have it."""
    return pod.phase == "Failed" and pod.reason.startswith(_REJECTIONS)


def is_cut_off(end: End) -> bool:
    """Whether it was a start whose asker was killed."""
    return end[2].endswith(_CUT_OFF)


def may_be_stranded(wanted: Wanted, pod: Asked) -> bool:
    """Whether it looks like a pod that the kubelet will never begin with; only the runtime knows whether it is.

    When a machine falls between making and starting the container of a pod that is started only once, the kubelet
    takes the container for one that has run, and the pod for one that has not ended: it waits for ever.
    """
    return wanted.manner is Manner.ONCE and bool(pod.node) and pod.phase == "Pending" and not pod.ends


def died_of_us(pod: Asked, *, lost: bool, cut_off: Collection[End] = ()) -> str:
    """Why a pod or its container ended where it should not have; empty when all is well.

    `lost` says that containers were just lost with their runtime: what is started only once does not come back.
    `cut_off` are its starts in the middle of which the kubelet was killed.
    """
    ours = [end for end in pod.ends if end not in cut_off]
    for reason, code, message in ours:
        if code not in {0, _KILLED, _LOST} or reason in {"StartError", "ContainerCannotRun"}:
            return f"{pod.name}: its container ended with {reason} {code} {message}".rstrip()
    if pod.phase == "Failed" and not is_rejected(pod) and not lost and len(ours) == len(pod.ends):
        return f"{pod.name}: failed, {pod.reason} {pod.message}"
    return ""


def unsettled(wanted: Mapping[str, Wanted], truth: Truth, cards: Cards, fits: Callable[[str], bool]) -> list[str]:
    """What is not yet as it has to become. `fits` says whether there is room for a pod that waits."""
    known = {pod.name: pod for pod in truth.pods}
    uids = {pod.uid: pod for pod in truth.pods if pod.name in wanted and pod.phase not in {"Succeeded", "Failed"}}
    found = [f"{name}: is not there" for name in wanted if name not in known]
    found += [f"{name}: is still there, though deleted" for name in known if name not in wanted]
    counted = sum(wanted[pod.name].sizes[0] for pod in uids.values() if pod.node)

    def has_room(pod: Asked) -> bool:
        """The kubelet counts what pods were made with, whatever they were resized to."""
        return counted + wanted[pod.name].sizes[0] <= sum(gpu.milli for gpu in cards.gpus) and fits(pod.uid)

    for pod in truth.pods:
        if pod.name in wanted:
            found += _pod(wanted[pod.name], pod, truth.node, cards, has_room)
    for pod in uids.values():
        others = [other.grant for other in uids.values() if other is not pod and other.grant is not None]
        found += _resize(wanted[pod.name], pod, others, cards)
    found += [
        f"uid {each.uid}: a process of a pod that is gone" for each in truth.node.held if each.uid not in uids
    ]
    found += [
        f"uid {book.uid}: the agent keeps {name} for a pod that is gone"
        for name, book in truth.node.books.items()
        if book.uid not in uids
    ]
    if truth.node.files != frozenset(truth.node.books):
        found.append(f"CDI files and books differ: {sorted(truth.node.files ^ frozenset(truth.node.books))}")
    bound = sum(bool(pod.node) for pod in uids.values())
    if truth.stages.get("bound", 0) != bound:
        found.append(f"the scheduler service has {truth.stages.get('bound', 0)} bound pods, there are {bound}")
    return found


def _resize(wanted: Wanted, pod: Asked, others: Sequence[Grant], cards: Cards) -> list[str]:
    """A pod that has not the share it was last asked to have, though its card has room for it."""
    if pod.grant is None or len(wanted.sizes) == 1:
        return []
    ((share,),) = pod.grant.containers.values()
    size = wanted.sizes[-1]
    asked = replace(share, milli=Milli(size), mib=Mib(cards.gpus[0].mib * size // WHOLE))
    if share.milli == size or cards.overcommitted([replace(pod.grant, containers={"main": (asked,)}), *others]):
        return []
    return [f"{pod.name}: has {share.milli} instead of {size}, though there is room"]


def _pod(wanted: Wanted, pod: Asked, node: OnNode, cards: Cards, fits: Callable[[Asked], bool]) -> list[str]:
    if pod.phase == "Succeeded" and wanted.manner is Manner.JOB:
        return []
    if pod.phase == "Failed":
        return [f"{pod.name}: failed"]
    if not pod.node:
        return [f"{pod.name}: waits, though there is room"] if fits(pod) else []
    if not pod.running:
        return [f"{pod.name}: bound and not running: {pod.waiting} {pod.ends}"]
    held = [each for each in node.held if each.uid == pod.uid]
    return [f"{pod.name}: {wrong}" for wrong in _differences(wanted, pod, held, node, cards)]


def _differences(wanted: Wanted, pod: Asked, held: Sequence[Held], node: OnNode, cards: Cards) -> list[str]:
    """Between what was asked, granted, written down and held."""
    if pod.grant is None:
        return ["runs without a grant"]
    shares = [share for each in pod.grant.containers.values() for share in each]
    if not held:
        return ["no process of it has a card"]
    found: list[str] = []
    granted = {(share.gpu, int(share.milli), int(share.mib)) for share in shares if not share.whole}
    if any((WHOLE if share.whole else share.milli) not in wanted.sizes for share in shares):
        found.append(f"was granted {shares} instead of one of {wanted.sizes}")
    for each in held:
        if {cards.gpus[index].uuid for index in each.cards} != set(pod.grant.gpus):
            found.append(f"has cards {sorted(each.cards)}, granted are {pod.grant.gpus}")
        if set(each.shares) != granted:
            found.append(f"reads {each.shares}, granted are {granted}")
    books = [(name, book) for name, book in node.books.items() if book.uid == pod.uid]
    if [book.grant for _, book in books] != [pod.grant]:
        found.append(f"is {len(books)} times in the agent's books, or with another grant")
    if granted and {each.book for each in held} != {name for name, _ in books}:
        found.append("has another folder than the agent's books say")
    if not all(name in node.promised for name, _ in books):
        found.append("has a share that the kubelet was never promised")
    return found
