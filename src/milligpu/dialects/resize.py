"""The annotation `milligpu.dev/resize`: another share for containers of a running pod.

    {"main": {"milli": 600, "mib": 8192, "limit": 800}}

It says what is wanted from now on; what is left out stays as it is. On several GPUs it is the same on each.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import msgspec

from milligpu.model import names
from milligpu.model.errors import BadRequest
from milligpu.model.grant import GpuShare, Grant
from milligpu.model.units import MIB_MAX, WHOLE, Mib, Milli

# One entry per container of a pod; a pod has a handful of them.
_TEXT_MAX = 64 * 1024
_EXAMPLE = '{"main": {"milli": 600, "mib": 8192}}'


@dataclass(frozen=True, slots=True)
class Change:
    """What one container wants of each of its GPUs; None leaves it as it is."""

    milli: Milli | None = None
    mib: Mib | None = None
    limit: Milli | None = None

    def over(self, other: "Change") -> "Change":
        """Both, where this one has the last word."""
        return Change(
            other.milli if self.milli is None else self.milli,
            other.mib if self.mib is None else self.mib,
            other.limit if self.limit is None else self.limit,
        )


class _Change(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    milli: int | None = None
    mib: int | None = None
    limit: int | None = None


_DECODER = msgspec.json.Decoder(dict[str, _Change])


def parse_resize(text: str) -> Mapping[str, Change]:
    """Read the annotation; what it does not know it refuses."""
    if len(text) > _TEXT_MAX:
        raise BadRequest(names.RESIZE, f"{text[:20]}…", f"at most {_TEXT_MAX} characters")
    try:
        found = _DECODER.decode(text)
    except msgspec.MsgspecError as error:
        want = f"changes by container ({error})"
        raise BadRequest(names.RESIZE, text, want, hint=f"write e.g. {_EXAMPLE}") from None
    return {name: _checked(f"{names.RESIZE}[{name}]", change) for name, change in found.items()}


def format_resize(changes: Mapping[str, Change]) -> str:
    """Write the annotation."""
    plain = {name: _Change(change.milli, change.mib, change.limit) for name, change in changes.items()}
    return msgspec.json.encode(plain, order="sorted").decode()


def _checked(where: str, found: _Change) -> Change:
    for key, value, low, high in (
        ("milli", found.milli, 0, WHOLE),
        ("mib", found.mib, 1, MIB_MAX),
        ("limit", found.limit, max(1, found.milli or 0), WHOLE),
    ):
        if value is not None and not low <= value <= high:
            raise BadRequest(f"{where}.{key}", value, f"{low} to {high}")
    return Change(
        None if found.milli is None else Milli(found.milli),
        None if found.mib is None else Mib(found.mib),
        None if found.limit is None else Milli(found.limit),
    )


def resized(grant: Grant, changes: Mapping[str, Change]) -> Grant:
    """The grant's next generation, on the same cards; the grant itself when nothing would change."""
    for name in changes:
        if name not in grant.containers:
            want = f"a container that has a share: {', '.join(grant.containers)}"
            raise BadRequest(f"{names.RESIZE}[{name}]", name, want)
    containers = {
        name: tuple(_share(name, share, changes[name]) for share in shares) if name in changes else shares
        for name, shares in grant.containers.items()
    }
    if containers == grant.containers:
        return grant
    return replace(grant, containers=containers, generation=grant.generation + 1)


def _share(container: str, share: GpuShare, change: Change) -> GpuShare:
    where = f"{names.RESIZE}[{container}]"
    if share.whole:
        raise BadRequest(where, "a whole GPU", "a share: nothing of ours stands between a program and a whole GPU")
    milli = share.milli if change.milli is None else change.milli
    # A ceiling that was the share itself goes with it.
    tied = milli if share.limit == share.milli else max(share.limit, milli)
    limit = tied if change.limit is None else change.limit
    if limit < max(1, milli):
        raise BadRequest(f"{where}.limit", limit, f"{max(1, milli)} to {WHOLE}")
    return GpuShare(share.gpu, milli, share.mib if change.mib is None else change.mib, limit)
