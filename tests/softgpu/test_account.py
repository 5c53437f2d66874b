"""Who holds what of a card, without any process."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milligpu.model.errors import BadRequest
from milligpu.softgpu.account import Account
from milligpu.softgpu.models import find_model, models

MODEL = find_model("A10")


def card(memory: int = 1 << 30) -> Account:
    return Account(0, MODEL, UUID(int=0), memory)


def test_a_context_takes_its_share_before_anything_is_allocated() -> None:
    account = card()
    client = account.connect(1)
    assert account.open_context(client)
    assert account.free == account.memory - MODEL.context_memory
    assert account.close_context(client)
    assert account.free == account.memory


def test_a_card_without_room_opens_no_context() -> None:
    account = card(MODEL.context_memory - 1)
    assert not account.open_context(account.connect(1))
    assert account.used == 0


def test_memory_is_given_in_full_or_not_at_all() -> None:
    account = card(1000)
    client = account.connect(1)
    assert account.reserve(client, 1000)
    assert not account.reserve(client, 1)
    assert account.free == 0


def test_more_than_was_taken_cannot_be_given_back() -> None:
    account = card()
    one, other = account.connect(1), account.connect(2)
    account.reserve(one, 100)
    assert account.open_context(other)
    assert not account.release(other, 1)
    assert not account.close_context(one)
    assert account.used == 100 + MODEL.context_memory


def test_whatever_ends_a_process_its_memory_is_free_again() -> None:
    account = card()
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
def test_the_sum_of_what_clients_hold_is_what_is_used_and_never_too_much(steps: list[tuple[str, int, int]]) -> None:
    account = card(2 * MODEL.context_memory + 1000)
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


def test_every_model_reads_and_an_unknown_one_is_refused_with_the_names() -> None:
    assert all(find_model(name.lower()) is model for name, model in models().items())
    with pytest.raises(BadRequest, match="A100-40GB"):
        find_model("A1000")
