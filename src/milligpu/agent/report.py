"""How everything stands, for people and programs that ask."""

from milligpu.agent.keeper import Keeper
from milligpu.agent.protocol import Card, Outside, Running, State, Use, Waiter
from milligpu.agent.record import Session
from milligpu.agent.rounds import Rounds
from milligpu.agent.wish import describe_share
from milligpu.model.gpu import Gpu

_MIB = 1 << 20


class Reporter:
    """Puts together what the books, the tenants' pages and the driver say."""

    def __init__(self, keeper: Keeper, rounds: Rounds) -> None:
        self._keeper = keeper
        self._rounds = rounds

    def state(self) -> State:
        """How everything stands now."""
        keeper = self._keeper
        machine = keeper.machine()
        used: dict[str, float] = {}
        for seen in keeper.hardware.seen():
            used[seen.gpu] = used.get(seen.gpu, 0.0) + (seen.mib or 0.0)
        cards = [self._card(index, gpu, used.get(gpu.uuid, 0.0)) for index, gpu in enumerate(machine.gpus)]
        waiting = [
            Waiter(
                each.process.pid,
                each.process.uid,
                list(each.command),
                describe_share(each.wish.share),
                each.told.reason if each.told else "",
                each.told.behind if each.told else [],
            )
            for each in keeper.queue.all
        ]
        running = [self._running(session) for session in keeper.sessions.values()]
        outside = [
            Outside(each.offence, each.gpu, each.session, each.pid, each.detail)
            for each in self._rounds.auditor.current
        ]
        counts = {str(offence): count for offence, count in self._rounds.auditor.counts.items()}
        return State(machine.softgpu is not None, cards, running, waiting, outside, counts)

    def _card(self, index: int, gpu: Gpu, used: float) -> Card:
        shares = [(held, share) for held in self._keeper.held for share in held.shares if share.gpu == gpu.uuid]
        whole = any(share.whole for _, share in shares)
        return Card(
            index=index,
            uuid=gpu.uuid,
            model=gpu.model,
            milli=gpu.milli,
            mib=gpu.mib,
            free_milli=0 if whole else gpu.usable - sum(share.milli for _, share in shares),
            free_mib=0 if whole else gpu.usable_mib - sum(share.mib for _, share in shares),
            used_mib=used,
            policy=shares[0][0].grant.policy if shares and not whole else None,
        )

    def _running(self, session: Session) -> Running:
        page = None if session.whole else self._keeper.disk.tenant(session.id).usage()
        accounts = page.accounts if page is not None else ()
        uses: list[Use] = []
        for number, share in enumerate(session.shares):
            gpu = self._keeper.books.gpus.get(share.gpu)
            account = accounts[number] if number < len(accounts) else None
            uses.append(
                Use(
                    gpu=share.gpu,
                    milli=gpu.milli if share.whole and gpu else share.milli,
                    limit=gpu.milli if share.whole and gpu else share.limit,
                    mib=gpu.mib if share.whole and gpu else share.mib,
                    whole=share.whole,
                    used_mib=None if account is None else account.used / _MIB,
                    peak_mib=None if account is None else account.peak / _MIB,
                    measured=self._rounds.measured(session.id, number, share.gpu),
                    refusals=0 if account is None else account.refused,
                )
            )
        grant = session.held.grant
        return Running(
            session.id,
            session.process.pid,
            session.process.uid,
            list(session.command),
            session.since,
            grant.policy,
            grant.priority,
            uses,
        )
