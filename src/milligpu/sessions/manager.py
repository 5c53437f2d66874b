"""The sessions of one machine, with the shares that they hold, and the queue of commands that wait.

A session is on disk before its command learns of it, and is deleted from there before its share is given to
another. So the service may be killed between any two lines of this module.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import ceil

from milligpu.model.errors import BadRequest, MilligpuError, NoCapacity, Unavailable
from milligpu.model.footprint import GpuDemand
from milligpu.model.gpu import Gpu
from milligpu.model.grant import Grant, NoFit, grant_of_unknown_size
from milligpu.model.reasons import Reason
from milligpu.model.request import ShareRequest, describe_share
from milligpu.model.units import Mib
from milligpu.sessions.gpu_source import GpuSource, MachineGpus
from milligpu.sessions.place import CONTAINER, SessionPlacer
from milligpu.sessions.protocol import ShareGranted, ShareQueued, refusal
from milligpu.sessions.queue import Notify, QueuedCommand, SessionQueue
from milligpu.sessions.record import Session
from milligpu.sessions.request import SessionRequest, describe_command
from milligpu.sessions.store import SessionStore
from milligpu.tenancy.processes import ProcessId
from milligpu.tenancy.tenant import limits_page
from milligpu.tenancy.tenants import Tenants
from milligpu.tenancy.time_slots import TimeSlot
from milligpu.wire.limits import LimitsPage

log = logging.getLogger(__name__)

_NODE_HINT = "on a cluster node commands get what the agent reserves for them: milligpu agent --reserve"


_CLOSED = frozenset({Reason.UNHEALTHY, Reason.CORDONED})
_CLOSED_HINT = "commands that hold a share keep it; see the GPUs with: milligpu top --once"


class SessionManager:
    """The sessions and the queue of one machine."""

    def __init__(
        self,
        store: SessionStore,
        source: GpuSource,
        tenants: Tenants,
        *,
        name: str,
        now: Callable[[], float],
        watch: Callable[[Session], None],
    ) -> None:
        """`watch` is called for each session that starts; the caller calls `close` when its command ends."""
        self.store = store
        self.source = source
        self.tenants = tenants
        self.name = name
        self.queue = SessionQueue()
        self.sessions: dict[str, Session] = {}
        """Each holds its share from before its command learns of it until none of its processes is on a GPU."""
        self.closing: set[str] = set()
        """Sessions whose command has ended while other processes of theirs are still on a GPU."""
        self._memory_over_limit: dict[tuple[str, str], Mib] = {}
        """By session and GPU: memory still in use after the limit was lowered, which no other session can have."""
        self._now = now
        self._watch = watch
        self._machine: MachineGpus | None = None
        self.placer = SessionPlacer(name, ())

    @property
    def busy(self) -> bool:
        """Whether any command holds or waits for a share."""
        return bool(self.sessions or self.queue)

    @property
    def grants(self) -> dict[str, Grant]:
        """What sessions hold, in the order in which it was granted."""
        return {session.id: self._counted(session) for session in self.sessions.values()} | {
            name: grant_of_unknown_size(name, self.name, named, self.placer.gpus, CONTAINER)
            for name, named in self.store.newer.items()
        }

    def demands(self) -> dict[str, GpuDemand]:
        """What all sessions together take of each GPU."""
        total: dict[str, GpuDemand] = {}
        for grant in self.grants.values():
            for uuid, demand in self.placer.demands(grant).items():
                total[uuid] = total[uuid].plus(demand) if uuid in total else demand
        return total

    @property
    def machine(self) -> MachineGpus | None:
        """The GPUs as last discovered; None before the first command."""
        return self._machine

    def discover(self) -> MachineGpus:
        """Return the GPUs, discovered again whenever no session is on any."""
        if self._machine is None or not self.sessions:
            return self.rediscover()
        return self._machine

    def rediscover(self) -> MachineGpus:
        """Look for the GPUs again, because they or the pods on them changed."""
        self._machine = self.source.find()
        self.placer = SessionPlacer(self.name, self._machine.gpus, self._machine.pods)
        self._write_pages()
        return self._machine

    def refresh_health(self) -> None:
        """Note GPUs that became unhealthy, or healthy again. Sessions on them keep their shares."""
        machine = None if self._machine is None else self.source.known()
        if self._machine is None or machine is None or machine.gpus == self._machine.gpus:
            return
        for index, (old, new) in enumerate(zip(self._machine.gpus, machine.gpus, strict=True)):
            if old != new:
                log.warning("GPU %d (%s) is %s: %s", index, new.uuid, new.state.value, new.message or "no errors")
        self._machine = machine
        self.placer = SessionPlacer(self.name, machine.gpus, machine.pods)
        self.serve_queue()

    def recover(self) -> list[str]:
        """Take over the sessions of the service before this one; returns those whose record cannot be read."""
        found, broken = self.store.found()
        for name in self.store.newer:
            log.warning("session %s: kept with its GPUs, because a newer milligpu wrote its record", name)
        if found:
            self.discover()
        self.sessions = {session.id: session for session, _ in found}
        self.closing = {session.id for session, is_open in found if not is_open}
        slots = self.placer.time_slots(self.grants)
        for session in self.sessions.values():
            log.info("session %s: recovered", session.id)
            if not session.whole and session.id not in self.closing:
                self._add_tenant(session, self._page(session, slots))
            self._watch(session)
        return broken

    # -- taking and giving back --------------------------------------------------------------------------------

    def request(
        self,
        process: ProcessId,
        command: tuple[str, ...],
        request: SessionRequest,
        notify: Notify,
        *,
        wait: bool,
    ) -> QueuedCommand | None:
        """Grant a share now, or put the process into the queue; `notify` gets every answer."""
        self.discover()
        self.refresh_health()
        for session in self.sessions.values():
            if session.process == process and session.id not in self.closing:
                # It asked a service that was killed before it could answer.
                notify(self._granted(session))
                return None
        queued = QueuedCommand(self.store.new_id(), process, command, request, notify, patient=wait)
        never = self.placer.never_fits(queued.id, request)
        if never is not None:
            raise self._never(request.share, never)
        self.queue.add(queued)
        self.serve_queue()
        if queued not in self.queue.all:
            return None
        if not wait and queued.last is not None:
            self.queue.remove(queued)
            raise NoCapacity(f"no GPU has {describe_share(request.share)} free now: {queued.last.line}")
        return queued

    def _never(self, share: ShareRequest, never: NoFit) -> NoCapacity:
        what = f"no GPU on this machine can provide {describe_share(share)}"
        if _closed(never):
            return NoCapacity(f"{what} now: {self._explain(never)}", hint=_CLOSED_HINT)
        hint = _NODE_HINT if self.on_node else "waiting will not help; list the GPUs with: milligpu top --once"
        return NoCapacity(f"{what}, even when idle: {self._explain(never)}", hint=hint)

    @property
    def on_node(self) -> bool:
        """Whether pods use the same GPUs."""
        return self._machine is not None and self._machine.pods is not None

    def cancel(self, queued: QueuedCommand) -> None:
        """Remove a command from the queue."""
        self.queue.remove(queued)
        self.serve_queue()

    def close(self, session: str) -> None:
        """Note that a session's command has ended; processes that it left on a GPU still hold the share."""
        self.closing.add(session)
        self.store.close(session)

    def ended(self, session: str) -> None:
        """Free what a session held, because none of its processes is on a GPU any more."""
        self.store.remove(session)
        del self.sessions[session]
        self.closing.discard(session)
        self.tenants.remove(session)
        self._memory_over_limit = {key: mib for key, mib in self._memory_over_limit.items() if key[0] != session}
        log.info("session %s: ended", session)
        self._write_pages()
        self.serve_queue()

    def serve_queue(self) -> None:
        """Grant shares in the order of the queue as far as possible, and tell the others why they wait."""
        while self.queue.all and self._grant(self.queue.all[0]):
            pass
        ahead: list[str] = []
        for queued in self.queue.all:
            answer = self.placer.decide(queued.id, queued.request, self.grants)
            message = self._explain(answer) if isinstance(answer, NoFit) else "others are first in the queue"
            holders = [describe_command(each.id, each.command) for each in self.sessions.values()]
            queued.update(ShareQueued(message, list(ahead), holders))
            ahead.append(describe_command(queued.id, queued.command))

    def _grant(self, queued: QueuedCommand) -> bool:
        answer = self.placer.decide(queued.id, queued.request, self.grants)
        if isinstance(answer, NoFit):
            return False
        self.queue.remove(queued)
        try:
            session = self._make(queued, answer)
        except MilligpuError as error:
            queued.notify(refusal(error))
        except OSError as error:
            queued.notify(refusal(Unavailable(f"cannot write to {error.filename}: {error.strerror}")))
        else:
            self._watch(session)
            queued.notify(self._granted(session))
        return True

    def _make(self, queued: QueuedCommand, grant: Grant) -> Session:
        session = Session(queued.id, queued.process, queued.command, self._now(), queued.request, grant)
        slots = self.placer.time_slots({**self.grants, session.id: grant})
        page = None if session.whole else self._page(session, slots)
        self.store.add(session, page, self.discover().drivers)
        try:
            if page is not None:
                self._add_tenant(session, page)
        except (MilligpuError, OSError):
            self.store.remove(session.id)
            raise
        self.sessions[session.id] = session
        self._write_pages()
        log.info(
            "session %s: granted %s to process %d",
            session.id,
            describe_share(queued.request.share),
            queued.process.pid,
        )
        return session

    def _add_tenant(self, session: Session, page: LimitsPage) -> None:
        self.tenants.add(session.id, self.store.tenant(session.id), page, session.process.uid)

    def _granted(self, session: Session) -> ShareGranted:
        softgpu = self.discover().softgpu
        return ShareGranted(
            session.id,
            str(self.store.folder(session.id)),
            list(session.grant.gpus),
            session.whole,
            None if softgpu is None else str(softgpu),
        )

    # -- changing ----------------------------------------------------------------------------------------------

    def resize(self, session: Session, share: ShareRequest) -> Session:
        """Change the share of a running session, on the GPUs that it has."""
        if session.whole or share.whole:
            raise BadRequest(
                "session",
                session.id,
                "a session with a share below a whole GPU: whole GPUs run without the limits library",
            )
        request = replace(session.request, share=share)
        answer = self.placer.resize(session.id, session.grant, request, self.grants)
        if isinstance(answer, NoFit):
            raise self._no_resize(session, request)
        for before in self._counted(session).containers[CONTAINER]:
            self._memory_over_limit[session.id, before.gpu] = before.share.mib
        changed = replace(session, request=request, grant=answer)
        self.store.change(changed)
        self.sessions[session.id] = changed
        self._write_pages()
        log.info("session %s: resized to %s", session.id, describe_share(share))
        self.serve_queue()
        return changed

    def _no_resize(self, session: Session, request: SessionRequest) -> MilligpuError:
        """Say whether the GPUs of a session lack the room only now, or could never have it."""
        gpus, share = f"on the GPUs of session {session.id}", describe_share(request.share)
        never = self.placer.resize(session.id, session.grant, request, {})
        if isinstance(never, NoFit) and not _closed(never):
            hint = _NODE_HINT if self.on_node else "waiting will not help"
            return NoCapacity(f"no room for {share} {gpus}, even when idle: {self._explain(never)}", hint=hint)
        now = self.placer.resize(session.id, session.grant, request, self.grants)
        assert isinstance(now, NoFit)
        hint = "the session keeps its share; try again when others have ended"
        return NoCapacity(f"no room for {share} {gpus} now: {self._explain(now)}", hint=hint)

    def note_memory_use(self, used: Mapping[tuple[str, str], float]) -> None:
        """Take over the driver's counts in MiB, by session and GPU.

        A limit that was lowered below what is in use frees only what is not in use.
        """
        self._memory_over_limit = {
            (session.id, held.gpu): Mib(ceil(used.get((session.id, held.gpu), 0)))
            for session in self.sessions.values()
            for held in session.shares
            if not held.share.whole and used.get((session.id, held.gpu), 0) > held.share.mib
        }
        if self.queue:
            self.serve_queue()

    def _counted(self, session: Session) -> Grant:
        """The grant, or more where more memory is in use."""
        over = {share.gpu: self._memory_over_limit.get((session.id, share.gpu), Mib(0)) for share in session.shares}
        if not any(over.values()):
            return session.grant
        shares = tuple(
            replace(held, share=replace(held.share, mib=max(held.share.mib, over[held.gpu])))
            for held in session.shares
        )
        return replace(session.grant, containers={CONTAINER: shares})

    def _write_pages(self) -> None:
        """Bring every limits page up to date: a session that starts or ends moves the time slots of others."""
        slots = self.placer.time_slots(self.grants)
        for session in self.sessions.values():
            present = all(share.gpu in self.placer.gpus for share in session.shares)
            if present and session.id in self.tenants and session.id not in self.closing:
                self.tenants.change(session.id, self._page(session, slots))

    def _page(self, session: Session, slots: Mapping[str, Mapping[str, TimeSlot]]) -> LimitsPage:
        gpus: dict[str, Gpu] = self.placer.gpus_with_policy({**self.grants, session.id: session.grant})
        overheads = {share.gpu: self.source.overheads(share.gpu) for share in session.shares}
        return limits_page(session.grant, session.shares, gpus, slots[session.id], overheads)

    def _explain(self, nofit: NoFit) -> str:
        """Explain a refusal on one machine, where users know the GPUs by index and there is only one node."""
        index = {uuid: f"GPU {index}" for index, uuid in enumerate(self.placer.gpus)}
        refusals = tuple(replace(each, node="", gpu=index.get(each.gpu, "this machine")) for each in nofit.refusals)
        return NoFit(refusals, nofit.nodes, nofit.nearest).summary().removeprefix("0/1 nodes: 1 ")


def _closed(nofit: NoFit) -> bool:
    """Whether a GPU that could do is closed for new shares, which can change."""
    return any(refusal.reason in _CLOSED for refusal in nofit.refusals)
