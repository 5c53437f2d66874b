"""Run a script on a cluster; check the invariants all the time, and in full when the cluster has settled."""

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

from devcluster.cluster import Cluster
from devcluster.platform import GpuNode, Platform
from devcluster.pods import pod
from devcluster.process import Process
from devcluster.report import to_stderr
from devcluster.wait import TimedOut, until
from milligpu.agent.pod_processes import pod_uid_in_cgroup
from milligpu.cluster.read import read_cluster
from milligpu.kube import config, fetch
from milligpu.model import names
from testing.chaos import invariants, observe
from testing.chaos.invariants import RequestedPod
from testing.chaos.script import (
    HUNG_S,
    REBOOTS,
    Component,
    Crash,
    Create,
    Delete,
    Disruption,
    PodLifecycle,
    Resize,
    Round,
    Script,
    Step,
)

NAMESPACE = "default"
# The kubelet retries a container after ten seconds; a bind with an unknown result is settled after a minute.
SETTLE_S = 150.0
# Longer than a killed agent or kubelet is away, so that either finds a pod that is still ending.
STUBBORN_S = 6
_WATCH_S = 0.2
_UNREACHABLE = (httpx2.HTTPError, ApiError)
# API requests fail while a component is down; a killed control plane is back within seconds.
_RETRY_S = 90.0
_NOT_FOUND, _CONFLICT = 404, 409
# A crashed Go program prints this, and enough lines of its log to see where.
_CRASH, _TRACE_LINES = "panic:", 60

HOLD = """
import ctypes, signal, sys, time
if "stubborn" in sys.argv: signal.signal(signal.SIGTERM, signal.SIG_IGN)
else: signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
cuda = ctypes.CDLL("libcuda.so.1")
total, context = ctypes.c_size_t(), ctypes.c_void_p()
for code in (cuda.cuInit(0), cuda.cuDeviceTotalMem_v2(ctypes.byref(total), 0),
             cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)):
    if code: sys.exit(f"CUDA error {code}")
def granted():
    try: page = open("/run/milligpu/tenant/limits", "rb").read()
    except FileNotFoundError: return int(sys.argv[1])
    return int.from_bytes(page[120:128], "little") >> 20
if total.value >> 20 != granted(): sys.exit(f"sees {total.value >> 20} MiB, not {granted()}")
time.sleep(1 if "job" in sys.argv else 100000)
"""


@dataclass
class Outcome:
    """The result of a run."""

    rounds: int = 0
    pods: int = 0
    rejected: Counter[str] = field(default_factory=Counter[str])
    """Pods that the kubelet rejected for a reason of its own, by its message."""
    interrupted: set[tuple[str, observe.End]] = field(default_factory=set[tuple[str, observe.End]])
    """Container starts during which the kubelet was killed, each with its pod."""
    stranded: int = 0
    """Pods that the kubelet never started after a reboot."""
    violations: list[str] = field(default_factory=list[str])
    checks: int = 0
    """How often the invariants were checked while the rounds ran."""
    settled_s: list[float] = field(default_factory=list[float])
    """How long each round took to settle."""


