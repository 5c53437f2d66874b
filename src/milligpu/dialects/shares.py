"""The annotation `milligpu.dev/shares`: per container, a share that the two native resources cannot say.

    {"main": {"gpus": 2, "milli": 300, "mib": 3000, "limit": 300}}

`nvidia.com/vgpu` counts what a container takes in all, for the kubelet and for quotas: 600 here. Only this
annotation can say that it is 300 on each of two GPUs. `card` is memory in thousandths of the card. Compute that is
left out follows from the memory, and memory that is left out follows from the compute.
"""

from collections.abc import Mapping

import msgspec

from milligpu.model import names
from milligpu.model.errors import BadRequest
from milligpu.model.request import ShareRequest
from milligpu.model.units import Mib, Milli


class _Share(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    gpus: int = 1
    milli: int | None = None
    mib: int | None = None
    card: int | None = None
    limit: int | None = None


_DECODER = msgspec.json.Decoder(dict[str, _Share])
# One per container of a pod; a pod has a handful of them.
_TEXT_MAX = 64 * 1024


def parse_shares(field: str, text: object) -> Mapping[str, ShareRequest]:
    """Read the annotation; what it does not know it refuses."""
    if not isinstance(text, str) or len(text) > _TEXT_MAX:
        raise BadRequest(field, text, f"JSON of at most {_TEXT_MAX} characters")
    try:
        found = _DECODER.decode(text)
    except msgspec.MsgspecError as error:
        raise BadRequest(field, text, f"shares by container ({error})", hint=f"write e.g. {_EXAMPLE}") from None
    return {name: _share(f"{field}[{name}]", share) for name, share in found.items()}


_EXAMPLE = '{"main": {"gpus": 2, "milli": 300, "mib": 4096}}'


def _share(where: str, found: _Share) -> ShareRequest:
    try:
        return ShareRequest(
            count=found.gpus,
            milli=None if found.milli is None else Milli(found.milli),
            mib=None if found.mib is None else Mib(found.mib),
            card_memory=None if found.card is None else Milli(found.card),
            limit=None if found.limit is None else Milli(found.limit),
        )
    except BadRequest as error:
        raise error.inside(where) from None


def format_shares(shares: Mapping[str, ShareRequest]) -> str:
    """Write the annotation."""
    return msgspec.json.encode(
        {
            name: _Share(share.count, share.milli, share.mib, share.card_memory, share.limit)
            for name, share in shares.items()
        },
        order="sorted",
    ).decode()


def is_plain(share: ShareRequest) -> bool:
    """Whether the two resources alone say it."""
    one_size = share.count == 1 or share.milli == 1000
    return bool(share.milli) and one_size and share.card_memory is None and share.limit is None


def counted(share: ShareRequest, *, unsaid: int) -> int:
    """The amount of `nvidia.com/vgpu` for a share: at least 1, for without any the kubelet attaches nothing.

    `unsaid` is what counts on each GPU where compute is left to follow from the memory.
    """
    return max(1, share.count * (unsaid if share.milli is None else share.milli))


def check_counted(container: str, share: ShareRequest, amount: int) -> None:
    """The counted amount must be that of the share, or a quota could be passed by."""
    least = counted(share, unsaid=1)
    if amount < least or (share.milli is not None and amount != least):
        want = f"{least}, as {names.SHARES} says"
        raise BadRequest(f"containers[{container}].resources.limits[{names.VGPU}]", amount, want)
