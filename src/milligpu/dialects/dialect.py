"""What a dialect says about itself.

Each dialect module ends with its `Dialect`. Everything else that depends on the set of dialects is made from it:
which pods the API server sends to the webhook, the resources that admission counts, the scheduler names that it
replaces, the options of commands, and the tables in docs/dialects.md.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from milligpu.dialects import pod as pods
from milligpu.dialects.settings import DialectSetting, DialectSettings
from milligpu.model.request import PodRequest, ShareRequest

Rewrite = Callable[[dict[str, Any], pods.Json, Mapping[str, ShareRequest]], None]


@dataclass(frozen=True, slots=True)
class DialectForm:
    """One row of the table in docs/dialects.md: what a manifest has, and what it means here (both in Markdown)."""

    written: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Dialect:
    """One way to request GPUs in a manifest."""

    name: str
    first_field: Callable[[pods.PodFields], str | None]
    """Return the first field of a pod that is in this dialect."""
    read_request: Callable[[pods.Json, DialectSettings], PodRequest]
    source: str
    """The system and the version whose manifests are read, in Markdown."""
    forms: tuple[DialectForm, ...]
    resources: frozenset[str] = frozenset()
    """Resources of this dialect; admission replaces them."""
    also_reads: frozenset[str] = frozenset()
    """Resources of another dialect that may stand next to this one's."""
    resource_patterns: tuple[str, ...] = ()
    """Regular expressions for the beginning of resource names. They cover `resources` and likely misspellings."""
    annotation_patterns: tuple[str, ...] = ()
    label_patterns: tuple[str, ...] = ()
    command_words: tuple[str, ...] = ()
    """Words that mark a container's command as a request."""
    schedulers: tuple[str, ...] = ()
    """Names of the system's own schedulers, which admission replaces."""
    settings: tuple[DialectSetting[Any], ...] = ()
    rewrite: Rewrite | None = None
    """Change an admitted pod: called with the pod to change, the pod as written, and the shares by container."""
