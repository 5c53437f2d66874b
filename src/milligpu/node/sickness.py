"""Pods on a card that fell sick keep it, and are told: whoever owns them decides."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

import structlog

from milligpu.kube.api import Api
from milligpu.kube.events import pod_event
from milligpu.model.errors import Unavailable
from milligpu.model.gpu import Gpu, State
from milligpu.node.attach import Attached, PodView

REASON = "GPUUnhealthy"
"""Of the event."""
# While the API server is away, or a pod came onto a card that just fell sick.
_AGAIN_S = 5.0

log = structlog.get_logger()


def on_sick_cards(
    held: Iterable[Attached], cards: Mapping[str, Gpu], pods: Mapping[str, PodView]
) -> dict[tuple[str, str], str]:
    """By pod and card, what is wrong with the card that the pod holds."""
    return {
        (each.tenancy.uid, gpu): cards[gpu].reason
        for each in held
        if each.tenancy.uid in pods and not pods[each.tenancy.uid].finished
        for gpu in each.tenancy.grant.gpus
        if gpu in cards and cards[gpu].state is State.SICK
    }


class Sickness:
    """Tells each pod once for each time that its card falls sick."""

    def __init__(
        self,
        api: Api,
        node: str,
        found: Callable[[], dict[tuple[str, str], str]],
        pods: Callable[[], Mapping[str, PodView]],
    ) -> None:
        """`found` are the pods on sick cards now."""
        self._api = api
        self._reporter = ("milligpu.dev/agent", node)
        self._found = found
        self._pods = pods
        self._told: set[tuple[str, str]] = set()
        self._wake = asyncio.Event()

    def changed(self) -> None:
        """The cards changed."""
        self._wake.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self._wake.clear()
            found = self._found()
            self._told &= found.keys()
            for key in found.keys() - self._told:
                await self._tell(key, found[key])
            with suppress(TimeoutError):
                async with asyncio.timeout(_AGAIN_S):
                    await self._wake.wait()

    async def _tell(self, key: tuple[str, str], why: str) -> None:
        pod, gpu = self._pods().get(key[0]), key[1]
        if pod is None:
            return
        note = f"GPU {gpu} is unhealthy: {why}; the pod keeps it: delete the pod to have it placed on another"
        event = pod_event((pod.namespace, pod.name, pod.uid), REASON, "Watch", note, reporter=self._reporter)
        try:
            await self._api.send("POST", *event)
        except Unavailable as error:
            log.info("the API server did not take an event", error=error.message)
            return
        self._told.add(key)
        log.warning("a pod is on an unhealthy GPU", pod=f"{pod.namespace}/{pod.name}", gpu=gpu, why=why)
