"""What the JSON formats have in common: strict reading, and errors that name the document and the place."""

from typing import Final, TypeVar

import msgspec

from milligpu.model.errors import BadFormat, BadRequest

VERSION: Final = 1
# Kubernetes allows 256 KiB for all annotations of an object together.
DOCUMENT_MAX = 200 * 1024

_T = TypeVar("_T", bound=msgspec.Struct)


class Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The root of a format: `v` is required and comes first."""

    v: int


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A piece of a document."""


def encode(document: Document) -> str:
    """Write compact JSON; the same value always gives the same text."""
    return msgspec.json.encode(document).decode()


def decode(name: str, text: str | bytes, kind: type[_T]) -> _T:
    """Read a document of version 1 or refuse it whole."""
    if len(text) > DOCUMENT_MAX:
        raise BadFormat(name, f"{len(text)} bytes, want at most {DOCUMENT_MAX}")
    try:
        version = msgspec.json.decode(text, type=_Versioned).v
        if version != VERSION:
            raise BadFormat(name, f"v={version}: want {VERSION}", hint="a newer milligpu wrote it: upgrade")
        return msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadFormat(name, str(error)) from None


class _Versioned(msgspec.Struct):
    v: int


def refused(name: str, error: BadRequest) -> BadFormat:
    """A value that the vocabulary refuses, reported as a fault of the document."""
    return BadFormat(name, error.message)
