"""What the reader remembers of pods ends with them, even if nobody said that they are gone."""

from functools import partial

import msgspec

from milligpu import dialects
from milligpu.cluster.read import PodReader
from milligpu.wire.kubernetes import decode_pod
from testing.controlplane.memory import remembered_pods
from tests.cluster.objects import pod


def test_ended_pods_that_a_list_no_longer_has_are_forgotten() -> None:
    reader = PodReader(partial(dialects.read_pod))
    for name in ("gone", "listed", "known"):
        reader.read(decode_pod(msgspec.json.encode(pod(name, 100, phase="Succeeded", nodeName="n"))))
    reader.keep({"uid-listed"}, lambda uid: uid == "uid-known")
    assert remembered_pods(reader) == ["uid-known", "uid-listed"]
