"""The newest list of revoked tokens that a server has: on its disk, next to its authority, and at other servers."""

import logging
import time
from collections.abc import Iterable
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec

from milligpu.model.errors import MilligpuError, Unavailable
from milligpu.remote.connection import ServerConnection
from milligpu.remote.files import write_file
from milligpu.remote.protocol import VERSION, ExchangeRevocations, RevocationsHeld
from milligpu.remote.revocations import RevocationList, verify_revocations
from milligpu.remote.token_file import PoolAccess

log = logging.getLogger(__name__)

_ANSWER_SECONDS = 10.0


class RevocationStore:
    """Keeps the list with the highest serial number; a list that is not signed by the pool changes nothing."""

    def __init__(self, path: Path, key: ec.EllipticCurvePublicKey) -> None:
        self._path = path
        self._key = key
        self.newest = RevocationList()
        self.signed = ""
        self.read(path)

    def read(self, path: Path) -> bool:
        """Take the list of a file, if it is newer. A missing file is no list; a broken one is reported."""
        try:
            return self.take(path.read_text())
        except FileNotFoundError:
            return False
        except (OSError, MilligpuError) as error:
            log.warning("could not read the revoked tokens in %s: %s", path, error)
            return False

    def take(self, signed: str) -> bool:
        """Take a list if it is newer than the present one; raises BadFormat for one that the pool did not sign."""
        if not signed or signed == self.signed:
            return False
        offered = verify_revocations(signed, self._key)
        if offered.serial <= self.newest.serial:
            return False
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_file(self._path, signed.encode())
        self.newest, self.signed = offered, signed
        log.info("took list %d of revoked tokens, with %d tokens", offered.serial, len(offered.revoked))
        return True


def exchange(server: str, access: PoolAccess, signed: str, *, plain: bool) -> RevocationsHeld:
    """Give a server a list, and get the newest that it has."""
    connection = ServerConnection(server, access, plain=plain)
    try:
        connection.send(ExchangeRevocations(VERSION, signed))
        answer = connection.receive(_ANSWER_SECONDS)
    except TimeoutError:
        raise _silent(server) from None
    finally:
        connection.close()
    if not isinstance(answer, RevocationsHeld):
        raise _silent(server)
    return answer


def exchange_with(servers: Iterable[str], access: PoolAccess, signed: str, *, plain: bool) -> list[str]:
    """Exchange lists with several servers, and return theirs; one that does not answer is asked again later."""
    found: list[str] = []
    for server in servers:
        started = time.monotonic()
        try:
            found.append(exchange(server, access, signed, plain=plain).signed)
        except MilligpuError as error:
            waited = time.monotonic() - started
            log.warning("could not exchange revoked tokens with %s after %.1f s: %s", server, waited, error.message)
    return found


def _silent(server: str) -> MilligpuError:
    return Unavailable(f"GPU server {server}: does not answer")
