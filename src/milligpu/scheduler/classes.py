"""Classes in the leader: placement learns every change, and the condition `Ready` says whether a class is usable.

The condition is a function of all classes, so nothing is remembered: after a restart the first list is enough.
"""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime

import structlog

from milligpu.cluster.read import read_classes
from milligpu.kube.api import MERGE_PATCH, ApiClient, ApiRefused
from milligpu.kube.watch import Followed, follow_all
from milligpu.model import names
from milligpu.model.errors import Unavailable
from milligpu.model.gpu_class import ClassCondition, GpuClasses
from milligpu.wire.kubernetes import KubeCondition, KubeGpuClass

READY = "Ready"
# Long enough not to flood an API server that refuses the write.
_RETRY_S = 5.0
_GONE = 404

log = structlog.get_logger()


class ClassController:
    """Follows the classes and writes their conditions; a second one would find everything written."""

    def __init__(
        self, api: ApiClient, classes: Followed[KubeGpuClass], on_change: Callable[[GpuClasses], None]
    ) -> None:
        """`on_change` is called with all classes, the first time as soon as they are listed."""
        self._api = api
        self._watch = classes
        self._on_change = on_change
        self._objects: list[KubeGpuClass] = []
        self._wake = asyncio.Event()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._write())
            async for objects in follow_all(self._watch):
                self._objects = objects
                self._on_change(read_classes(objects))
                self._wake.set()

    async def _write(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                await self._write_all()
            except Unavailable as error:
                log.warning("Could not write condition of class", error=error.message)
                await asyncio.sleep(_RETRY_S)
                self._wake.set()

    async def _write_all(self) -> None:
        classes = read_classes(self._objects)
        for each in self._objects:
            patch = condition_patch(each, classes.condition(each.metadata.name), datetime.now(UTC))
            if patch is not None:
                path = f"{names.CLASSES_PATH}/{each.metadata.name}/status"
                try:
                    await self._api.send("PATCH", path, patch, kind=MERGE_PATCH)
                except ApiRefused as error:
                    if error.status != _GONE:
                        raise


def condition_patch(found: KubeGpuClass, wanted: ClassCondition, now: datetime) -> dict[str, object] | None:
    """The merge patch that makes the object say its condition; None if it says it."""
    status, generation = str(wanted.ready), found.metadata.generation
    known = next((each for each in found.status.conditions or () if each.type == READY), KubeCondition(READY, ""))
    since = known.lastTransitionTime if known.status == status else f"{now:%Y-%m-%dT%H:%M:%SZ}"
    condition = KubeCondition(READY, status, wanted.reason, wanted.message, since, generation)
    if known == condition:
        return None
    # The uid keeps the write from a later class of the same name.
    return {"metadata": {"uid": found.metadata.uid}, "status": {"conditions": [condition]}}
