"""kube-scheduler's configuration."""

import pytest

from milligpu.scheduler.config import Trust, in_default_scheduler, second_scheduler


@pytest.mark.parametrize("ignorable_or_not", [in_default_scheduler("http://s"), second_scheduler("http://s", "x")])
def test_no_pod_is_ever_bound_without_us(ignorable_or_not: dict[str, list[dict[str, object]]]) -> None:
    (extender,) = ignorable_or_not["extenders"]
    assert (extender["ignorable"], extender["bindVerb"], extender["nodeCacheCapable"]) == (False, "bind", True)
    assert "enableHTTPS" not in extender


def test_a_secure_address_brings_the_files_that_are_named() -> None:
    (extender,) = second_scheduler("https://s", "x", Trust("ca", "crt", "key"))["extenders"]
    assert extender["enableHTTPS"] is True
    assert extender["tlsConfig"] == {"caFile": "ca", "certFile": "crt", "keyFile": "key"}
    (extender,) = in_default_scheduler("https://s", Trust("ca"))["extenders"]
    assert extender["tlsConfig"] == {"caFile": "ca"}
