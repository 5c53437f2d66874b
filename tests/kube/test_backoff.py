"""Waits between retries grow, are never in step, and follow the server's wish."""

from milligpu.kube.api import ApiRefused, ApiUnanswered
from milligpu.kube.backoff import RETRY_MAX_S, RETRY_S, Backoff


def test_waits_double_up_to_a_limit_and_start_again_after_a_success() -> None:
    backoff, error = Backoff(), ApiUnanswered("x")
    waits = [backoff.after(error) for _ in range(10)]
    assert RETRY_S / 2 <= waits[0] <= RETRY_S
    assert RETRY_MAX_S / 2 <= waits[-1] <= RETRY_MAX_S
    backoff.reset()
    assert backoff.after(error) <= RETRY_S


def test_clients_do_not_all_retry_at_the_same_time() -> None:
    assert len({Backoff().after(ApiUnanswered("x")) for _ in range(20)}) > 10


def test_retry_after_is_honored_but_not_for_minutes() -> None:
    assert Backoff().after(ApiRefused("x", 429, "slow down", 7.0)) == 7.0
    assert Backoff().after(ApiRefused("x", 429, "slow down", 86400.0)) == 60.0
