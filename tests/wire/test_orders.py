import pytest

from milligpu.model.errors import BadFormat
from milligpu.wire.orders import Orders, decode_orders, encode_orders


def test_orders_survive_the_annotation() -> None:
    orders = Orders().cordon("GPU-a", "noisy fan").cordon("GPU-b", "").uncordon("GPU-b", "now")
    assert decode_orders(encode_orders(orders)) == Orders({"GPU-a": "noisy fan"}, {"GPU-b": "now"})
    assert decode_orders('{"v":1}') == Orders()


@pytest.mark.parametrize("text", ["", "{}", '{"v":2}', '{"v":1,"cordoned":{"a":"b"}}', '{"v":1,"other":1}'])
def test_orders_that_do_not_read_are_refused_whole(text: str) -> None:
    with pytest.raises(BadFormat):
        decode_orders(text)
