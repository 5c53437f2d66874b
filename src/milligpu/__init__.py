"""GPUs on Kubernetes, shared like CPUs: 1000 milligpu are one GPU.

Start reading at `milligpu.model`, the vocabulary that everything else speaks; ARCHITECTURE.md is the map.
"""

__version__ = "0.2.0"
