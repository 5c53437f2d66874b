"""The agent's login: until when its token is good, and for which node."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from milligpu.agent.settings import AgentSettings
from milligpu.checks.result import CheckLevel, CheckResult, failed, passed
from milligpu.kube.config import find_cluster
from milligpu.kube.token import BearerToken, TokenClaims, read_claims

# A kubelet replaces a pod's token after four fifths of its time, so less than this means that nobody does.
_SOON_IN_A_FILE = timedelta(minutes=10)
# A token inside a kubeconfig is replaced by a person.
_SOON = timedelta(days=7)


def credentials(settings: AgentSettings) -> Iterable[CheckResult]:
    """The token has not expired, does not expire soon, and is bound to this node."""
    user = find_cluster(settings.kubeconfig).user
    if user is None:
        return
    token = BearerToken(user)
    text = token.read()
    if not text:
        yield passed("token", "none: this login is a client certificate")
        return
    where = "the kubeconfig" if token.file is None else str(token.file)
    claims = read_claims(text)
    if claims is None:
        yield passed("token", f"from {where}; it does not say when it expires")
        return
    soon = _SOON if token.file is None else _SOON_IN_A_FILE
    yield check_claims(claims, settings.node, where, datetime.now(UTC), soon)


def check_claims(claims: TokenClaims, node: str, where: str, now: datetime, soon: timedelta) -> CheckResult:
    """Check a token that was read from `where`; one that ends within `soon` is reported as a warning."""
    fix = (
        "write a new token into the file that `tokenFile` of the kubeconfig names: kubectl create token "
        f"milligpu-agent -n milligpu --bound-object-kind=Node --bound-object-name={node} --duration=8760h"
    )
    until = "does not expire"
    if claims.expires is not None:
        until = f"{'expired' if claims.expires <= now else 'expires'} {claims.expires:%Y-%m-%d %H:%M} UTC"
        if claims.expires <= now:
            return failed("token", f"{where}: {until}", fix)
    if claims.node != node:
        bound = f"bound to node {claims.node}" if claims.node else "bound to no node"
        return failed("token", f"{where}: {bound}, so the API server lets it write nothing on {node}", fix)
    if claims.expires is not None and claims.expires - now < soon:
        return failed("token", f"{where}: {until}", fix, CheckLevel.WARNING)
    return passed("token", f"from {where}, bound to this node; it {until}")
