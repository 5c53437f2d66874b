import pytest

from milligpu.model.errors import BadRequest
from milligpu.model.gpu import Link, parse_capability, parse_link, parse_uuid
from milligpu.model.grant import GpuShare, Grant, NoFit
from milligpu.model.labels import Gang, Locality, parse_gang, parse_label
from milligpu.model.reasons import Reason, Refusal


def test_the_summary_counts_each_node_once_under_its_nearest_card() -> None:
    answer = NoFit(
        (
            Refusal(Reason.INSUFFICIENT_CORE, "n7", "GPU-1", 500, 100),
            Refusal(Reason.INSUFFICIENT_CORE, "n7", "GPU-2", 500, 400),
            Refusal(Reason.SICK, "n7", "GPU-3"),
            Refusal(Reason.INSUFFICIENT_CORE, "n8", "GPU-4", 500, 300),
            Refusal(Reason.MODEL_MISMATCH, "n9", "GPU-5"),
        ),
        nodes=3,
        nearest="0.4 GPU",
    )
    assert answer.summary() == (
        "0/3 nodes: 2 InsufficientGPUCore (best: n7/GPU-2 400 of 500), 1 ModelMismatch; try 0.4 GPU"
    )
    assert not answer.hopeless


def test_a_node_with_too_few_cards_is_not_counted_under_one_of_them() -> None:
    short = Refusal(Reason.INSUFFICIENT_GPUS, "n1", "", 2, 1)
    answer = NoFit((Refusal(Reason.INSUFFICIENT_CORE, "n1", "GPU-1", 1000, 900), short), nodes=1)
    assert answer.summary() == "0/1 nodes: 1 InsufficientGPUs (best: n1 1 of 2)"


def test_waiting_is_hopeless_when_no_card_could_ever_do() -> None:
    assert NoFit((Refusal(Reason.MODEL_MISMATCH, "n1", "GPU-1"),), nodes=1).hopeless
    assert NoFit((), nodes=0).summary() == "0/0 nodes: NoGPU"


def test_a_grant_names_each_card_once() -> None:
    grant = Grant("u", "n", {"a": (GpuShare("GPU-1"), GpuShare("GPU-2")), "b": (GpuShare("GPU-1"),)})
    assert grant.gpus == ("GPU-1", "GPU-2")


@pytest.mark.parametrize(
    ("ours", "theirs", "together"),
    [
        (Locality(), Locality(), True),
        (Locality(anti_affinity="x"), Locality(anti_affinity="x"), False),
        (Locality(anti_affinity="x"), Locality(anti_affinity="y"), True),
        (Locality(exclusion="x"), Locality(exclusion="x"), True),
        (Locality(exclusion="x"), Locality(), False),
        (Locality(), Locality(exclusion="x"), False),
    ],
)
def test_labels_keep_pods_apart_both_ways(ours: Locality, theirs: Locality, together: bool) -> None:
    assert ours.admits(theirs) is together
    assert theirs.admits(ours) is together


def test_small_words_are_read_strictly() -> None:
    assert parse_link("l", "NV12") == Link("NV", 12)
    assert str(parse_link("l", "PIX")) == "PIX"
    assert str(parse_capability("cc", "10.0")) == "10.0"
    assert parse_capability("cc", "10.0") > parse_capability("cc", "9.0")
    assert parse_gang("g", "job-1", "s", "4") == Gang("job-1", 4, 4)
    for parse, value in ((parse_link, "NV0"), (parse_capability, "8"), (parse_uuid, "0"), (parse_label, "-a")):
        with pytest.raises(BadRequest):
            parse("field", value)
    with pytest.raises(BadRequest, match="from 1 to 5000"):
        parse_gang("g", "job", "s", 0)
