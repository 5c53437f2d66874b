"""The annotation `milligpu.dev/shares`: per container, a share that the two native resources cannot express.

    {"main": {"gpus": 2, "milli": 300, "mib": 3000, "limit": 300}}

`nvidia.com/vgpu` is the total of a container, for the kubelet and for quotas: 600 here. Only this annotation can
say that it is 300 on each of two GPUs. `card` is memory in thousandths of the GPU's. Compute that is left out
follows from the memory, and memory that is left out follows from the compute.
"""

from collections.abc import Mapping

from milligpu.model import names
from milligpu.model.errors import BadFormat, BadRequest
from milligpu.model.request import ShareRequest
from milligpu.wire.documents import DocumentFormat
from milligpu.wire.share import ShareDocument, decode_shares, encode_shares

SHARES = DocumentFormat("shares")
_EXAMPLE = '{"main": {"gpus": 2, "milli": 300, "mib": 4096}}'


def parse_shares(field: str, text: object) -> Mapping[str, ShareRequest]:
    """Read the annotation, and refuse unknown keys."""
    try:
        found = decode_shares(SHARES, text if isinstance(text, str) else "")
    except BadFormat as error:
        hint = error.hint or f"write e.g. {_EXAMPLE}"
        raise BadRequest(field, text, f"shares by container ({error.problem})", hint=hint) from None
    return {name: _share(f"{field}[{name}]", share) for name, share in found.items()}


def _share(where: str, found: ShareDocument) -> ShareRequest:
    try:
        return found.request()
    except BadRequest as error:
        raise error.inside(where) from None


def format_shares(shares: Mapping[str, ShareRequest]) -> str:
    """Write the annotation."""
    return encode_shares({name: ShareDocument.of(share) for name, share in shares.items()})


def is_plain(share: ShareRequest) -> bool:
    """Whether the two resources alone can express the share."""
    one_size = share.count == 1 or share.milli == 1000
    return bool(share.milli) and one_size and share.card_memory is None and share.limit is None


def counted_vgpu(share: ShareRequest, *, unsaid: int) -> int:
    """Return the amount of `nvidia.com/vgpu` for a share: at least 1, or the kubelet would attach nothing.

    `unsaid` counts on each GPU where compute follows from the memory.
    """
    return max(1, share.count * (unsaid if share.milli is None else share.milli))


def check_counted(container: str, share: ShareRequest, amount: int) -> None:
    """Refuse an amount that differs from the share, because it would get around a quota."""
    least = counted_vgpu(share, unsaid=1)
    if amount < least or (share.milli is not None and amount != least):
        want = f"{least}, as {names.SHARES} says"
        raise BadRequest(f"containers[{container}].resources.limits[{names.VGPU}]", amount, want)
