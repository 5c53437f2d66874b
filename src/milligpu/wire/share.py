"""The share document: an amount of GPU as annotations, session records and requests write it.

Annotations hold one per container: `{"main": {"gpus": 2, "milli": 300, "mib": 3000}}`. A number under the key `v`
is the version of the whole; without it the version is 1. A container that is called `v` has a document there.
"""

from collections.abc import Mapping

import msgspec

from milligpu.model.errors import BadFormat
from milligpu.model.request import ShareRequest
from milligpu.model.units import Mib, Milli
from milligpu.wire.documents import DocumentFormat, DocumentPart

# One document per container of a pod; a pod has a handful of them.
_TEXT_MAX = 64 * 1024
_VERSION = "v"


class ShareDocument(DocumentPart, frozen=True):
    """An amount of each of `gpus` GPUs; what is left out follows from the rest, or stays as it is in a change."""

    gpus: int = 1
    milli: int | None = None
    mib: int | None = None
    card: int | None = None
    """Memory in thousandths of the GPU's."""
    limit: int | None = None

    @classmethod
    def of(cls, share: ShareRequest) -> "ShareDocument":
        """A request as a document."""
        return cls(share.count, share.milli, share.mib, share.card_memory, share.limit)

    def request(self) -> ShareRequest:
        """The document as a request; a value out of range raises `BadRequest`."""
        return ShareRequest(
            count=self.gpus,
            milli=None if self.milli is None else Milli(self.milli),
            mib=None if self.mib is None else Mib(self.mib),
            card_memory=None if self.card is None else Milli(self.card),
            limit=None if self.limit is None else Milli(self.limit),
        )


_DECODER = msgspec.json.Decoder(dict[str, ShareDocument | int])


def decode_shares(kind: DocumentFormat, text: str) -> dict[str, ShareDocument]:
    """Read an annotation with one document per container."""
    if len(text) > _TEXT_MAX:
        raise BadFormat(kind.name, f"{len(text)} characters, must be at most {_TEXT_MAX}")
    try:
        found = _DECODER.decode(text)
    except msgspec.MsgspecError as error:
        version = _version(text)
        if version is not None:
            kind.check(version)  # a newer document, not a broken one
        raise BadFormat(kind.name, str(error)) from None
    version = found.get(_VERSION)
    if isinstance(version, int):
        kind.check(version)
    shares = {name: share for name, share in found.items() if isinstance(share, ShareDocument)}
    for name in found.keys() - shares.keys() - {_VERSION}:
        raise BadFormat(kind.name, f"{name}: must be an object, not a number")
    return shares


def _version(text: str) -> int | None:
    try:
        return msgspec.json.decode(text, type=_Versioned).v
    except msgspec.MsgspecError:
        return None


class _Versioned(msgspec.Struct):
    v: int | None = None


def encode_shares(shares: Mapping[str, ShareDocument]) -> str:
    """Write an annotation of version 1, which needs no number."""
    return msgspec.json.encode(dict(shares), order="sorted").decode()
