"""Memory and contexts of one GPU, without processes."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milligpu.model.errors import BadRequest
from milligpu.softgpu.account import SoftGpuMemory
from milligpu.softgpu.models import find_model, models

MODEL = find_model("A10")


def gpu(memory: int = 1 << 30) -> SoftGpuMemory:
    return SoftGpuMemory(0, MODEL, UUID(int=0), memory)


def test_a_new_context_reserves_its_own_memory() -> None:
    account = gpu()
    client = account.connect(1)
    assert account.open_context(client)
    assert account.free == account.memory - MODEL.context_memory
    assert account.close_context(client)
    assert account.free == account.memory


def test_a_context_is_refused_when_its_memory_does_not_fit() -> None:
    account = gpu(MODEL.context_memory - 1)
    assert not account.open_context(account.connect(1))
    assert account.used == 0


def test_a_reservation_that_does_not_fit_takes_nothing() -> None:
    account = gpu(1000)
    client = account.connect(1)
    assert account.reserve(client, 1000)
    assert not account.reserve(client, 1)
    assert account.free == 0


def test_releasing_more_than_was_reserved_is_refused() -> None:
    account = gpu()
    one, other = account.connect(1), account.connect(2)
    account.reserve(one, 100)
    assert account.open_context(other)
    assert not account.release(other, 1)
    assert not account.close_context(one)
    assert account.used == 100 + MODEL.context_memory


def test_disconnecting_releases_all_memory_of_a_process() -> None:
    account = gpu()
    client = account.connect(1)
    account.open_context(client)
    account.reserve(client, 12345)
    account.disconnect(client)
    assert account.used == 0
    assert account.clients == []


@given(
    st.lists(
        st.tuples(st.sampled_from(["reserve", "release", "open", "close"]), st.integers(0, 2), st.integers(0, 400))
    )
)
def test_used_memory_is_the_sum_over_clients_and_never_exceeds_capacity(steps: list[tuple[str, int, int]]) -> None:
    account = gpu(2 * MODEL.context_memory + 1000)
    clients = [account.connect(pid) for pid in range(3)]
    for verb, who, size in steps:
        match verb:
            case "reserve":
                account.reserve(clients[who], size)
            case "release":
                account.release(clients[who], size)
            case "open":
                account.open_context(clients[who])
            case _:
                account.close_context(clients[who])
        assert 0 <= account.used <= account.memory
        assert account.used == sum(client.memory for client in clients)


def test_all_models_load_and_an_unknown_name_lists_them() -> None:
    assert all(find_model(name.lower()) is model for name, model in models().items())
    with pytest.raises(BadRequest, match="A100-40GB"):
        find_model("A1000")
