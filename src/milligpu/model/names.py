"""Every annotation, label and resource name that milligpu defines or counts."""

from collections.abc import Mapping

PREFIX = "milligpu.dev/"

GRANT = PREFIX + "grant"
"""On pods; written with the binding, by the scheduler only."""
INVENTORY = PREFIX + "inventory"
"""On nodes; written by that node's agent only."""
DRIVER = PREFIX + "driver"
"""On nodes; versions of the driver and of CUDA, written by that node's agent only."""
AGENT = PREFIX + "agent"
"""On nodes; where the node's agent listens."""
AGENT_CONTROLLER = PREFIX + "agent"
"""What events of agents name as their controller."""
AGENT_READY, GPUS_HEALTHY = PREFIX + "GpuAgentReady", PREFIX + "GpusHealthy"
"""The conditions of nodes that the scheduler writes."""
AGENT_NOT_READY = PREFIX + "agent-not-ready"
"""Taint of new nodes; the scheduler removes it when the node's agent is ready."""
SUSPENDED = PREFIX + "suspended"
"""Taint of nodes whose VM is suspended, or about to be."""
SUSPENDED_CONDITION = PREFIX + "Suspended"
"""The condition of such nodes; its message says until when."""
GPU_SERVER = PREFIX + "gpu-server"
"""On pods with a remote share: the server's address and CA; written with the binding, by the scheduler only."""
EVICT = PREFIX + "evict"
"""On nodes; pods that the node's agent asks the scheduler to evict."""
GPU_SETTINGS = PREFIX + "gpu-settings"
"""On nodes; an admin's settings of single GPUs (`milligpu gpu cordon`)."""

LAYOUT = PREFIX + "layout"
"""On nodes; what the present layout asks of the node's GPUs, written by the scheduler only."""

# What users write on pods, in addition to the resources.
CLASS = PREFIX + "class"
REQUIRE = PREFIX + "require"
POLICY = PREFIX + "policy"
LIMIT = PREFIX + "limit"
PRIORITY = PREFIX + "priority"
STRATEGY = PREFIX + "strategy"
AFFINITY = PREFIX + "affinity"
ANTI_AFFINITY = PREFIX + "anti-affinity"
EXCLUSION = PREFIX + "exclusion"
GROUP = PREFIX + "group"
GROUP_SIZE = PREFIX + "group-size"
GROUP_MIN_COUNT = PREFIX + "group-min-count"
ATTACH = PREFIX + "attach"
"""Where the pod's GPU is: local, or remote (on a GPU server)."""
BITFUSION = PREFIX + "bitfusion"
"""Label of namespaces: what `bitfusion run` in a pod's command means there, as a value of `ATTACH`."""
WHEN_SUSPENDED = PREFIX + "when-suspended"
"""On pods and namespaces: whether pods are suspended with their node's VM (`keep`), or evicted (`drain`)."""
SHARES = PREFIX + "shares"
"""Per container, what the two resources cannot express: shares of several GPUs, or memory without compute."""
RESIZE = PREFIX + "resize"
"""A new share for a running pod; can be written at any time."""
FLOOR = PREFIX + "floor"
"""How far each share of the pod may be shrunk for other pods, in milli-GPU."""
SERVICE = PREFIX + "service"
"""On pods; the GpuService that sets the pod's share, written with the grant, by the scheduler only."""
GRANTED = (GRANT, GPU_SERVER, SERVICE)
"""On pods; written with the binding or later, by the scheduler only, and removed from copies of pods."""
QUEUE = PREFIX + "queue"
"""Label of pods: the queue in which they wait. Admission writes it; it is also the name of the scheduling gate."""
USER = PREFIX + "user"
"""On pods and templates in queues: who created them. Admission writes it; a policy lets nobody write another."""
DIALECT = PREFIX + "dialect"
"""The dialect in which the pod was written, before admission converted it."""

USER_ANNOTATIONS = frozenset(
    {
        CLASS,
        REQUIRE,
        POLICY,
        LIMIT,
        PRIORITY,
        STRATEGY,
        AFFINITY,
        ANTI_AFFINITY,
        EXCLUSION,
        GROUP,
        GROUP_SIZE,
        GROUP_MIN_COUNT,
        SHARES,
        RESIZE,
        FLOOR,
        DIALECT,
        ATTACH,
        WHEN_SUSPENDED,
    }
)

