"""An admin's settings of single GPUs, as a node annotation: `milligpu.dev/gpu-settings`.

The agent applies them and never writes them:
`{"v":2,"cordoned":{"GPU-…":"why"},"cleared":{"GPU-…":"when"},"policies":{"GPU-…":"fixed"}}`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import msgspec

from milligpu.model.errors import BadRequest
from milligpu.model.gpu import parse_uuid
from milligpu.model.policy import SharePolicy
from milligpu.wire.documents import Document, DocumentFormat, encode

SETTINGS = DocumentFormat("GPU settings", version=2)
# Only version 2 has policies. Settings without any are written as version 1, which 0.1.0 reads too.
_NO_POLICIES = 1


class _Settings(Document, frozen=True):
    cordoned: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    cleared: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    policies: dict[str, SharePolicy] | None = None


@dataclass(frozen=True, slots=True)
class GpuSettings:
    """What an admin set, by GPU UUID."""

    cordoned: Mapping[str, str] = field(default_factory=dict[str, str])
    """GPUs that are cordoned, with the message."""
    cleared: Mapping[str, str] = field(default_factory=dict[str, str])
    """GPUs whose health record was cleared; another value clears it again."""
    policies: Mapping[str, SharePolicy] = field(default_factory=dict[str, SharePolicy])
    """Share policies that differ from what the agent was started with."""

    def cordon(self, uuid: str, message: str) -> "GpuSettings":
        """Cordon a GPU."""
        return replace(self, cordoned={**self.cordoned, uuid: message})

    def uncordon(self, uuid: str, when: str) -> "GpuSettings":
        """Uncordon a GPU and clear its health record."""
        left = {gpu: message for gpu, message in self.cordoned.items() if gpu != uuid}
        return replace(self, cordoned=left, cleared={**self.cleared, uuid: when})

    def set_policy(self, uuid: str, policy: SharePolicy | None) -> "GpuSettings":
        """Set a GPU's share policy; None is the agent's own choice."""
        others = {gpu: each for gpu, each in self.policies.items() if gpu != uuid}
        return replace(self, policies=others if policy is None else {**others, uuid: policy})


def encode_gpu_settings(settings: GpuSettings) -> str:
    """Write the annotation's value, in the oldest version that can say it."""
    version = SETTINGS.version if settings.policies else _NO_POLICIES
    return encode(
        _Settings(version, dict(settings.cordoned), dict(settings.cleared), dict(settings.policies) or None)
    )


def decode_gpu_settings(text: str | bytes) -> GpuSettings:
    """Read the annotation's value."""
    raw = SETTINGS.decode(text, _Settings)
    try:
        for uuid in (*raw.cordoned, *raw.cleared, *(raw.policies or ())):
            parse_uuid("uuid", uuid)
    except BadRequest as error:
        raise SETTINGS.refuse(error) from None
    return GpuSettings(raw.cordoned, raw.cleared, raw.policies or {})
