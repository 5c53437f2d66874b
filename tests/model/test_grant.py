from dataclasses import replace

import pytest

from milligpu.model.affinity import parse_label
from milligpu.model.errors import BadRequest
from milligpu.model.gpu import GpuLink, parse_capability, parse_link, parse_uuid
from milligpu.model.grant import Grant, NoFit, whole_gpu
from milligpu.model.group import PodGroup, parse_group
from milligpu.model.reasons import AmountUnit, Reason, Refusal


def test_the_summary_counts_each_node_once_with_its_nearest_gpu() -> None:
    answer = NoFit(
        (
            Refusal(Reason.INSUFFICIENT_CORE, "n7", "GPU-1", 500, 100),
            Refusal(Reason.INSUFFICIENT_CORE, "n7", "GPU-2", 500, 400),
            Refusal(Reason.UNHEALTHY, "n7", "GPU-3"),
            Refusal(Reason.INSUFFICIENT_CORE, "n8", "GPU-4", 500, 300),
            Refusal(Reason.MODEL_MISMATCH, "n9", "GPU-5"),
        ),
        nodes=3,
        nearest="0.4 GPU",
    )
    assert answer.summary() == (
        "0/3 nodes: 2 InsufficientGPUCore (best: n7/GPU-2 has 0.4 of 0.5 GPU), 1 ModelMismatch; try 0.4 GPU"
    )
    assert not answer.hopeless


def test_a_node_with_too_few_gpus_is_counted_once_for_that_reason() -> None:
    short = Refusal(Reason.INSUFFICIENT_GPUS, "n1", "", 2, 1)
    answer = NoFit((Refusal(Reason.INSUFFICIENT_CORE, "n1", "GPU-1", 1000, 900), short), nodes=1)
    assert answer.summary() == "0/1 nodes: 1 InsufficientGPUs (best: n1 has 1 of 2 GPUs)"


@pytest.mark.parametrize(
    ("refusal", "words"),
    [
        (Refusal(Reason.INSUFFICIENT_MEMORY, "n1", "GPU-1", 4446, 1000), "best: n1/GPU-1 has 1000Mi of 4446Mi"),
        (
            Refusal(Reason.TOO_LARGE, "n1", "GPU-1", 1000, 500, AmountUnit.COMPUTE),
            "best: n1/GPU-1 has 0.5 of 1 GPU",
        ),
        (
            Refusal(Reason.TOO_LARGE, "n1", "GPU-1", 81920, 40960, AmountUnit.MEMORY),
            "best: n1/GPU-1 has 40Gi of 80Gi",
        ),
        (Refusal(Reason.NODE_CPU, "n1", "", 2000, 500), "best: n1 has 500m of 2000m CPU"),
        (Refusal(Reason.CORDONED, "n1", "GPU-1", message="fan broken"), "n1/GPU-1: fan broken"),
        (
            Refusal(Reason.UNHEALTHY, "n1", "GPU-c6eb0a11-aaaa-5fae-8ace-b5fd7a745a20", message="XID 79"),
            "n1/GPU-c6eb0a11: XID 79",
        ),
        (Refusal(Reason.NODE_EXCLUDED, "n1", message="nodeSelector a=b"), "n1: nodeSelector a=b"),
    ],
)
def test_a_refusal_has_its_own_units_and_the_reason_behind_it(refusal: Refusal, words: str) -> None:
    assert NoFit((refusal,), nodes=1).summary() == f"0/1 nodes: 1 {refusal.reason} ({words})"
    other = replace(refusal, node="n2", best=0)
    if not refusal.amounts:
        assert NoFit((refusal, other), nodes=2).summary() == f"0/2 nodes: 2 {refusal.reason} (such as {words})"


def test_waiting_is_hopeless_if_no_gpu_would_fit_even_when_idle() -> None:
    assert NoFit((Refusal(Reason.MODEL_MISMATCH, "n1", "GPU-1"),), nodes=1).hopeless
    assert NoFit((), nodes=0).summary() == "0/0 nodes: NoGPU"


def test_a_grant_names_each_gpu_once() -> None:
    grant = Grant("u", "n", {"a": (whole_gpu("GPU-1"), whole_gpu("GPU-2")), "b": (whole_gpu("GPU-1"),)})
    assert grant.gpus == ("GPU-1", "GPU-2")


def test_policy_strategy_and_priority_are_parsed_strictly() -> None:
    assert parse_link("l", "NV12") == GpuLink("NV", 12)
    assert str(parse_link("l", "PIX")) == "PIX"
    assert str(parse_capability("cc", "10.0")) == "10.0"
    assert parse_capability("cc", "10.0") > parse_capability("cc", "9.0")
    assert parse_group("g", "job-1", "s", "4") == PodGroup("job-1", 4, 4)
    for parse, value in ((parse_link, "NV0"), (parse_capability, "8"), (parse_uuid, "0"), (parse_label, "-a")):
        with pytest.raises(BadRequest):
            parse("field", value)
    with pytest.raises(BadRequest, match="from 1 to 5000"):
        parse_group("g", "job", "s", 0)
