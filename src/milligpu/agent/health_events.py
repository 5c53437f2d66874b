"""Events on pods that hold an unhealthy GPU: the pods keep it, and their owners decide."""

import asyncio
from collections.abc import Callable, Iterable, Mapping

import structlog

from milligpu.agent.attach_plan import NodePod
from milligpu.agent.attachment import Attachment
from milligpu.kube.events import EventRecorder, PodEvent
from milligpu.model.gpu import Gpu, GpuState
from milligpu.model.reasons import EventReason
from milligpu.wait import wait_for_event

# How soon a pod that starts on a GPU after it became unhealthy is found.
_AGAIN_S = 5.0

log = structlog.get_logger()


def on_unhealthy_gpus(
    held: Iterable[Attachment], gpus: Mapping[str, Gpu], pods: Mapping[str, NodePod]
) -> dict[tuple[str, str], str]:
    """Return the message of each unhealthy GPU, by pod uid and GPU."""
    return {
        (each.holder.uid, gpu): gpus[gpu].message
        for each in held
        if each.holder.uid in pods and not pods[each.holder.uid].finished
        for gpu in each.grant.gpus
        if gpu in gpus and gpus[gpu].state is GpuState.UNHEALTHY
    }


class UnhealthyGpuReporter:
    """Posts one event on each pod, each time that one of its GPUs becomes unhealthy."""

    def __init__(
        self,
        events: EventRecorder,
        found: Callable[[], dict[tuple[str, str], str]],
        pods: Callable[[], Mapping[str, NodePod]],
    ) -> None:
        """`found` returns the pods that hold an unhealthy GPU now, as `on_unhealthy_gpus` does."""
        self._events = events
        self._found = found
        self._pods = pods
        self._reported: set[tuple[str, str]] = set()
        self._wake = asyncio.Event()

    def changed(self) -> None:
        """Check again at once, because a GPU changed."""
        self._wake.set()

    async def run(self) -> None:
        while True:
            self._wake.clear()
            found = self._found()
            self._reported &= found.keys()
            for key in found.keys() - self._reported:
                self._report(key, found[key])
            await wait_for_event(self._wake, _AGAIN_S)

    def _report(self, key: tuple[str, str], why: str) -> None:
        uid, gpu = key
        found = self._pods().get(uid)
        if found is None:
            return
        pod = found.ref
        message = f"GPU {gpu} is unhealthy: {why}; the pod keeps it: delete the pod to have it placed on another"
        self._events.record(PodEvent(pod, EventReason.GPU_UNHEALTHY, "Watch", message))
        self._reported.add(key)
        log.warning("Pod holds an unhealthy GPU", pod=str(pod), gpu=gpu, message=why)
