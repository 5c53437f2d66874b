"""What a pool decides: which server, which tokens are revoked, which sessions are idle. Pure."""

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from milligpu.model.errors import BadFormat, BadRequest
from milligpu.remote.choose import choose_server
from milligpu.remote.idle import IdleWatch, SessionUse
from milligpu.remote.pool import create_pool
from milligpu.remote.protocol import GpuList, OpenSession
from milligpu.remote.revocation_store import RevocationStore
from milligpu.remote.revocations import RevocationList, sign_revocations, verify_revocations
from milligpu.remote.signatures import sign
from milligpu.remote.token_register import TokenRegister, TokenState
from milligpu.remote.tokens import PoolTokenClaims
from milligpu.wire.status import GpuStatus

KEY = ec.generate_private_key(ec.SECP256R1())


def gpu(free: int = 1000, *, mib: int = 8000, state: str = "ok", at: int = 0) -> GpuStatus:
    return GpuStatus(at, f"GPU-{at}", "V100", 1000, mib, free, mib * free // 1000, state=state)


def server(*gpus: GpuStatus, draining: bool = False) -> GpuList:
    return GpuList("machine", list(gpus), draining)


def ask(milli: int | None = 500, mib: int | None = None, count: int = 1) -> OpenSession:
    return OpenSession(1, "", ["true"], count, milli, mib)


def test_a_gpu_in_use_is_filled_before_another_is_begun() -> None:
    answers = {"a": server(gpu()), "b": server(gpu(600)), "c": server(gpu(400))}
    assert choose_server(ask(500), answers) == "b"
    assert choose_server(ask(300), answers) in ("b", "c")
    assert choose_server(ask(1000), answers) == "a"
    assert choose_server(ask(1000, count=2), answers) is None


def test_servers_that_are_drained_or_whose_gpus_are_unhealthy_are_not_chosen() -> None:
    answers = {
        "a": server(gpu(), draining=True),
        "b": server(gpu(state="unhealthy")),
        "c": server(gpu(state="a word of a later release")),
    }
    assert choose_server(ask(), answers) is None
    assert choose_server(ask(), {**answers, "d": server(gpu())}) == "d"


def test_several_gpus_come_from_one_server_and_memory_counts() -> None:
    answers = {"a": server(gpu(), gpu(500, at=1)), "b": server(gpu(), gpu(at=1))}
    assert choose_server(ask(1000, count=2), answers) == "b"
    big = {"a": server(gpu(mib=4000)), "b": server(gpu(mib=16000))}
    assert choose_server(ask(100, 6000), big) == "b"


def test_the_newest_list_of_revoked_tokens_counts_and_expired_tokens_leave_it(tmp_path: Path) -> None:
    first = RevocationList().with_revoked({"old": 100, "one": 1000}, ("gpu-1:7070",), now=50)
    second = first.with_revoked({"two": 1000}, ("gpu-2:7070",), now=500)
    assert (dict(second.revoked), second.servers) == ({"one": 1000, "two": 1000}, ("gpu-1:7070", "gpu-2:7070"))
    store = RevocationStore(tmp_path / "revocations", KEY.public_key())
    assert store.take(sign_revocations(second, KEY))
    assert not store.take(sign_revocations(first, KEY))
    assert RevocationStore(tmp_path / "revocations", KEY.public_key()).newest == second


OTHER = sign(b"milligpu token 1\n", b"{}", KEY)


@pytest.mark.parametrize("text", ["x", "a.b", "", OTHER], ids=["no list", "no signature", "empty", "a token"])
def test_a_list_that_the_pool_did_not_sign_for_this_is_refused(text: str) -> None:
    with pytest.raises(BadFormat):
        verify_revocations(text, KEY.public_key())


def test_a_foreign_list_changes_nothing(tmp_path: Path) -> None:
    store = RevocationStore(tmp_path / "revocations", KEY.public_key())
    foreign = sign_revocations(RevocationList(9), ec.generate_private_key(ec.SECP256R1()))
    with pytest.raises(BadFormat, match="its signature is not the pool's"):
        store.take(foreign)
    (tmp_path / "revocations").write_text(foreign)
    assert RevocationStore(tmp_path / "revocations", KEY.public_key()).newest.serial == 0


def test_a_pool_remembers_its_tokens_and_which_were_revoked(tmp_path: Path) -> None:
    pool = create_pool(tmp_path)
    register = TokenRegister(tmp_path)
    claims = [PoolTokenClaims(name, "alice", 0, ends) for name, ends in (("a", 10), ("b", 100), ("c", 100))]
    for each in claims:
        register.add(each, ["gpu-1:7070"], 0)
    register.revoke(pool, ["b"], [], 50)
    revoked = register.revocations(pool)
    states = {each.claims.id: each.state(revoked, 50) for each in register.tokens()}
    assert states == {"a": TokenState.EXPIRED, "b": TokenState.REVOKED, "c": TokenState.VALID}
    _text, made = register.revoke(pool, ["alice"], ["gpu-9:7070"], 50)
    assert (set(made.revoked), made.serial, made.servers) == ({"b", "c"}, 2, ("gpu-1:7070", "gpu-9:7070"))
    with pytest.raises(BadRequest):
        register.revoke(pool, ["a"], [], 50)


def test_a_session_is_idle_when_its_gpu_time_stands_still() -> None:
    watch = IdleWatch(10)
    assert watch.idle({"a": SessionUse(0, 1), "b": SessionUse(0, 1)}, 0) == []
    assert watch.idle({"a": SessionUse(5, 1), "b": SessionUse(0, 1)}, 9) == []
    assert watch.idle({"a": SessionUse(5, 1), "b": SessionUse(0, 1)}, 10) == ["b"]
    assert watch.idle({"a": SessionUse(5, 1)}, 19) == ["a"]


def test_a_session_without_measured_time_is_idle_when_no_program_is_connected() -> None:
    watch = IdleWatch(10)
    assert watch.idle({"a": SessionUse(None, 1)}, 0) == []
    assert watch.idle({"a": SessionUse(None, 1)}, 100) == []
    assert watch.idle({"a": SessionUse(None, 0)}, 109) == []
    assert watch.idle({"a": SessionUse(None, 0)}, 110) == ["a"]
