"""The health of GPU servers and of this machine, as the Bitfusion guide reports it: one report for each.

A server checks its own machine. What lies between is checked here: round trip, bandwidth, clocks, certificate and
versions.
"""

import asyncio
import ssl
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from milligpu import __version__
from milligpu.checks.health_host import CONSISTENCY, GROUPS, PERFORMANCE, STABILITY, host_checks
from milligpu.checks.result import (
    Check,
    CheckLevel,
    CheckOutcome,
    CheckResult,
    failed,
    noted,
    passed,
    run_checks,
    skipped,
)
from milligpu.model.errors import MilligpuError, Unavailable
from milligpu.remote import protocol
from milligpu.remote.connection import ServerConnection
from milligpu.remote.protocol import (
    SKEW_S,
    VERSION,
    ClientBeat,
    HealthLine,
    HealthPayload,
    HealthRead,
    ReadHealth,
    ServerBeat,
)
from milligpu.remote.token_file import PoolAccess

LOCALHOST = "localhost"
_PAYLOAD = 2 << 20
_BEATS = 10
_SECONDS = 120.0
# Bitfusion's guide wants 50 us; a training that waits once per 10 ms step loses a tenth at 1 ms.
_ROUND_TRIP_MAX_MS = 1.0
_DAYS_MIN = 14.0
_DAY = 86400.0
_MEGABYTE = 1e6
# Half of the difference at which servers refuse tokens.
_CLOCK_MAX_S = SKEW_S / 2


class HealthWord(StrEnum):
    """How a line of the report begins."""

    PASS = "PASS"
    INFO = "INFO"
    SKIPPED = "SKIPPED"
    MARGINAL = "MARGINAL"
    FATAL = "FATAL"


def health_word(each: CheckResult) -> HealthWord:
    """The guide's word for a result."""
    match each.result:
        case CheckOutcome.SKIPPED:
            return HealthWord.SKIPPED
        case CheckOutcome.FAILED:
            return HealthWord.FATAL if each.level is CheckLevel.ERROR else HealthWord.MARGINAL
        case CheckOutcome.PASSED:
            return HealthWord.INFO if each.level is CheckLevel.INFO else HealthWord.PASS


@dataclass(frozen=True, slots=True)
class HealthReport:
    """The results of one machine."""

    machine: str
    """The server's address, or localhost."""
    results: Sequence[CheckResult]

    @property
    def totals(self) -> Mapping[HealthWord, int]:
        counts = Counter(health_word(each) for each in self.results)
        return {word: counts[word] for word in HealthWord}

    def of_group(self, group: str) -> list[CheckResult]:
        return [each for each in self.results if each.group == group]


@dataclass(frozen=True, slots=True)
class ServerLink:
    """What was measured between this machine and a server."""

    answer: HealthRead
    round_trip_ms: float
    megabytes_per_s: float
    clock_s: float
    """How far the server's clock is ahead."""
    certificate_days: float | None
    """Until the server's certificate expires; None without TLS."""


def measure_server(server: str, access: PoolAccess, *, plain: bool) -> ServerLink:
    """Ask a server for its checks, and measure the way to it."""
    connection = ServerConnection(server, access, plain=plain)
    try:
        connection.send(ReadHealth(VERSION, access.token, _PAYLOAD))
        answer = connection.receive(_SECONDS)
        got = time.time()
        begun = time.monotonic()
        payload = connection.receive(_SECONDS)
        seconds = max(1e-6, time.monotonic() - begun)
        if not isinstance(answer, HealthRead) or not isinstance(payload, HealthPayload):
            raise Unavailable(f"GPU server {server}: sent an unexpected answer")
        trip = min(_round_trip(connection) for _ in range(_BEATS))
        days = _days_left(connection.certificate())
        return ServerLink(answer, trip * 1e3, _PAYLOAD / _MEGABYTE / seconds, answer.time - got + trip / 2, days)
    except TimeoutError:
        raise Unavailable(f"GPU server {server}: does not answer") from None
    finally:
        connection.close()


