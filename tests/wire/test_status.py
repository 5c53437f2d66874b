"""The machine status: what is sent is read again, also from an agent of the previous version."""

from milligpu.model.reasons import ViolationKind
from milligpu.wire.status import (
    STATUS,
    AcceleratorStats,
    GpuStatus,
    MachineStatus,
    SessionStatus,
    ShareUsage,
    Violation,
    WaitingSession,
    decode_status,
    encode_status,
)

SHARE = ShareUsage(
    AcceleratorStats("nvidia", "A10", "GPU-a", 1 << 30, 1 << 20, 33),
    milli=500,
    limit=1000,
    mib=1024,
    session="1a2b3c",
    utilization=0.333,
    gpu_time_ns=7,
)


def test_a_status_is_read_as_it_was_sent() -> None:
    status = MachineStatus(
        STATUS.version,
        "here",
        [GpuStatus(0, "GPU-a", "A10", 1000, 24576, 500, 23552)],
        shares=[SHARE],
        sessions=[SessionStatus("1a2b3c", 17, 1000, ["python"], 1.5)],
        waiting=[WaitingSession(18, 1000, ["python"], "0.6 GPU", "InsufficientGPUCore")],
        violations=[Violation(ViolationKind.BYPASS, "GPU-a", "1a2b3c", 19, "process 19 ...")],
        violation_counts={"bypass": 1},
    )
    assert decode_status(encode_status(status)) == status


def test_the_stats_of_version_0_1_0_are_read() -> None:
    old = b"""[{"namespace": "ns", "pod": "p", "container": "main", "accelerators": [{"make": "nvidia",
        "model": "A10", "id": "GPU-a",
        "memoryTotal": 1073741824, "memoryUsed": null, "dutyCycle": 25, "waiting": true}]}]"""
    (share,) = decode_status(old).shares
    assert (share.namespace, share.pod, share.container, share.gpu) == ("ns", "p", "main", "GPU-a")
    assert (share.utilization, share.memory_used, share.memory_limit, share.waiting) == (0.25, None, 1 << 30, True)
