"""Every annotation, label and resource name that is ours or that we count, in one place."""

PREFIX = "milligpu.dev/"

GRANT = PREFIX + "grant"
"""On pods; written with the binding, by the scheduler only."""
INVENTORY = PREFIX + "inventory"
"""On nodes; written by that node's agent only."""
AGENT = PREFIX + "agent"
"""On nodes; where the node's agent listens."""
ORDERS = PREFIX + "orders"
"""On nodes; an admin's word about single cards (`milligpu gpu cordon`)."""

# What users write on pods, beside the resources.
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
GROUP_LEAST = PREFIX + "group-least"
SHARES = PREFIX + "shares"
"""Per container, what the two resources cannot say: several GPUs in part, or memory without compute."""
RESIZE = PREFIX + "resize"
"""Another share for a running pod; written at any time."""
DIALECT = PREFIX + "dialect"
"""In which dialect the pod was written before admission brought it into this form."""

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
        GROUP_LEAST,
        SHARES,
        RESIZE,
        DIALECT,
    }
)

VGPU = "nvidia.com/vgpu"
"""Milli-GPU; counted by the kubelet."""
VGPU_MEMORY = "nvidia.com/vgpu-memory"
"""MiB per GPU; decided by the scheduler service."""
WHOLE_GPU = "nvidia.com/gpu"
"""Whole GPUs; counted by the kubelet."""
