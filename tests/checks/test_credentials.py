"""Doctor on the agent's token: when it expires, and the node that it is bound to."""

from datetime import UTC, datetime, timedelta

import pytest

from milligpu.checks.credentials import check_claims
from milligpu.checks.result import CheckLevel, CheckOutcome, CheckResult
from milligpu.kube.token import TokenClaims

NOW = datetime(2026, 11, 18, 12, tzinfo=UTC)


def check(node: str = "n1", days: float = 100.0) -> CheckResult:
    return check_claims(TokenClaims(NOW + timedelta(days=days), node), "n1", "/t", NOW, timedelta(days=7))


def test_a_token_with_time_left_passes_and_shows_its_expiry() -> None:
    result = check()
    assert result.result is CheckOutcome.PASSED
    assert "expires 2027-02-26 12:00 UTC" in result.message


@pytest.mark.parametrize(
    ("days", "level", "words"),
    [
        (3.0, CheckLevel.WARNING, "/t: expires 2026-11-21 12:00 UTC"),
        (-1.0, CheckLevel.ERROR, "/t: expired 2026-11-17 12:00 UTC"),
    ],
)
def test_a_token_that_ends_soon_is_a_warning_and_an_expired_one_an_error(
    days: float, level: CheckLevel, words: str
) -> None:
    result = check(days=days)
    assert (result.result, result.level, result.message) == (CheckOutcome.FAILED, level, words)
    assert "--bound-object-name=n1" in result.fix


@pytest.mark.parametrize(("node", "words"), [("", "bound to no node"), ("n2", "bound to node n2")])
def test_a_token_of_no_node_or_of_another_is_an_error(node: str, words: str) -> None:
    result = check(node)
    assert result.is_error
    assert words in result.message
