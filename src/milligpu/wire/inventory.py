"""A node's GPUs as a node annotation: `milligpu.dev/inventory`."""

from collections.abc import Iterable

import msgspec

from milligpu.model.errors import BadFormat, BadRequest
from milligpu.model.gpu import Gpu, Mode, State, parse_capability, parse_link, parse_uuid
from milligpu.model.qos import Policy
from milligpu.model.units import GPUS_MAX, MIB_MAX, WHOLE, Mib, Milli, parse_whole
from milligpu.wire.json import VERSION, Document, Part, decode, encode, refused

_NAME = "inventory"
# A sentence for people; a whole log does not belong into an annotation.
_REASON_MAX = 200
_MODEL_MAX = 96
_NUMA_MAX = 255


class _Gpu(Part, frozen=True):
    uuid: str
    model: str
    mib: int
    cc: str
    milli: int = WHOLE
    reserved: int = 0
    numa: int = 0
    ecc: bool = False
    links: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    policy: Policy = Policy.FIXED
    mode: Mode = Mode.SHARE
    state: State = State.OK
    reason: str = ""


class _Inventory(Document, frozen=True):
    gpus: list[_Gpu]


def encode_inventory(gpus: Iterable[Gpu]) -> str:
    """Write the annotation's value."""
    return encode(
        _Inventory(
            v=VERSION,
            gpus=[
                _Gpu(
                    uuid=gpu.uuid,
                    model=gpu.model,
                    mib=gpu.mib,
                    milli=gpu.milli,
                    reserved=gpu.reserved,
                    numa=gpu.numa,
                    cc=str(gpu.capability),
                    ecc=gpu.ecc,
                    links={uuid: str(link) for uuid, link in gpu.links.items()},
                    policy=gpu.policy,
                    mode=gpu.mode,
                    state=gpu.state,
                    reason=gpu.reason[:_REASON_MAX],
                )
                for gpu in gpus
            ],
        )
    )


def decode_inventory(text: str | bytes) -> tuple[Gpu, ...]:
    """Read the annotation's value; a node whose inventory does not read has no GPUs to give."""
    raw = decode(_NAME, text, _Inventory)
    if len(raw.gpus) > GPUS_MAX:
        raise BadFormat(_NAME, f"{len(raw.gpus)} GPUs, want at most {GPUS_MAX}")
    try:
        gpus = tuple(map(_gpu, raw.gpus))
    except BadRequest as error:
        raise refused(_NAME, error) from None
    if len({gpu.uuid for gpu in gpus}) != len(gpus):
        raise BadFormat(_NAME, "a uuid appears twice")
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
        numa=parse_whole("numa", raw.numa, 0, _NUMA_MAX),
        capability=parse_capability("cc", raw.cc),
        ecc=raw.ecc,
        links={parse_uuid("links", uuid): parse_link("links", link) for uuid, link in raw.links.items()},
        policy=raw.policy,
        mode=raw.mode,
        state=raw.state,
        reason=raw.reason,
    )
