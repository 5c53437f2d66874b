"""Who may see what: no identity, no page.

On a user's own machine the identity is a secret that is printed once and exchanged for a cookie. A service for many
people takes a Kubernetes bearer token with each request, or exchanges it for a cookie, and asks the API server what
its owner may see.
"""

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from threading import Lock

import msgspec

from milligpu.kube import config, rights
from milligpu.kube.api import ApiRefused
from milligpu.status.advice import Advice, Verdict
from milligpu.status.picture import Picture
from milligpu.status.queue_values import ClusterQueues

COOKIE = "milligpu_session"
# A working day. The browser forgets the cookie earlier, when it is closed.
_SESSION_S = 12 * 3600.0
# Rights that were taken away must not stay for long, and asking is cheap.
_RIGHTS_S = 60.0
# More browsers than one dashboard can serve; the oldest is logged out.
_SESSIONS_MAX = 10_000
_UNAUTHORIZED = 401


@dataclass(frozen=True, slots=True)
class ViewRights:
    """What one person may see."""

    user: str
    everything: bool = False
    namespaces: frozenset[str] = frozenset()
    queues: bool = False
    """Whether the queues are shown; with `everything` they are."""

    def sees(self, namespace: str) -> bool:
        """Whether the pods of a namespace are shown; the empty one stands for sessions."""
        return self.everything or (namespace != "" and namespace in self.namespaces)


def visible(picture: Picture, rights: ViewRights) -> Picture:
    """Take the names out of what this person may not see; the numbers of GPUs stay."""
    if rights.everything:
        return picture
    hidden = {"namespace": "", "pod": "", "container": "", "session": ""}
    return replace(
        picture,
        shares=[
            use if use.namespace and rights.sees(use.namespace) else msgspec.structs.replace(use, **hidden)
            for use in picture.shares
        ],
        waiting=[each for each in picture.waiting if rights.sees(each.namespace)],
        processes=[each for each in picture.processes if rights.sees(each.namespace)],
        violations=[],
        sessions={},
        users={},
        problems=[],
        queues=replace(picture.queues, users=[], of_pods={}) if rights.queues else ClusterQueues(),
    )


def visible_advice(found: Sequence[Advice], rights: ViewRights) -> Sequence[Advice]:
    """Leave out what this person may not see; evidence about a bad task names processes of others."""
    if rights.everything:
        return found
    return [
        each
        for each in found
        if (each.kind == "gpu" and each.verdict is not Verdict.BAD_TASK)
        or (each.kind == "pod" and rights.sees(each.namespace))
    ]


@dataclass(frozen=True, slots=True)
class _Login:
    token: str
    """Empty for the owner."""
    until: float


class TokenRights:
    """Asks the API server what the owner of a bearer token may see; remembers the answer for a minute."""

    def __init__(self, cluster: config.SingleConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self._cluster = cluster
        self._clock = clock
        self._known: OrderedDict[str, tuple[float, ViewRights | None]] = OrderedDict()
        self._lock = Lock()

    def of(self, token: str, namespaces: Iterable[str]) -> ViewRights | None:
        """Return the rights of a token over these namespaces; None if the API server does not know the token."""
        with self._lock:
            asked, found = self._known.get(token, (-1e9, None))
            if self._clock() - asked < _RIGHTS_S:
                return found
        found = self._ask(token, namespaces)
        with self._lock:
            self._known[token] = (self._clock(), found)
            while len(self._known) > _SESSIONS_MAX:
                self._known.popitem(last=False)
        return found

    def _ask(self, token: str, namespaces: Iterable[str]) -> ViewRights | None:
        try:
            with config.blocking_client(config.with_token(self._cluster, token)) as client:
                user = rights.user_name(client)
                if rights.may_list_pods(client, ""):
                    return ViewRights(user, everything=True)
                mine = frozenset(each for each in namespaces if each and rights.may_list_pods(client, each))
                return ViewRights(user, namespaces=mine, queues=rights.may_list_queues(client))
        except ApiRefused as error:
            if error.status == _UNAUTHORIZED:
                return None
            raise


class DashboardAccess:
    """Logins of browsers: one by a secret that works once, others by token."""

    def __init__(
        self,
        *,
        owner: ViewRights | None = None,
        tokens: TokenRights | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`owner` may see what the process itself sees, by the secret; without `tokens` no token opens a page."""
        self._owner = owner
        self._tokens = tokens
        self._clock = clock
        self._logins: OrderedDict[str, _Login] = OrderedDict()
        self.secret = secrets.token_urlsafe(24) if owner is not None else ""
        """Works once."""

    @property
    def takes_tokens(self) -> bool:
        return self._tokens is not None

    def open(self, secret: str) -> str | None:
        """Exchange the secret for a cookie; None if it is wrong or was used."""
        if not self.secret or not secrets.compare_digest(secret.encode(), self.secret.encode()):
            return None
        self.secret = ""
        return self._remember("")

    def log_in(self, token: str, namespaces: Iterable[str]) -> str | None:
        """Exchange a token for a cookie; None if the API server does not know it."""
        if self._tokens is None or not token or self._tokens.of(token, namespaces) is None:
            return None
        return self._remember(token)

    def log_out(self, cookie: str) -> None:
        self._logins.pop(cookie, None)

    def rights(
        self, cookies: Mapping[str, str], authorization: str, namespaces: Iterable[str]
    ) -> ViewRights | None:
        """Return what the sender of a request may see; None without an identity."""
        kind, _, token = authorization.partition(" ")
        if kind.lower() == "bearer" and token and self._tokens is not None:
            return self._tokens.of(token.strip(), namespaces)
        login = self._logins.get(cookies.get(COOKIE, ""))
        if login is None or login.until < self._clock():
            return None
        if not login.token:
            return self._owner
        return self._tokens.of(login.token, namespaces) if self._tokens is not None else None

    def _remember(self, token: str) -> str:
        cookie = secrets.token_urlsafe(32)
        self._logins[cookie] = _Login(token, self._clock() + _SESSION_S)
        while len(self._logins) > _SESSIONS_MAX:
            self._logins.popitem(last=False)
        return cookie