class ChaosTestbed:
    """One cluster with one node, its pods, and the outcome so far."""

    def __init__(self, cluster: Cluster, platform: Platform) -> None:
        self._cluster = cluster
        self._service = platform.service
        self._node: GpuNode = platform.nodes[0]
        self._capacity = invariants.NodeCapacity(self._node.inventory())
        self._requested: dict[str, RequestedPod] = {}
        self._disrupted: frozenset[Component] = frozenset()
        self._differences: list[str] = []
        self.outcome = Outcome()

    # -- steps ---------------------------------------------------------------------------------------------------

    def run_round(self, round_: Round) -> None:
        """Run the steps of one round and wait until the cluster has settled."""
        self._disrupted = frozenset(round_.components)
        with ThreadPoolExecutor() as pool:
            disruptions: list[Future[None]] = []
            for pause, step in round_.steps:
                time.sleep(pause)
                if isinstance(step, Disruption):
                    disruptions.append(pool.submit(self._disrupt, step))
                else:
                    self._do(step)
            for disruption in disruptions:
                disruption.result()
        self.outcome.rounds += 1
        self.settle(f"round {round_.number}, {', '.join(round_.components)}")

    def finish(self) -> None:
        """Delete everything and check that every GPU can then be had whole."""
        for name in list(self._requested):
            self._do(Delete(name, force=False))
        self.settle("the end")
        with self._report_timeout("removal of all allocations"):
            until("no allocation and no reservation", self._is_empty, SETTLE_S, every_s=0.5, retry=_UNREACHABLE)
        for number, _ in enumerate(self._capacity.gpus):
            self._do(Create(f"whole-{number}", 1000, PodLifecycle.STAYS))
        self.settle("every GPU as a whole")
        for name in list(self._requested):
            self._do(Delete(name, force=False))
        self.settle("nothing")

    def _is_empty(self) -> bool:
        stages = observe.stages(self._service)
        return not observe.read_node(self._node).allocations and not any(stages.values())

    def _do(self, step: Step) -> None:
        match step:
            case Create():
                self._retry(lambda: self._create(step), _CONFLICT)
                self._requested[step.name] = RequestedPod(step.lifecycle, (step.milli,))
                self.outcome.pods += 1
            case Delete(name, force):
                grace = 0 if force else None
                delete = self._cluster.client.delete
                self._retry(lambda: delete(Pod, name, namespace=NAMESPACE, grace_period=grace), _NOT_FOUND)
                self._requested.pop(name, None)
            case Crash(name):
                self._crash(name)
            case Resize(name, milli):
                self._retry(lambda: self._resize(name, milli), _NOT_FOUND)
            case Disruption():
                self._disrupt(step)
            case _:
                assert_never(step)

    def _create(self, step: Create) -> None:
        option = {PodLifecycle.JOB: "job", PodLifecycle.STUBBORN: "stubborn"}.get(step.lifecycle, "")
        self._cluster.client.create(
            pod(
                step.name,
                ["python3", "-c", HOLD, str(self._memory(step.milli)), option],
                resources={names.VGPU: str(step.milli)},
                restartPolicy={PodLifecycle.ONCE: "Never", PodLifecycle.JOB: "OnFailure"}.get(
                    step.lifecycle, "Always"
                ),
                terminationGracePeriodSeconds=STUBBORN_S if step.lifecycle is PodLifecycle.STUBBORN else 1,
            ),
            namespace=NAMESPACE,
        )

    def _resize(self, name: str, milli: int) -> None:
        requested = self._requested.get(name)
        if requested is None:
            return  # the kubelet rejected it, and it was deleted
        self._requested[name] = replace(requested, sizes=(*requested.sizes, milli))
        share = {"main": {"milli": milli, "mib": self._memory(milli)}}
        patch = {"metadata": {"annotations": {names.RESIZE: json.dumps(share)}}}
        cast(Any, self._cluster.client).patch(Pod, name, patch, namespace=NAMESPACE)

    def _memory(self, milli: int) -> int:
        return self._capacity.gpus[0].mib * milli // 1000

    @staticmethod
    def _retry(act: Callable[[], object], done: int) -> None:
        """Retry until the API server has carried out the request; `done` is the status code of a repeat."""

        def attempt() -> bool:
            try:
                act()
            except ApiError as error:
                if error.status.code != done:
                    raise
            return True

        until("the API server to carry out a request", attempt, _RETRY_S, every_s=0.2, retry=_UNREACHABLE)

    def _crash(self, name: str) -> None:
        """Kill the processes in the pod's container, if it runs."""
        with suppress(*_UNREACHABLE):
            uid = next(
                (each.uid for each in observe.read_pods(self._cluster.client, NAMESPACE) if each.name == name), ""
            )
            for pid in self._node.node.pids():
                with suppress(OSError):
                    of_pod = pod_uid_in_cgroup(Path(f"/proc/{pid}/cgroup").read_bytes()) == uid
                    if of_pod and b"python3" in Path(f"/proc/{pid}/cmdline").read_bytes():
                        os.kill(pid, signal.SIGKILL)

    def _disrupt(self, disruption: Disruption) -> None:
        if disruption.component in REBOOTS:
            self._reboot(disruption)
        elif disruption.component is Component.HUNG_AGENT:
            self._node.agent.pause()
            time.sleep(HUNG_S)
            self._node.agent.resume()
        else:
            process = self._process(disruption.component)
            process.kill()
            time.sleep(disruption.away_s)
            process.start()

    def _process(self, component: Component) -> Process:
        plane = self._cluster.control_plane
        return {
            Component.AGENT: self._node.agent,
            Component.KUBELET: self._node.node.kubelet,
            Component.CONTAINERD: self._node.node.containerd,
            Component.SERVICE: self._service.process,
            Component.KUBE_SCHEDULER: plane.schedulers["kube-scheduler"],
            Component.API_SERVER: plane.apiserver,
            Component.ETCD: plane.etcd,
        }[component]

    def _reboot(self, disruption: Disruption) -> None:
        """Power off the whole machine, including the control plane, and start it again."""
        plane = (*self._cluster.control_plane.components, self._service.process)
        for process in plane:
            process.kill()
        self._node.node.power_off(keep=("cdi",) if disruption.component is Component.STALE_REBOOT else ())
        time.sleep(disruption.away_s)
        for process in plane:
            process.start()
        self._node.power_on()

    # -- checks --------------------------------------------------------------------------------------------------

    @contextmanager
    def watched(self) -> Generator[None]:
        """Check the invariants continuously while the block runs."""
        stop = threading.Event()

        def check() -> None:
            while not stop.wait(_WATCH_S):
                self.check_now()

        thread = threading.Thread(target=check, name="watch", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def check_now(self) -> None:
        """Report GPUs that are over-committed now."""
        node = observe.common(observe.read_node(self._node), observe.read_node(self._node))
        self._report("on the node", invariants.overcommitted_on_node(self._capacity, node))
        with suppress(*_UNREACHABLE):
            pods = observe.read_pods(self._cluster.client, NAMESPACE)
            self._report("in the API", invariants.overcommitted_in_api(self._capacity, pods))
        self.outcome.checks += 1

    def settle(self, when: str) -> None:
        """Wait until all sources agree; a difference that remains at the deadline is a violation."""
        start = time.monotonic()
        with self._report_timeout(when):
            until(
                f"the cluster to settle after {when}",
                self._is_settled,
                SETTLE_S,
                every_s=0.3,
                retry=_UNREACHABLE,
                last_state=self._describe_differences,
            )
        self.outcome.settled_s.append(time.monotonic() - start)

    def _is_settled(self) -> bool:
        self._restart_dead()
        observation = self._observe()
        self._remove_ended(observation.pods)
        self._differences = invariants.differences(self._requested, observation, self._capacity, self._fits)
        return not self._differences

    def _describe_differences(self) -> str:
        return "\n".join(self._differences)

    def _observe(self) -> observe.Observation:
        pods = observe.read_pods(self._cluster.client, NAMESPACE)
        return observe.Observation(pods, observe.read_node(self._node), observe.stages(self._service))

    def _fits(self, uid: str) -> bool:
        """Compute from the API server's objects alone whether a waiting pod would fit."""
        with config.blocking_client(config.find_cluster(str(self._cluster.kubeconfig))) as client:
            state = read_cluster(fetch.list_nodes(client), fetch.list_pods(client))
        entry = state.entry(uid)
        return entry is not None and state.fits(entry.spec)

    def _remove_ended(self, pods: Iterable[observe.ApiPod]) -> None:
        """Delete pods that ended and report unexpected ends; rejections by the kubelet are only counted."""
        lost = bool(self._disrupted & (REBOOTS | {Component.CONTAINERD}))
        for each in (each for each in pods if each.name in self._requested):
            if self._disrupted & (REBOOTS | {Component.KUBELET}):
                self.outcome.interrupted |= {
                    (each.uid, end) for end in each.ends if invariants.is_interrupted_start(end)
                }
            interrupted = [end for uid, end in self.outcome.interrupted if uid == each.uid]
            problem = invariants.unexpected_end(each, lost=lost, interrupted=interrupted)
            self._report("unexpected end", [problem] if problem else [])
            if each.phase == "Failed":
                if invariants.is_rejected(each):
                    self.outcome.rejected[f"{each.reason}: {each.message}"] += 1
                self._do(Delete(each.name, force=False))
            elif self._is_stranded(each):
                self.outcome.stranded += 1
                self._do(Delete(each.name, force=False))

    def _is_stranded(self, pod: observe.ApiPod) -> bool:
        rebooted = bool(self._disrupted & REBOOTS)
        suspect = rebooted and invariants.may_be_stranded(self._requested[pod.name], pod)
        return suspect and observe.is_stranded(self._node, pod.uid)

    def _restart_dead(self) -> None:
        """Restart Kubernetes components that ended by themselves; if one of ours did, report it."""
        node = self._node.node
        if not node.kubelet.is_running and _CRASH in (tail := node.kubelet.tail(_TRACE_LINES)):
            self._report("the kubelet crashed", [tail])
        for process in (*self._cluster.control_plane.components, node.containerd, node.kubelet):
            process.start()
        for process in (self._service.process, self._node.agent):
            if not process.is_running:
                self._report(f"{process.name} ended by itself", [process.tail(15)])
                process.start()

    @contextmanager
    def _report_timeout(self, when: str) -> Generator[None]:
        try:
            yield
        except TimedOut as error:
            self._report(when, [str(error)])

    def _report(self, when: str, violations: Iterable[str]) -> None:
        for violation in violations:
            text = f"{when}: {violation}"
            if text not in self.outcome.violations:
                self.outcome.violations.append(text)


def run_rounds(testbed: ChaosTestbed, rounds: int, seed: int) -> Outcome:
    """Run all rounds; stop after the first one with a violation."""
    with testbed.watched():
        for each in Script(seed).rounds(rounds):
            started = time.monotonic()
            testbed.run_round(each)
            to_stderr(f"round {each.number}: {', '.join(each.components)}, {time.monotonic() - started:.1f} s")
            if testbed.outcome.violations:
                return testbed.outcome
        testbed.finish()
    return testbed.outcome
