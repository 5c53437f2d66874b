"""How manifests request GPUs: one module per dialect, which reads a pod into a `PodRequest` or refuses it.

A pod is the plain dictionary of its JSON or YAML. A misspelled or incomplete request is refused, never read as no
request. `read_pod` finds out in which dialect a pod is written and reads it. `normal` converts a pod of any dialect
to the one form that admitted pods have.
"""

from milligpu.dialects.choose import read_pod
from milligpu.dialects.settings import DialectSettings

__all__ = ["DialectSettings", "read_pod"]
