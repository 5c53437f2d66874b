"""Makes a script happen on a cluster, and looks on: at every moment, and in depth when all has come to rest."""

import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, assert_never, cast

import httpx2
from lightkube.core.exceptions import ApiError
from lightkube.resources.core_v1 import Pod

from bench.chaos import observe, verdict
from bench.chaos.script import (
    HUNG_S,
    REBOOTS,
    Blow,
    Crash,
    Create,
    Delete,
    Manner,
    Part,
    Resize,
    Round,
    Script,
    Step,
)
from bench.chaos.verdict import Wanted
from devcluster.cluster import Cluster
from devcluster.platform import GpuNode, Platform
from devcluster.pods import pod
from devcluster.process import Process
from devcluster.report import to_stderr
from devcluster.wait import TimedOut, until
from milligpu.kube import fetch
from milligpu.model import names
from milligpu.node.processes import pod_of
from milligpu.scheduler.view import view

NAMESPACE = "default"
# The kubelet tries a container again after ten seconds; a doubtful bind is settled after a minute.
SETTLE_S = 150.0
_WATCH_S = 0.2
_AWAY = (httpx2.HTTPError, ApiError)
# While a part is away nothing else can be expected; a control plane that was killed is back within seconds.
_PATIENCE_S = 90.0
_GONE, _THERE = 404, 409
# How a Go program says that it fell over, and enough lines to see where.
_CRASH, _TRACE_LINES = "panic:", 60

HOLD = """
import ctypes, signal, sys, time
if "stubborn" in sys.argv: signal.signal(signal.SIGTERM, signal.SIG_IGN)
else: signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
cuda = ctypes.CDLL("libcuda.so.1")
total, context = ctypes.c_size_t(), ctypes.c_void_p()
for code in (cuda.cuInit(0), cuda.cuDeviceTotalMem_v2(ctypes.byref(total), 0),
             cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)):
    if code: sys.exit(f"CUDA says {code}")
def granted():
    try: page = open("/run/milligpu/tenant/limits", "rb").read()
    except FileNotFoundError: return int(sys.argv[1])
    return int.from_bytes(page[120:128], "little") >> 20
if total.value >> 20 != granted(): sys.exit(f"sees {total.value >> 20} MiB, not {granted()}")
time.sleep(1 if "job" in sys.argv else 100000)
"""


@dataclass
class Outcome:
    """What a run came to."""

    rounds: int = 0
    pods: int = 0
    rejected: Counter[str] = field(default_factory=Counter[str])
    """Pods that the kubelet itself would not have, by its words."""
    cut_off: set[tuple[str, observe.End]] = field(default_factory=set[tuple[str, observe.End]])
    """Starts in the middle of which the kubelet was killed, each with its pod."""
    stranded: int = 0
    """Pods that the kubelet never began with after a reboot."""
    violations: list[str] = field(default_factory=list[str])
    looks: int = 0
    """How often everything was looked at while it happened."""
    settled_s: list[float] = field(default_factory=list[float])
    """How long each round took to come to rest."""


