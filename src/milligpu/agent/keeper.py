"""Who holds what and who waits: the agent's state, kept in step with what is on disk.

Everything that must survive is on disk before anybody is told of it, and is taken from there before anything is
given to somebody else. So an agent may be killed between any two lines of this.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import ceil

from milligpu.agent.arbiter import Arbiter
from milligpu.agent.books import CONTAINER, Books, Held
from milligpu.agent.machine import Hardware, Machine
from milligpu.agent.processes import Process
from milligpu.agent.protocol import Granted, Queued, refusal
from milligpu.agent.record import Session
from milligpu.agent.sessions import Sessions
from milligpu.agent.slots import Slot
from milligpu.agent.tenant import limits_page
from milligpu.agent.waiting import Queue, Tell, Waiting
from milligpu.agent.wish import Wish, describe_command, describe_share
from milligpu.model.errors import BadRequest, MilligpuError, NoCapacity, Unavailable
from milligpu.model.grant import Grant, NoFit
from milligpu.model.request import ShareRequest
from milligpu.model.units import Mib
from milligpu.wire.limits import LimitsPage

log = logging.getLogger(__name__)

_NODE_HINT = "commands on a cluster node get what its agent sets aside: milligpu agent --reserve"


class Keeper:
    """The sessions and the queue of one machine."""

    def __init__(
        self,
        sessions: Sessions,
        hardware: Hardware,
        arbiter: Arbiter,
        *,
        name: str,
        now: Callable[[], float],
        watch: Callable[[Session], None],
        settled: bool = False,
    ) -> None:
        """`watch` is told of each session that starts, and says with `ended` when its command has gone.

        `settled`: pods are on the cards, too.
        """
        self.disk = sessions
        self.queue = Queue()
        self.sessions: dict[str, Session] = {}
        """Each holds its share from before its command hears of it until nothing of it is left on a GPU."""
        self._beyond: dict[tuple[str, str], Mib] = {}
        """What sessions still use of a GPU's memory after their cap was lowered; nobody else can have it yet."""
        self.closing: set[str] = set()
        """Those whose command has gone."""
        self.hardware = hardware
        self._arbiter = arbiter
        self._tenants: dict[str, int] = {}
        """The arbiter's numbers of those with a share."""
        self._name = name
        self._now = now
        self._watch = watch
        self._machine: Machine | None = None
        self._settled = settled
        self.books = Books(name, (), settled=settled)

    @property
    def busy(self) -> bool:
        """Whether anybody holds or wants anything."""
        return bool(self.sessions or self.queue)

    @property
    def held(self) -> Sequence[Held]:
        """All that is held, in the order in which it was granted."""
        return [self._booked(session) for session in self.sessions.values()]

    def machine(self) -> Machine:
        """This machine's GPUs; looked for again whenever nobody is on any."""
        if self._machine is None or not self.sessions:
            return self.look_again()
        return self._machine

    def look_again(self) -> Machine:
        """The GPUs as they are now, whoever is on them."""
        self._machine = self.hardware.find()
        self.books = Books(self._name, self._machine.gpus, settled=self._settled)
        return self._machine

    def recover(self) -> Sequence[str]:
        """Take over the sessions that an agent before this one made; returns those whose record does not read."""
        found, broken = self.disk.found()
        if found:
            self.machine()
        self.sessions = {session.id: session for session, _ in found}
        self.closing = {session.id for session, is_open in found if not is_open}
        self._write_pages()
        for session in self.sessions.values():
            log.info("session %s: found again", session.id)
            if not session.whole and session.id not in self.closing:
                self._arbitrate(session)
            self._watch(session)
        return broken

    # -- taking and giving back --------------------------------------------------------------------------------

    def take(
        self,
        process: Process,
        command: tuple[str, ...],
        wish: Wish,
        tell: Tell,
        *,
        wait: bool,
    ) -> Waiting | None:
        """Grant a share now, or put the process into the queue; `tell` is called with what becomes of it."""
        self.machine()
        for session in self.sessions.values():
            if session.process == process and session.id not in self.closing:
                # It asked an agent that was killed before the answer came through.
                tell(self._granted(session))
                return None
        waiting = Waiting(self.disk.new_id(), process, command, wish, tell, patient=wait)
        never = self.books.hopeless(waiting.id, wish)
        if never is not None:
            raise NoCapacity(
                f"{describe_share(wish.share)} cannot be had on this machine: {self._cards(never)}",
                hint=_NODE_HINT if self._settled else "no waiting helps; see: milligpu top --once",
            )
        self.queue.add(waiting)
        self.serve_queue()
        if waiting not in self.queue.all:
            return None
        if not wait and waiting.told is not None:
            self.queue.remove(waiting)
            raise NoCapacity(f"{describe_share(wish.share)} is not free: {waiting.told.line}")
        return waiting

    def leave(self, waiting: Waiting) -> None:
        """It no longer waits."""
        self.queue.remove(waiting)
        self.serve_queue()

    def close(self, session: str) -> None:
        """A session's command has gone; what it left on a GPU still holds the share."""
        self.closing.add(session)
        self.disk.close(session)

    def ended(self, session: str) -> None:
        """Nothing is left of a session: what it held is free."""
        self.disk.remove(session)
        del self.sessions[session]
        self.closing.discard(session)
        tenant = self._tenants.pop(session, None)
        if tenant is not None:
            self._arbiter.remove(tenant)
        log.info("session %s: ended", session)
        self._write_pages()
        self.serve_queue()

    def serve_queue(self) -> None:
        """Grant in order as far as it goes; tell the rest how they stand."""
        while self.queue.all and self._grant(self.queue.all[0]):
            pass
        ahead: list[str] = []
        for waiting in self.queue.all:
            answer = self.books.decide(waiting.id, waiting.wish, self.held)
            reason = self._cards(answer) if isinstance(answer, NoFit) else "others come first"
            holders = [describe_command(each.id, each.command) for each in self.sessions.values()]
            waiting.queued(Queued(reason, list(ahead), holders))
            ahead.append(describe_command(waiting.id, waiting.command))

    def _grant(self, waiting: Waiting) -> bool:
        answer = self.books.decide(waiting.id, waiting.wish, self.held)
        if isinstance(answer, NoFit):
            return False
        self.queue.remove(waiting)
        try:
            session = self._make(waiting, answer)
        except MilligpuError as error:
            waiting.tell(refusal(error))
        except OSError as error:
            waiting.tell(refusal(Unavailable(f"cannot write to {error.filename}: {error.strerror}")))
        else:
            self._watch(session)
            waiting.tell(self._granted(session))
        return True

    def _make(self, waiting: Waiting, answer: Grant) -> Session:
        held = Held(waiting.id, answer)
        session = Session(waiting.id, waiting.process, waiting.command, self._now(), waiting.wish, held)
        page = None if session.whole else self._page(session, self.books.slots([*self.held, held]))
        self.disk.add(session, page, self.machine().drivers)
        try:
            if not session.whole:
                self._arbitrate(session)
        except MilligpuError:
            self.disk.close(session.id)
            self.disk.remove(session.id)
            raise
        self.sessions[session.id] = session
        self._write_pages(but=session.id)
        log.info(
            "session %s: %s for process %d", session.id, describe_share(waiting.wish.share), waiting.process.pid
        )
        return session

    def _arbitrate(self, session: Session) -> None:
        tenant = self.disk.tenant(session.id)
        self._tenants[session.id] = self._arbiter.add(tenant.folder)
        tenant.give_socket(session.process.uid)

    def charged(self) -> Iterator[tuple[str, Sequence[int]]]:
        """The GPU time that each session was charged so far, in nanoseconds for each of its GPUs."""
        for session, tenant in self._tenants.items():
            yield session, [account.charged_ns for account in self._arbiter.accounts(tenant)]

    def _granted(self, session: Session) -> Granted:
        softgpu = self.machine().softgpu
        return Granted(
            session.id,
            str(self.disk.folder(session.id)),
            list(session.held.grant.gpus),
            session.whole,
            None if softgpu is None else str(softgpu),
        )

    # -- changing ----------------------------------------------------------------------------------------------

    def resize(self, session: Session, share: ShareRequest) -> Session:
        """Change what a running session holds of its GPUs."""
        if session.whole or share.whole:
            raise BadRequest(
                "session",
                session.id,
                "a session and a share below a whole GPU (nothing of ours stands between a program and those)",
            )
        answer = self.books.resize(session.held, replace(session.wish, share=share), self.held)
        if isinstance(answer, NoFit):
            raise NoCapacity(
                f"{describe_share(share)} is not free where session {session.id} is: {self._cards(answer)}"
            )
        changed = replace(session, wish=replace(session.wish, share=share), held=Held(session.id, answer))
        for before in self._booked(session).shares:
            self._beyond[session.id, before.gpu] = before.mib
        self.disk.change(changed)
        self.sessions[session.id] = changed
        self._write_pages()
        log.info("session %s: resized to %s", session.id, describe_share(share))
        self.serve_queue()
        return changed

    def counted(self, used: Mapping[tuple[str, str], float]) -> None:
        """The driver has counted, by session and GPU: a cap below what is in use frees only what is not."""
        self._beyond = {
            (session.id, share.gpu): Mib(ceil(used.get((session.id, share.gpu), 0)))
            for session in self.sessions.values()
            for share in session.shares
            if not share.whole and used.get((session.id, share.gpu), 0) > share.mib
        }
        if self.queue:
            self.serve_queue()

    def _booked(self, session: Session) -> Held:
        beyond = {share.gpu: self._beyond.get((session.id, share.gpu), Mib(0)) for share in session.shares}
        if not any(beyond.values()):
            return session.held
        shares = tuple(replace(share, mib=max(share.mib, beyond[share.gpu])) for share in session.shares)
        return Held(session.id, replace(session.held.grant, containers={CONTAINER: shares}))

    def _write_pages(self, but: str = "") -> None:
        """Bring every page in step with the books: who comes or goes moves the slots of others."""
        slots = self.books.slots(self.held)
        for session in self.sessions.values():
            if not (session.whole or session.id == but or session.id in self.closing):
                self.disk.tenant(session.id).change(self._page(session, slots))

    def _page(self, session: Session, slots: Mapping[str, Mapping[str, Slot]]) -> LimitsPage:
        cards = [self.books.gpus[share.gpu] for share in session.shares]
        contexts = {gpu.uuid: self.hardware.context_bytes(gpu) for gpu in cards}
        return limits_page(session.held.grant, session.shares, slots[session.id], contexts)

    def _cards(self, nofit: NoFit) -> str:
        """A refusal on one machine: its user knows the cards by number, and there is one node only."""
        number = {uuid: str(index) for index, uuid in enumerate(self.books.gpus)}
        refusals = tuple(replace(each, node="GPU", gpu=number.get(each.gpu, "")) for each in nofit.refusals)
        return NoFit(refusals, nofit.nodes, nofit.nearest).summary().removeprefix("0/1 nodes: 1 ")
