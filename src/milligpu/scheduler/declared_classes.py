"""Classes that an installation declares (`scheduler serve --classes`): the leader creates, changes, deletes them.

Helm cannot create them, because it would need their definition and the running webhook before it installs either.
The leader marks what it creates with a label, so that classes which somebody else created are left alone.
"""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec
import structlog

from milligpu.kube.api import JSON, MERGE_PATCH, ApiClient, ApiRefused
from milligpu.kube.watch import Followed, follow_all
from milligpu.model import names
from milligpu.model.errors import BadRequest, Unavailable
from milligpu.model.gpu_class import parse_class
from milligpu.wire.kubernetes import GpuClassSpec, KubeGpuClass

_OPTION = "--classes"
_WANT = 'a JSON list such as [{"name": "gold", "requirements": "memory>=16Gi", "fallback": "silver"}]'
# The webhook, which has to admit a class, becomes ready in this time after the first leader.
_RETRY_S = 2.0
_GONE, _CONFLICT = 404, 409

log = structlog.get_logger()


class DeclaredClass(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One class as the chart's values have it."""

    name: str
    requirements: str
    fallback: str = ""


@dataclass(frozen=True, slots=True)
class ClassChange:
    """One request to the API server."""

    method: str
    name: str
    body: dict[str, object] | None = None


def parse_declared(text: str) -> tuple[DeclaredClass, ...]:
    """Read the classes of the option, or refuse the first that cannot be one."""
    try:
        declared = msgspec.json.decode(text, type=list[DeclaredClass])
    except msgspec.DecodeError as error:
        raise BadRequest(_OPTION, text, f"{_WANT}: {error}") from None
    for number, each in enumerate(declared):
        try:
            parse_class(each.name, each.requirements, each.fallback)
        except BadRequest as error:
            field = error.field.rpartition(".")[2]
            raise BadRequest(f"{_OPTION}[{number}].{field}", error.value, error.want) from None
    twice = [each.name for each in declared if [other.name for other in declared].count(each.name) > 1]
    if twice:
        raise BadRequest(_OPTION, twice[0], "each name once")
    return tuple(declared)


def class_changes(declared: Iterable[DeclaredClass], found: Sequence[KubeGpuClass]) -> list[ClassChange]:
    """Return what makes the cluster's classes those that are declared; classes without the label stay."""
    ours = {each.metadata.name: each for each in found if _is_ours(each)}
    others = {each.metadata.name for each in found} - set(ours)
    wanted = {each.name: each for each in declared if each.name not in others}
    changes = [ClassChange("DELETE", name) for name in ours if name not in wanted]
    for name, each in wanted.items():
        spec: dict[str, object] = {"requirements": each.requirements}
        if each.fallback:
            spec["fallback"] = each.fallback
        if name not in ours:
            changes.append(ClassChange("POST", name, _object(name, spec)))
        elif ours[name].spec != GpuClassSpec(each.requirements, each.fallback):
            changes.append(ClassChange("PATCH", name, {"spec": {"fallback": None, **spec}}))
    return changes


def _is_ours(found: KubeGpuClass) -> bool:
    return (found.metadata.labels or {}).get(names.DECLARED) == "true"


def _object(name: str, spec: dict[str, object]) -> dict[str, object]:
    metadata = {"name": name, "labels": {names.DECLARED: "true"}}
    return {"apiVersion": names.GROUP_VERSION, "kind": "GpuClass", "metadata": metadata, "spec": spec}


class DeclaredClasses:
    """Keeps the declared classes in the cluster; a second leader would find everything done."""

    def __init__(self, api: ApiClient, classes: Followed[KubeGpuClass], declared: Sequence[DeclaredClass]) -> None:
        self._api = api
        self._watch = classes
        self._declared = declared
        self._found: list[KubeGpuClass] = []
        self._wake = asyncio.Event()

    async def run(self) -> None:
        """Follow the classes and correct them until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._write())
            async for found in follow_all(self._watch):
                self._found = found
                self._wake.set()

    async def _write(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                for change in class_changes(self._declared, self._found):
                    await self._send(change)
            except Unavailable as error:
                log.warning("Could not write declared class", error=error.message)
                await asyncio.sleep(_RETRY_S)
                self._wake.set()

    async def _send(self, change: ClassChange) -> None:
        path = names.CLASSES_PATH if change.method == "POST" else f"{names.CLASSES_PATH}/{change.name}"
        kind = MERGE_PATCH if change.method == "PATCH" else JSON
        try:
            await self._api.send(change.method, path, change.body, kind=kind)
        except ApiRefused as error:
            # Another change came first; the watch tells which.
            if error.status not in {_GONE, _CONFLICT}:
                raise
        else:
            log.info("Wrote declared class", method=change.method, gpu_class=change.name)