class Stage:
    """One cluster with one node, its pods, and the outcome so far."""

    def __init__(self, cluster: Cluster, platform: Platform) -> None:
        self._cluster = cluster
        self._service = platform.service
        self._node: GpuNode = platform.nodes[0]
        self._cards = verdict.Cards(self._node.inventory())
        self._wanted: dict[str, Wanted] = {}
        self._hurt: frozenset[Part] = frozenset()
        self._differs: list[str] = []
        self.outcome = Outcome()

    # -- doing ---------------------------------------------------------------------------------------------------

    def play(self, round_: Round) -> None:
        """One round: its steps, and then rest."""
        self._hurt = frozenset(round_.parts)
        with ThreadPoolExecutor() as pool:
            blows: list[Future[None]] = []
            for pause, step in round_.steps:
                time.sleep(pause)
                if isinstance(step, Blow):
                    blows.append(pool.submit(self._blow, step))
                else:
                    self._do(step)
            for blow in blows:
                blow.result()
        self.outcome.rounds += 1
        self.settle(f"round {round_.number}, {', '.join(round_.parts)}")

    def finish(self) -> None:
        """Delete everything: all must be free again, to the last share, and then be had whole."""
        for name in list(self._wanted):
            self._do(Delete(name, force=False))
        self.settle("the end")
        with self._reporting("all promises to be forgotten"):
            until("no promise and no reservation", self._is_empty, SETTLE_S, every_s=0.5, retry=_AWAY)
        for number, _ in enumerate(self._cards.gpus):
            self._do(Create(f"whole-{number}", 1000, Manner.STAYS))
        self.settle("every card as a whole")
        for name in list(self._wanted):
            self._do(Delete(name, force=False))
        self.settle("nothing")

    def _is_empty(self) -> bool:
        stages = observe.stages(self._service)
        return not observe.on_node(self._node).promised and not any(stages.values())

    def _do(self, step: Step) -> None:
        match step:
            case Create():
                self._patiently(lambda: self._create(step), _THERE)
                self._wanted[step.name] = Wanted(step.manner, (step.milli,))
                self.outcome.pods += 1
            case Delete(name, force):
                grace = 0 if force else None
                delete = self._cluster.client.delete
                self._patiently(lambda: delete(Pod, name, namespace=NAMESPACE, grace_period=grace), _GONE)
                self._wanted.pop(name, None)
            case Crash(name):
                self._crash(name)
            case Resize(name, milli):
                self._patiently(lambda: self._resize(name, milli), _GONE)
            case Blow():
                self._blow(step)
            case _:
                assert_never(step)

    def _create(self, step: Create) -> None:
        words = {Manner.JOB: "job", Manner.STUBBORN: "stubborn"}.get(step.manner, "")
        self._cluster.client.create(
            pod(
                step.name,
                ["python3", "-c", HOLD, str(self._memory(step.milli)), words],
                resources={names.VGPU: str(step.milli)},
                restartPolicy={Manner.ONCE: "Never", Manner.JOB: "OnFailure"}.get(step.manner, "Always"),
                terminationGracePeriodSeconds=30 if step.manner is Manner.STUBBORN else 1,
            ),
            namespace=NAMESPACE,
        )

    def _resize(self, name: str, milli: int) -> None:
        wanted = self._wanted.get(name)
        if wanted is None:
            return  # the kubelet would not have it, and it was buried
        self._wanted[name] = replace(wanted, sizes=(*wanted.sizes, milli))
        share = {"main": {"milli": milli, "mib": self._memory(milli)}}
        notes = {"metadata": {"annotations": {names.RESIZE: json.dumps(share)}}}
        cast(Any, self._cluster.client).patch(Pod, name, notes, namespace=NAMESPACE)

    def _memory(self, milli: int) -> int:
        return self._cards.gpus[0].mib * milli // 1000

    @staticmethod
    def _patiently(act: Callable[[], object], done: int) -> None:
        """As a person would: again, until the API server has carried it out."""

        def attempt() -> bool:
            try:
                act()
            except ApiError as error:
                if error.status.code != done:
                    raise
            return True

        until("the API server to do as it is told", attempt, _PATIENCE_S, every_s=0.2, retry=_AWAY)

    def _crash(self, name: str) -> None:
        """Kill what runs in the pod's container; a pod that does not run has nothing to lose."""
        with suppress(*_AWAY):
            uid = next(
                (each.uid for each in observe.asked(self._cluster.client, NAMESPACE) if each.name == name), ""
            )
            for pid in self._node.node.pids():
                with suppress(OSError):
                    of_pod = pod_of(Path(f"/proc/{pid}/cgroup").read_bytes()) == uid
                    if of_pod and b"python3" in Path(f"/proc/{pid}/cmdline").read_bytes():
                        os.kill(pid, signal.SIGKILL)

    def _blow(self, blow: Blow) -> None:
        if blow.part in REBOOTS:
            self._reboot(blow)
        elif blow.part is Part.HUNG_AGENT:
            self._node.agent.pause()
            time.sleep(HUNG_S)
            self._node.agent.resume()
        else:
            process = self._process(blow.part)
            process.kill()
            time.sleep(blow.away_s)
            process.start()

    def _process(self, part: Part) -> Process:
        plane = self._cluster.control_plane
        return {
            Part.AGENT: self._node.agent,
            Part.KUBELET: self._node.node.kubelet,
            Part.CONTAINERD: self._node.node.containerd,
            Part.SERVICE: self._service.process,
            Part.KUBE_SCHEDULER: plane.schedulers["kube-scheduler"],
            Part.API_SERVER: plane.apiserver,
            Part.ETCD: plane.etcd,
        }[part]

    def _reboot(self, blow: Blow) -> None:
        """The whole machine at once, the control plane included."""
        plane = (*self._cluster.control_plane.components, self._service.process)
        for process in plane:
            process.kill()
        self._node.node.power_off(keep=("cdi",) if blow.part is Part.STALE_REBOOT else ())
        time.sleep(blow.away_s)
        for process in plane:
            process.start()
        self._node.power_on()

    # -- looking -------------------------------------------------------------------------------------------------

    @contextmanager
    def watched(self) -> Generator[None]:
        """Look at everything all the time, while the block runs."""
        stop = threading.Event()

        def look() -> None:
            while not stop.wait(_WATCH_S):
                self.look()

        thread = threading.Thread(target=look, name="watch", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def look(self) -> None:
        """Is anything given twice at this moment?"""
        node = observe.common(observe.on_node(self._node), observe.on_node(self._node))
        self._accuse("at a moment", verdict.granted_twice(self._cards, node))
        with suppress(*_AWAY):
            pods = observe.asked(self._cluster.client, NAMESPACE)
            self._accuse("in the API", verdict.granted_twice_in_api(self._cards, pods))
        self.outcome.looks += 1

    def settle(self, when: str) -> None:
        """Wait until all accounts agree; what still differs at the deadline is a violation."""
        start = time.monotonic()
        with self._reporting(when):
            until(f"rest after {when}", self._at_rest, SETTLE_S, every_s=0.3, retry=_AWAY, last_state=self._says)
        self.outcome.settled_s.append(time.monotonic() - start)

    def _at_rest(self) -> bool:
        self._supervise()
        truth = self._truth()
        self._bury(truth.pods)
        self._differs = verdict.unsettled(self._wanted, truth, self._cards, self._fits)
        return not self._differs

    def _says(self) -> str:
        return "\n".join(self._differs)

    def _truth(self) -> observe.Truth:
        pods = observe.asked(self._cluster.client, NAMESPACE)
        return observe.Truth(pods, observe.on_node(self._node), observe.stages(self._service))

    def _fits(self, uid: str) -> bool:
        """By books made anew from what the API server has."""
        books = view(fetch.nodes(self._cluster.client), fetch.pods(self._cluster.client))
        entry = books.entry(uid)
        return entry is not None and books.fits(entry.wish)

    def _bury(self, pods: Iterable[observe.Asked]) -> None:
        """Pods that ended, each with its reason; what the kubelet did itself is counted apart."""
        lost = bool(self._hurt & (REBOOTS | {Part.CONTAINERD}))
        for each in (each for each in pods if each.name in self._wanted):
            if self._hurt & (REBOOTS | {Part.KUBELET}):
                self.outcome.cut_off |= {(each.uid, end) for end in each.ends if verdict.is_cut_off(end)}
            cut_off = [end for uid, end in self.outcome.cut_off if uid == each.uid]
            why = verdict.died_of_us(each, lost=lost, cut_off=cut_off)
            self._accuse("dead because of us", [why] if why else [])
            if each.phase == "Failed":
                if verdict.is_rejected(each):
                    self.outcome.rejected[f"{each.reason}: {each.message}"] += 1
                self._do(Delete(each.name, force=False))
            elif self._is_stranded(each):
                self.outcome.stranded += 1
                self._do(Delete(each.name, force=False))

    def _is_stranded(self, pod: observe.Asked) -> bool:
        rebooted = bool(self._hurt & REBOOTS)
        suspect = rebooted and verdict.may_be_stranded(self._wanted[pod.name], pod)
        return suspect and observe.is_stranded(self._node, pod.uid)

    def _supervise(self) -> None:
        """Start again what could not stand that others were away; our own parts must."""
        node = self._node.node
        if not node.kubelet.is_running and _CRASH in (tail := node.kubelet.tail(_TRACE_LINES)):
            self._accuse("the kubelet crashed", [tail])
        for process in (*self._cluster.control_plane.components, node.containerd, node.kubelet):
            process.start()
        for process in (self._service.process, self._node.agent):
            if not process.is_running:
                self._accuse(f"{process.name} died by itself", [process.tail(15)])
                process.start()

    @contextmanager
    def _reporting(self, when: str) -> Generator[None]:
        try:
            yield
        except TimedOut as error:
            self._accuse(when, [str(error)])

    def _accuse(self, when: str, violations: Iterable[str]) -> None:
        for violation in violations:
            text = f"{when}: {violation}"
            if text not in self.outcome.violations:
                self.outcome.violations.append(text)


def perform(stage: Stage, rounds: int, seed: int) -> Outcome:
    """All of it; ends early with the first round in which something was wrong."""
    with stage.watched():
        for each in Script(seed).rounds(rounds):
            started = time.monotonic()
            stage.play(each)
            to_stderr(f"round {each.number}: {', '.join(each.parts)}, {time.monotonic() - started:.1f} s")
            if stage.outcome.violations:
                return stage.outcome
        stage.finish()
    return stage.outcome
