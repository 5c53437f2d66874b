from milligpu.metrics.node import GpuSample, families
from milligpu.model.reasons import ViolationKind


def test_violations_are_exported_under_their_old_name_for_one_release() -> None:
    gpu = GpuSample(0, "GPU-a", "V100", "n1", healthy=True, violations=dict.fromkeys(ViolationKind, 2))
    found = {family.name: family for family in families([gpu], [])}
    new, old = found["milligpu_gpu_violations"], found["milligpu_gpu_outside"]
    assert {sample.labels["kind"] for sample in new.samples} == set(map(str, ViolationKind))
    assert {sample.labels["offence"] for sample in old.samples} == {
        "stranger",
        "around-the-limits",
        "over-memory",
        "spoilt-account",
        "over-time",
    }
    assert "Deprecated" in old.documentation
