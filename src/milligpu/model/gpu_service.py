"""Inference services: what a `GpuService` object says."""

from dataclasses import dataclass
from enum import StrEnum

from milligpu.model.units import Milli

PORT_MAX = 65535
REPLICAS_MAX = 10_000
TARGET_MAX = 1_000_000
NAME_MAX = 63
DEADLINE_S = 600
DEADLINE_MIN_S, DEADLINE_MAX_S = 10, 24 * 3600


class ScaleKind(StrEnum):
    """What a service can scale: kinds of apps/v1 whose `/scale` the scheduler's account may write."""

    DEPLOYMENT = "Deployment"
    STATEFUL_SET = "StatefulSet"
    REPLICA_SET = "ReplicaSet"

    @property
    def plural(self) -> str:
        return f"{self.lower()}s"


@dataclass(frozen=True, slots=True)
class ScaleTarget:
    """Whose pods the service has, in its own namespace."""

    kind: ScaleKind
    name: str

    def __str__(self) -> str:
        return f"{self.kind.lower()}/{self.name}"


@dataclass(frozen=True, slots=True)
class LoadSource:
    """Where a pod says what it serves, and the names of its metrics; an empty name is a metric it does not have."""

    port: int
    path: str = "/metrics"
    requests: str = ""
    """A counter of requests."""
    running: str = ""
    """A gauge of the requests that it works on."""
    waiting: str = ""
    """A gauge of the requests in its queue."""


PRESETS = {
    "vllm": LoadSource(
        8000,
        requests="vllm:request_success_total",
        running="vllm:num_requests_running",
        waiting="vllm:num_requests_waiting",
    ),
    "sglang": LoadSource(
        30000,
        requests="sglang:num_requests_total",
        running="sglang:num_running_reqs",
        waiting="sglang:num_queue_reqs",
    ),
    "triton": LoadSource(
        8002, requests="nv_inference_request_success", waiting="nv_inference_pending_request_count"
    ),
    "tgi": LoadSource(80, requests="tgi_request_count", running="tgi_batch_current_size", waiting="tgi_queue_size"),
    "torchserve": LoadSource(8082, requests="ts_inference_requests_total"),
}
"""The engines' own names and default ports."""


@dataclass(frozen=True, slots=True)
class LoadTarget:
    """What a whole GPU is meant to serve. Without either, GPU time per request is learned."""

    requests: int | None = None
    """A second."""
    running: int | None = None
    """At a time, those in the queue included."""


@dataclass(frozen=True, slots=True)
class ShareRange:
    """How much compute each pod is guaranteed."""

    max: Milli
    """Also the pods' limit: the most that they use of a GPU's idle time."""
    min: Milli | None = None
    """None: the share of the pod's template."""


@dataclass(frozen=True, slots=True)
class ReplicaRange:
    """How many pods the target may have."""

    min: int
    max: int


@dataclass(frozen=True, slots=True)
class GpuService:
    """What a `GpuService` says."""

    namespace: str
    name: str
    target: ScaleTarget
    source: LoadSource
    load: LoadTarget
    share: ShareRange
    replicas: ReplicaRange | None = None
    """None: something else decides how many pods there are."""
    deadline_s: int = DEADLINE_S
    """How long a new pod of an update may take until it is Ready."""
    paused: bool = False

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"
