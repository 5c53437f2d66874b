"""One module for each way in which manifests ask for GPUs; each reads a Pod into a `PodRequest` or refuses it.

A Pod is the plain dictionary that its JSON or YAML is. Nothing is read as "asked for nothing" unless it is.
`read` finds out which dialect a pod speaks; callers need no more than that.
"""

from milligpu.dialects.choose import read
from milligpu.dialects.settings import Settings

__all__ = ["Settings", "read"]
