"""What an agent asks the scheduler to evict: read whole or not at all, because a node's token may be stolen."""

import json

import pytest

from milligpu.model.errors import BadFormat, NewerDocument
from milligpu.model.request import PodRef
from milligpu.wire.evictions import PODS_MAX, EvictionRequest, decode_evictions, encode_evictions


def request(number: int) -> EvictionRequest:
    return EvictionRequest(PodRef("default", f"p-{number}", f"uid-{number}"), "UnknownGPU")


def test_requests_are_read_as_they_were_written() -> None:
    text = encode_evictions([request(1), request(2)])
    assert json.loads(text)["pods"][0] == {
        "namespace": "default",
        "name": "p-1",
        "uid": "uid-1",
        "reason": "UnknownGPU",
    }
    assert decode_evictions(text) == (request(1), request(2))


def test_pods_beyond_the_limit_wait_for_their_turn() -> None:
    text = encode_evictions(map(request, range(PODS_MAX + 5)))
    assert len(decode_evictions(text)) == PODS_MAX


@pytest.mark.parametrize("name", ["", "../secrets/x", "a/b", "a?dryRun=All", "a b", "A", "a%2Fb", "a\n", "-a"])
@pytest.mark.parametrize("field", ["namespace", "name"])
def test_a_name_that_could_lead_elsewhere_is_refused(field: str, name: str) -> None:
    pod = {"namespace": "default", "name": "p", "uid": "u", "reason": "r", field: name}
    with pytest.raises(BadFormat, match="no pod has such a name"):
        decode_evictions(json.dumps({"v": 1, "pods": [pod]}))


def test_too_many_pods_and_other_versions_are_refused() -> None:
    pod = {"namespace": "default", "name": "p", "uid": "u", "reason": "r"}
    with pytest.raises(BadFormat, match="must be at most"):
        decode_evictions(json.dumps({"v": 1, "pods": [pod] * (PODS_MAX + 1)}))
    with pytest.raises(NewerDocument):
        decode_evictions('{"v":2,"pods":[]}')
    with pytest.raises(BadFormat):
        decode_evictions("evict everything")
