"""The status of queues: the condition `Ready`, what they hold, who waits, and what each user had of late."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

import msgspec
import structlog

from milligpu.kube.api import MERGE_PATCH, METADATA_ONLY, ApiClient, ApiRefused
from milligpu.model import names
from milligpu.model.errors import Unavailable
from milligpu.model.reasons import QueueReason
from milligpu.queues.cluster_lines import ClusterLines
from milligpu.queues.usage import DecayedUsage
from milligpu.wire.kubernetes import KubeCondition, KubeGpuQueue, QueueUser

READY = "Ready"
# What a restart may forget of a user's usage; with a half-life of a week, a minute is nothing.
WRITE_S = 60.0
# What queues hold and who waits is shown this soon after a change.
_LOOK_S = 2.0
# Users who had less than this are forgotten: a thousandth of a GPU for a week.
_LEAST = 1.0
_GONE = 404

log = structlog.get_logger()


@dataclass(slots=True)
class _Shown:
    """What a queue's status is to say."""

    held_milli: int = 0
    held_mib: int = 0
    waiting: int = 0
    users: dict[str, DecayedUsage] = field(default_factory=dict[str, DecayedUsage])


class QueueStatusWriter:
    """Writes the status of every queue whose status changed."""

    def __init__(self, api: ApiClient, clock: Callable[[], float]) -> None:
        self._api = api
        self._clock = clock
        self._objects: dict[str, KubeGpuQueue] = {}
        self._problems: Mapping[str, str] = {}
        self._shown: dict[str, _Shown] = {}
        self._written_at: dict[str, float] = {}

    def learn(self, objects: list[KubeGpuQueue], problems: Mapping[str, str]) -> None:
        """Take over the queues as they are, and what is wrong with some of them."""
        self._objects = {each.metadata.name: each for each in objects}
        self._problems = problems

    def put(self, view: ClusterLines) -> None:
        """Take over what a pass found."""
        self._shown = {
            name: _Shown(state.milli, state.mib, sum(len(line) for line in state.lines.values()), dict(state.users))
            for name, state in view.lines.state.items()
        }

    async def run(self) -> None:
        while True:
            for found in list(self._objects.values()):
                patch = self._patch(found)
                if patch is not None:
                    await self._write(found.metadata.name, patch)
            await asyncio.sleep(_LOOK_S)

    async def _write(self, name: str, patch: dict[str, object]) -> None:
        try:
            path = f"{names.QUEUES_PATH}/{name}/status"
            await self._api.send("PATCH", path, patch, kind=MERGE_PATCH, accept=METADATA_ONLY)
            self._written_at[name] = self._clock()
        except ApiRefused as error:
            if error.status != _GONE:
                log.warning("Could not write status of queue", queue=name, error=error.message)
        except Unavailable as error:
            log.warning("Could not write status of queue", queue=name, error=error.message)

    def _patch(self, found: KubeGpuQueue) -> dict[str, object] | None:
        """The merge patch that makes the object say its status; None if it says it, or said it a moment ago."""
        name, now = found.metadata.name, self._clock()
        shown, status = self._shown.get(name, _Shown()), found.status
        condition = self._condition(found, now)
        counts = shown.held_milli, shown.held_mib, shown.waiting
        same = counts == (status.heldMilli, status.heldMib, status.waiting)
        known = next((each for each in status.conditions or () if each.type == READY), None)
        # Usage grows all the time; it is written with other changes, and once a minute while anybody holds a GPU.
        used = any(each.held for each in shown.users.values()) and now - self._written_at.get(name, 0.0) >= WRITE_S
        if same and known == condition and not used:
            return None
        users = [
            QueueUser(user, round(then.average, 3), round(then.at, 3))
            for user, usage in sorted(shown.users.items())
            if (then := usage.until(now)).average >= _LEAST or then.held
        ]
        body = {"heldMilli": counts[0], "heldMib": counts[1], "waiting": counts[2]}
        # The uid keeps the write from a later queue of the same name.
        return {
            "metadata": {"uid": found.metadata.uid},
            "status": {**body, "users": msgspec.to_builtins(users), "conditions": [condition]},
        }

    def _condition(self, found: KubeGpuQueue, now: float) -> KubeCondition:
        problem = self._problems.get(found.metadata.name, "")
        reason = QueueReason.INVALID if problem else QueueReason.USABLE
        status = str(not problem)
        known = next((each for each in found.status.conditions or () if each.type == READY), None)
        since = f"{datetime.fromtimestamp(now, UTC):%Y-%m-%dT%H:%M:%SZ}"
        if known is not None and known.status == status:
            since = known.lastTransitionTime or since
        return KubeCondition(READY, status, reason, problem, since, found.metadata.generation)
