"""A node's GPUs as a node annotation: `milligpu.dev/inventory`."""

from collections.abc import Iterable

import msgspec

from milligpu.model.errors import BadFormat, BadRequest
from milligpu.model.gpu import Gpu, GpuState, SharingMode, parse_capability, parse_link, parse_uuid
from milligpu.model.policy import SharePolicy
from milligpu.model.units import GPUS_MAX, MIB_MAX, WHOLE, Mib, Milli, parse_whole
from milligpu.wire.documents import Document, DocumentFormat, DocumentPart, encode

INVENTORY = DocumentFormat("inventory", version=3)
# Version 1 said `sick` and `reason`. An inventory that needs neither is written as version 1, which 0.1.0 reads.
_OLD = 1
# Only version 3 has limits.
_NO_LIMITS = 2
_SICK = "sick"
_STATES = (GpuState.OK, GpuState.CORDONED, GpuState.UNHEALTHY)
# One sentence; an annotation is no place for a log.
_MESSAGE_MAX = 200
_MODEL_MAX = 96
_NUMA_MAX = 255


class _Gpu(DocumentPart, frozen=True):
    uuid: str
    model: str
    mib: int
    cc: str
    milli: int = WHOLE
    reserved: int = 0
    limit: int = WHOLE
    numa: int = 0
    ecc: bool = False
    links: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    policy: SharePolicy = SharePolicy.FIXED
    mode: SharingMode = SharingMode.SHARE
    state: str = GpuState.OK
    reason: str = ""
    """The message in version 1."""
    message: str = ""


class _Inventory(Document, frozen=True):
    gpus: list[_Gpu]


def encode_inventory(gpus: Iterable[Gpu]) -> str:
    """Write the annotation's value, in the oldest version that can say it."""
    gpus = tuple(gpus)
    old = all(gpu.state is not GpuState.UNHEALTHY and not gpu.message for gpu in gpus)
    version = _OLD if old else _NO_LIMITS
    if any(gpu.limit != WHOLE for gpu in gpus):
        version = INVENTORY.version
    return encode(
        _Inventory(
            v=version,
            gpus=[
                _Gpu(
                    uuid=gpu.uuid,
                    model=gpu.model,
                    mib=gpu.mib,
                    milli=gpu.milli,
                    reserved=gpu.reserved,
                    limit=gpu.limit,
                    numa=gpu.numa,
                    cc=str(gpu.capability),
                    ecc=gpu.ecc,
                    links={uuid: str(link) for uuid, link in gpu.links.items()},
                    policy=gpu.policy,
                    mode=gpu.mode,
                    state=gpu.state,
                    message=gpu.message[:_MESSAGE_MAX],
                )
                for gpu in gpus
            ],
        )
    )


def decode_inventory(text: str | bytes) -> tuple[Gpu, ...]:
    """Read the annotation's value; a node with an invalid inventory has no GPUs."""
    raw = INVENTORY.decode(text, _Inventory)
    if len(raw.gpus) > GPUS_MAX:
        raise BadFormat(INVENTORY.name, f"{len(raw.gpus)} GPUs, must be at most {GPUS_MAX}")
    try:
        gpus = tuple(map(_gpu, raw.gpus))
    except BadRequest as error:
        raise INVENTORY.refuse(error) from None
    if len({gpu.uuid for gpu in gpus}) != len(gpus):
        raise BadFormat(INVENTORY.name, "a uuid appears twice")
    return gpus


def _gpu(raw: _Gpu) -> Gpu:
    milli = parse_whole("milli", raw.milli, 1, WHOLE)
    if not 1 <= len(raw.model) <= _MODEL_MAX:
        raise BadRequest("model", raw.model, f"1 to {_MODEL_MAX} characters")
    return Gpu(
        uuid=parse_uuid("uuid", raw.uuid),
        model=raw.model,
        mib=Mib(parse_whole("mib", raw.mib, 1, MIB_MAX)),
        milli=Milli(milli),
        reserved=Milli(parse_whole("reserved", raw.reserved, 0, milli)),
        limit=Milli(parse_whole("limit", raw.limit, 1, WHOLE)),
        numa=parse_whole("numa", raw.numa, 0, _NUMA_MAX),
        capability=parse_capability("cc", raw.cc),
        ecc=raw.ecc,
        links={parse_uuid("links", uuid): parse_link("links", link) for uuid, link in raw.links.items()},
        policy=raw.policy,
        mode=raw.mode,
        state=_state(raw.state),
        message=raw.message or raw.reason,
    )


def _state(text: str) -> GpuState:
    states = {str(state): state for state in _STATES} | {_SICK: GpuState.UNHEALTHY}
    if text not in states:
        raise BadRequest("state", text, " or ".join(_STATES))
    return states[text]
