"""The grant as a pod annotation: `milligpu.dev/grant`."""

from milligpu.model.errors import BadFormat, BadRequest
from milligpu.model.gpu import parse_uuid
from milligpu.model.grant import GpuShare, Grant
from milligpu.model.qos import Policy, parse_priority
from milligpu.model.units import GPUS_MAX, MIB_MAX, WHOLE, Mib, Milli
from milligpu.wire.json import VERSION, Document, Part, decode, encode, refused

_NAME = "grant"


class _Share(Part, frozen=True):
    gpu: str
    milli: int | None = None
    limit: int | None = None
    mib: int | None = None
    whole: bool = False


class _Grant(Document, frozen=True):
    gen: int
    uid: str
    node: str
    policy: Policy
    priority: int
    containers: dict[str, list[_Share]]


def encode_grant(grant: Grant) -> str:
    """Write the annotation's value."""
    return encode(
        _Grant(
            v=VERSION,
            gen=grant.generation,
            uid=grant.uid,
            node=grant.node,
            policy=grant.policy,
            priority=grant.priority,
            containers={
                name: [
                    _Share(share.gpu, whole=True)
                    if share.whole
                    else _Share(share.gpu, share.milli, share.limit, share.mib)
                    for share in shares
                ]
                for name, shares in grant.containers.items()
            },
        )
    )


def decode_grant(text: str | bytes) -> Grant:
    """Read the annotation's value; anything odd is refused, because this is what the agent enforces."""
    raw = decode(_NAME, text, _Grant)
    try:
        priority = parse_priority("priority", raw.priority)
        containers = {name: tuple(map(_share, shares)) for name, shares in raw.containers.items()}
    except BadRequest as error:
        raise refused(_NAME, error) from None
    for field, value in (("uid", raw.uid), ("node", raw.node)):
        if not value:
            raise BadFormat(_NAME, f"{field} is empty")
    if raw.gen < 1:
        raise BadFormat(_NAME, f"gen={raw.gen}: want 1 or more")
    if not containers:
        raise BadFormat(_NAME, "containers is empty")
    for name, shares in containers.items():
        if not 1 <= len(shares) <= GPUS_MAX or len({share.gpu for share in shares}) != len(shares):
            raise BadFormat(_NAME, f"containers[{name!r}]: want 1 to {GPUS_MAX} GPUs, each once")
    return Grant(raw.uid, raw.node, containers, raw.policy, priority, raw.gen)


def _share(raw: _Share) -> GpuShare:
    gpu = parse_uuid("gpu", raw.gpu)
    if raw.whole:
        if (raw.milli, raw.limit, raw.mib) != (None, None, None):
            raise BadRequest("whole", True, "no milli, limit or mib beside it")
        return GpuShare(gpu, whole=True)
    milli = _within("milli", raw.milli, 0, WHOLE)
    limit = _within("limit", raw.limit, max(1, milli), WHOLE)
    return GpuShare(gpu, Milli(milli), Mib(_within("mib", raw.mib, 1, MIB_MAX)), Milli(limit))


def _within(field: str, value: int | None, low: int, high: int) -> int:
    if value is None or not low <= value <= high:
        raise BadRequest(field, value, f"{low} to {high}")
    return value