DECLARED = PREFIX + "declared"
"""On classes; written by the scheduler service on those that its installation declares."""

GROUP_VERSION = PREFIX + "v1alpha1"
"""The API group and version of our objects."""
CLASSES_PATH = f"/apis/{GROUP_VERSION}/gpuclasses"
"""Where the API server has the classes."""
QUEUES_PATH = f"/apis/{GROUP_VERSION}/gpuqueues"
"""Where the API server has the queues."""
IDLE_ACTION, IDLE_AFTER = PREFIX + "idle-action", PREFIX + "idle-after"
"""On namespaces and queues; what the dashboard does about pods that do not use their share, and when."""
QUEUED = PREFIX + "Queued"
"""The condition of pods that wait in a queue."""
LAYOUTS_PATH = f"/apis/{GROUP_VERSION}/gpulayouts"
CALENDARS_PATH = f"/apis/{GROUP_VERSION}/gpucalendars"

SERVERS_PATH = f"/apis/{GROUP_VERSION}/gpuservers"
SERVICES_PATH = f"/apis/{GROUP_VERSION}/gpuservices"
"""The services of all namespaces."""

VGPU = "nvidia.com/vgpu"
"""Milli-GPU; counted by the kubelet."""
VGPU_MEMORY = "nvidia.com/vgpu-memory"
"""MiB per GPU; decided by the scheduler service."""
REMOTE_VGPU, REMOTE_VGPU_MEMORY = PREFIX + "remote-vgpu", PREFIX + "remote-vgpu-memory"
"""The same of a GPU on a GPU server. No kubelet counts them; the scheduler service does."""
COUNTED_LOCALLY = {REMOTE_VGPU: VGPU, REMOTE_VGPU_MEMORY: VGPU_MEMORY}
"""The resources of remote shares, and those that mean the same on a node."""
WHOLE_GPU = "nvidia.com/gpu"
"""Whole GPUs; counted by the kubelet."""

VGPU_TYPE = "vgpu.type"
"""Label of nodes with vGPUs, as people write and select it. The agent adds it to nodes that have none."""
VGPU_TYPE_WRITTEN = PREFIX + "vgpu-type"
"""On nodes; the value of `vgpu.type` that the agent wrote. The agent leaves any other value as it is."""
VGPU_PROFILE = PREFIX + "vgpu."
"""Beginning of the agent's own labels: `milligpu.dev/vgpu.v100-8q=true`, one for each profile on the node."""

_NVIDIA = "nvidia.com/"
HARDWARE_LABELS = tuple(
    _NVIDIA + key
    for key in (
        "gpu.product",
        "gpu.memory",
        "gpu.count",
        "gpu.family",
        "gpu.replicas",
        "gpu.sharing-strategy",
        "gpu.compute.major",
        "gpu.compute.minor",
        "mig.capable",
    )
)
"""Labels of nodes, as NVIDIA's feature discovery writes them; the agent writes the same."""
DRIVER_LABELS = tuple(_NVIDIA + f"cuda.driver-version.{part}" for part in ("major", "minor", "revision", "full"))
"""Labels of nodes with the version of the driver."""

# Names of 0.1.0, read for one release.
OLD_GPU_SETTINGS = PREFIX + "orders"
OLD_GROUP_MIN_COUNT = PREFIX + "group-least"
RENAMED = {OLD_GROUP_MIN_COUNT: GROUP_MIN_COUNT}
"""Annotations of pods: the old spelling and the new one."""


def gpu_settings_text(annotations: Mapping[str, str] | None) -> str | None:
    """The GPU settings of a node, under their new name or under that of 0.1.0."""
    found = annotations or {}
    return found.get(GPU_SETTINGS, found.get(OLD_GPU_SETTINGS))


def service_path(namespace: str, name: str) -> str:
    """Where the API server has one GpuService."""
    return f"/apis/{GROUP_VERSION}/namespaces/{namespace}/gpuservices/{name}"