def _round_trip(connection: ServerConnection) -> float:
    begun = time.monotonic()
    connection.send(ClientBeat())
    while not isinstance(connection.receive(_SECONDS), ServerBeat):
        pass
    return time.monotonic() - begun


def _days_left(certificate: Mapping[str, object] | None) -> float | None:
    if not certificate:
        return None
    return (ssl.cert_time_to_seconds(str(certificate["notAfter"])) - time.time()) / _DAY


def check_link(link: ServerLink) -> Iterable[CheckResult]:
    """How fast the server can be reached."""
    trip = f"{link.round_trip_ms:.3f} ms"
    figures = {"round_trip_ms": link.round_trip_ms}
    if link.round_trip_ms > _ROUND_TRIP_MAX_MS:
        fix = "use a server that is nearer; look at: ping, and switches, VPNs and proxies on the way"
        yield failed("round trip <= 1 ms", trip, fix, CheckLevel.WARNING, figures)
    else:
        yield passed("round trip <= 1 ms", trip, figures)
    rate = link.megabytes_per_s
    yield noted("bandwidth", f"{rate:.0f} MB/s", {"megabytes_per_s": rate})


def check_consistency(link: ServerLink) -> Iterable[CheckResult]:
    """Both sides understand and trust each other."""
    if link.answer.protocol == protocol.VERSION and link.answer.release == __version__:
        yield passed("GPU API mismatch", "")
    else:
        message = f"this is milligpu {__version__}, the server has {link.answer.release}"
        level = CheckLevel.WARNING if link.answer.protocol == protocol.VERSION else CheckLevel.ERROR
        yield failed("GPU API mismatch", message, "install the same release on both sides", level)
    difference = f"{link.clock_s:+.1f} s"
    if abs(link.clock_s) > SKEW_S:
        yield failed("clock difference", difference, "set the clocks: servers refuse tokens of the future")
    elif abs(link.clock_s) > _CLOCK_MAX_S:
        yield failed("clock difference", difference, "set the clocks with NTP", CheckLevel.WARNING)
    else:
        yield passed("clock difference", difference)
    days = link.certificate_days
    if days is None:
        yield skipped("certificate expiry", "the server speaks without TLS", "start it without --plain")
    elif days < _DAYS_MIN:
        fix = "restart the server: it makes itself a new certificate"
        yield failed("certificate expiry", f"in {days:.0f} days", fix, CheckLevel.WARNING)
    else:
        yield passed("certificate expiry", f"in {days:.0f} days")


def from_line(line: HealthLine) -> CheckResult:
    """A server's result; a word of a later release is a fact, not an error."""
    known = line.level in set(CheckLevel) and line.result in set(CheckOutcome)
    level = CheckLevel(line.level) if known else CheckLevel.INFO
    result = CheckOutcome(line.result) if known else CheckOutcome.PASSED
    return CheckResult(line.group, line.name, level, result, line.message, line.fix, line.figures)


def server_report(server: str, access: PoolAccess, *, plain: bool) -> HealthReport:
    """The report of a server; one that does not answer is a fatal line in it."""
    try:
        link = measure_server(server, access, plain=plain)
    except MilligpuError as error:
        unreachable = failed("connection", error.message, error.hint or "is the server running and reachable?")
        return HealthReport(
            server, asyncio.run(run_checks([Check(STABILITY, "connection", lambda: [unreachable])]))
        )
    checks = [
        Check(PERFORMANCE, "network", lambda: check_link(link)),
        Check(CONSISTENCY, "consistency", lambda: check_consistency(link)),
    ]
    results = [*map(from_line, link.answer.lines), *asyncio.run(run_checks(checks))]
    return HealthReport(server, sorted(results, key=_place))


def _place(each: CheckResult) -> int:
    return GROUPS.index(each.group) if each.group in GROUPS else len(GROUPS)


def local_report() -> HealthReport:
    """The report of this machine."""
    return HealthReport(LOCALHOST, sorted(asyncio.run(run_checks(host_checks())), key=_place))
