"""The grant as a pod annotation: `milligpu.dev/grant`."""

import msgspec

from milligpu.model.errors import BadFormat, BadRequest
from milligpu.model.gpu import parse_uuid
from milligpu.model.gpu_class import parse_class_name
from milligpu.model.grant import GpuShare, Grant, whole_gpu
from milligpu.model.policy import SharePolicy, parse_priority
from milligpu.model.request import Share
from milligpu.model.units import GPUS_MAX, MIB_MAX, WHOLE, Mib, Milli
from milligpu.wire.documents import Document, DocumentFormat, DocumentPart, encode

GRANT = DocumentFormat("grant", version=3)
# Version 2 has numbers for whole GPUs, version 3 the class. Without both it is version 1, which 0.1.0 reads too.
_NO_WHOLE_NUMBERS = 1
_NO_CLASS = 2


class _Share(DocumentPart, frozen=True):
    gpu: str
    milli: int | None = None
    limit: int | None = None
    mib: int | None = None
    whole: bool = False


class _Grant(Document, frozen=True):
    gen: int
    uid: str
    node: str
    policy: SharePolicy
    priority: int
    containers: dict[str, list[_Share]]
    gpu_class: str | None = msgspec.field(name="class", default=None)


def encode_grant(grant: Grant) -> str:
    """Write the annotation's value, in the oldest version that can say it."""
    whole = [each.share for shares in grant.containers.values() for each in shares if each.share.whole]
    numbered = bool(whole) and all(share.milli for share in whole)
    version = _NO_CLASS if numbered else _NO_WHOLE_NUMBERS
    if grant.gpu_class is not None:
        version = GRANT.version
    return encode(
        _Grant(
            v=version,
            gen=grant.generation,
            uid=grant.uid,
            node=grant.node,
            policy=grant.policy,
            priority=grant.priority,
            containers={
                name: [_document(version, each) for each in shares] for name, shares in grant.containers.items()
            },
            gpu_class=grant.gpu_class,
        )
    )


def _document(version: int, held: GpuShare) -> _Share:
    share = held.share
    if share.whole and version == _NO_WHOLE_NUMBERS:
        return _Share(held.gpu, whole=True)
    return _Share(held.gpu, share.milli, share.limit, share.mib, share.whole)


def decode_grant(text: str | bytes) -> Grant:
    """Read the annotation's value; anything odd is refused, because this is what the agent enforces."""
    raw = GRANT.decode(text, _Grant)
    try:
        priority = parse_priority("priority", raw.priority)
        gpu_class = None if raw.gpu_class is None else parse_class_name("class", raw.gpu_class)
        containers = {
            name: tuple(_share(raw.v, share) for share in shares) for name, shares in raw.containers.items()
        }
    except BadRequest as error:
        raise GRANT.refuse(error) from None
    for field, value in (("uid", raw.uid), ("node", raw.node)):
        if not value:
            raise BadFormat(GRANT.name, f"{field} is empty")
    if gpu_class is not None and raw.v <= _NO_CLASS:
        raise BadFormat(GRANT.name, f"class: version {raw.v} has none")
    if raw.gen < 1:
        raise BadFormat(GRANT.name, f"gen: invalid value {raw.gen}: must be 1 or more")
    if not containers:
        raise BadFormat(GRANT.name, "containers is empty")
    for name, shares in containers.items():
        if not 1 <= len(shares) <= GPUS_MAX or len({share.gpu for share in shares}) != len(shares):
            raise BadFormat(GRANT.name, f"containers[{name!r}]: must be 1 to {GPUS_MAX} GPUs, each once")
    return Grant(raw.uid, raw.node, containers, raw.policy, priority, raw.gen, gpu_class)


def _share(version: int, raw: _Share) -> GpuShare:
    gpu = parse_uuid("gpu", raw.gpu)
    if raw.whole and version == _NO_WHOLE_NUMBERS:
        if (raw.milli, raw.limit, raw.mib) != (None, None, None):
            raise BadRequest("whole", True, "without milli, limit or mib")
        return whole_gpu(gpu)
    milli = _within("milli", raw.milli, 0, WHOLE)
    limit = _within("limit", raw.limit, max(1, milli), WHOLE)
    mib = _within("mib", raw.mib, 1, MIB_MAX)
    return GpuShare(gpu, Share(Milli(milli), Mib(mib), Milli(limit), raw.whole))


def _within(field: str, value: int | None, low: int, high: int) -> int:
    if value is None or not low <= value <= high:
        raise BadRequest(field, value, f"from {low} to {high}")
    return value
