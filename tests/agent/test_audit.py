"""The audit finds whoever the driver counts and the accounts do not."""

import pytest

from milligpu.agent.audit import Auditor, Finding, Granted, Offence, Seen, audit

PLACE = Granted("s1", "GPU-0", 1000, 500, 400.0, frozenset({10, 11}))
IN_S1 = {10: "s1", 11: "s1", 12: "s1"}


def offences(seen: list[Seen], place: Granted = PLACE) -> list[Offence]:
    return [finding.offence for finding in audit(seen, [place], IN_S1)]


def test_who_keeps_to_its_share_is_not_found() -> None:
    assert offences([Seen("GPU-0", 10, 300, 400), Seen("GPU-0", 11, 100, 100)]) == []


def test_a_process_of_no_session_is_a_stranger() -> None:
    (finding,) = audit([Seen("GPU-0", 99, 10)], [PLACE], IN_S1)
    assert (finding.offence, finding.pid, finding.session) == (Offence.STRANGER, 99, None)


def test_a_process_that_is_not_in_its_sessions_account_went_around() -> None:
    assert offences([Seen("GPU-0", 12, 10)]) == [Offence.AROUND]


def test_a_process_in_the_account_that_hid_its_environment_is_still_the_sessions() -> None:
    assert audit([Seen("GPU-0", 10, 300)], [PLACE], {}) == []


def test_memory_over_the_cap_counts_all_processes_of_a_session() -> None:
    assert offences([Seen("GPU-0", 10, 600), Seen("GPU-0", 11, 600)]) == [Offence.MEMORY]


@pytest.mark.parametrize("account", [None, 0.0])
def test_an_account_that_says_less_than_the_driver_is_spoilt(account: float | None) -> None:
    place = Granted("s1", "GPU-0", 1000, 500, account, frozenset({10}))
    assert offences([Seen("GPU-0", 10, 300)], place) == [Offence.ACCOUNT]


def test_time_over_the_limit_is_found() -> None:
    assert offences([Seen("GPU-0", 10, 1, 400), Seen("GPU-0", 11, 1, 400)]) == [Offence.TIME]


def test_a_whole_gpu_has_no_limit_to_be_outside_of() -> None:
    assert audit([Seen("GPU-1", 20, 5000, 1000)], [PLACE], {20: "whole"}) == []


def test_one_look_is_no_proof_and_each_finding_is_reported_once() -> None:
    auditor = Auditor()
    finding = Finding(Offence.STRANGER, "GPU-0", None, 99, "")
    assert [len(auditor.look(found)) for found in ([finding], [], [finding], [finding], [finding])] == [
        0,
        0,
        0,
        1,
        0,
    ]
    assert auditor.counts == {Offence.STRANGER: 1}
    auditor.look([])
    assert auditor.current == []
