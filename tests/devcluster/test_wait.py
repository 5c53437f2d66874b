import pytest

from devcluster.wait import TimedOut, until


def test_until_returns_the_first_value() -> None:
    values = iter([None, False, "there"])

    assert until("a value", lambda: next(values), 5, every_s=0) == "there"


def test_until_accepts_zero_and_empty_values() -> None:
    assert until("a number", lambda: 0, 1) == 0
    assert until("a text", lambda: "", 1) == ""


def test_a_timeout_names_the_condition_and_the_last_state() -> None:
    def refused() -> bool:
        raise ConnectionRefusedError("port 7")

    with pytest.raises(TimedOut) as failed:
        until("the server", refused, 0, retry=(OSError,), last_state=lambda: "its log")

    said = str(failed.value)
    assert "for the server" in said
    assert "ConnectionRefusedError: port 7" in said
    assert said.endswith("\nits log")


def test_an_unexpected_error_ends_the_wait_immediately() -> None:
    def broken() -> bool:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        until("never", broken, 60, retry=(OSError,))
