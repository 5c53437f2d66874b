"""The annotation `milligpu.dev/resize`: another share for containers of a running pod.

    {"main": {"milli": 600, "mib": 8192, "limit": 800}}

Values that are left out stay as they are. On several GPUs the share is the same on each.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from milligpu.model import names
from milligpu.model.errors import BadFormat, BadRequest
from milligpu.model.grant import GpuShare, Grant
from milligpu.model.request import Share
from milligpu.model.units import MIB_MAX, WHOLE, Mib, Milli
from milligpu.wire.documents import DocumentFormat
from milligpu.wire.share import ShareDocument, decode_shares, encode_shares

RESIZE = DocumentFormat("resize")
_EXAMPLE = '{"main": {"milli": 600, "mib": 8192}}'


@dataclass(frozen=True, slots=True)
class ShareChange:
    """The new share of one container on each of its GPUs; None leaves a value as it is."""

    milli: Milli | None = None
    mib: Mib | None = None
    limit: Milli | None = None

    def over(self, other: "ShareChange") -> "ShareChange":
        """Return both changes as one; where both have a value, this one counts."""
        return ShareChange(
            other.milli if self.milli is None else self.milli,
            other.mib if self.mib is None else self.mib,
            other.limit if self.limit is None else self.limit,
        )


def parse_resize(text: str) -> Mapping[str, ShareChange]:
    """Read the annotation, and refuse unknown keys."""
    try:
        found = decode_shares(RESIZE, text)
    except BadFormat as error:
        hint = error.hint or f"write e.g. {_EXAMPLE}"
        raise BadRequest(names.RESIZE, text, f"changes by container ({error.problem})", hint=hint) from None
    return {name: _change(f"{names.RESIZE}[{name}]", change) for name, change in found.items()}


def format_resize(changes: Mapping[str, ShareChange]) -> str:
    """Write the annotation."""
    return encode_shares(
        {
            name: ShareDocument(milli=change.milli, mib=change.mib, limit=change.limit)
            for name, change in changes.items()
        }
    )


def _change(where: str, found: ShareDocument) -> ShareChange:
    if found.gpus != 1 or found.card is not None:
        raise BadRequest(where, "gpus or card", "left out: a resized pod keeps its GPUs")
    for key, value, low, high in (
        ("milli", found.milli, 0, WHOLE),
        ("mib", found.mib, 1, MIB_MAX),
        ("limit", found.limit, max(1, found.milli or 0), WHOLE),
    ):
        if value is not None and not low <= value <= high:
            raise BadRequest(f"{where}.{key}", value, f"from {low} to {high}")
    return ShareChange(
        None if found.milli is None else Milli(found.milli),
        None if found.mib is None else Mib(found.mib),
        None if found.limit is None else Milli(found.limit),
    )


def resized_grant(grant: Grant, changes: Mapping[str, ShareChange]) -> Grant:
    """Return the grant's next generation on the same GPUs, or the grant itself if nothing changes."""
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


def _share(container: str, held: GpuShare, change: ShareChange) -> GpuShare:
    share = held.share
    where = f"{names.RESIZE}[{container}]"
    if share.whole:
        raise BadRequest(
            where, "a whole GPU", f"a share: container {container} holds a whole GPU, which cannot be resized"
        )
    milli = share.milli if change.milli is None else change.milli
    # A limit that is equal to the share stays equal to it.
    tied = milli if share.limit == share.milli else max(share.limit, milli)
    limit = tied if change.limit is None else change.limit
    if limit < max(1, milli):
        raise BadRequest(f"{where}.limit", limit, f"from {max(1, milli)} to {WHOLE}")
    return GpuShare(held.gpu, Share(milli, share.mib if change.mib is None else change.mib, limit))
