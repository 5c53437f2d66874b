"""What the JSON documents have in common: a version each, strict reading, errors that name document and place.

A document that is newer than its reader raises `NewerDocument`, which is not the same as one that is broken: the
reader keeps it, and counts whatever it may hold as held.
"""

import re
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from milligpu.model.errors import BadFormat, BadRequest, NewerDocument

# Kubernetes allows 256 KiB for all annotations of an object together.
DOCUMENT_MAX = 200 * 1024

_T = TypeVar("_T", bound=msgspec.Struct)


class Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The root of a document: `v` is required and comes first."""

    v: int


class DocumentPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A piece of a document."""


@dataclass(frozen=True, slots=True)
class DocumentFormat:
    """One kind of document. A field is never added without another version: older readers refuse unknown fields."""

    name: str
    version: int = 1
    """The version that is written, and the newest that can be read."""
    oldest: int = 1
    """The oldest version that can be read: one release back at least."""

    def check(self, version: int) -> None:
        """Refuse a version outside the readable range."""
        if version > self.version:
            raise NewerDocument(self.name, version, self.version)
        if version < self.oldest:
            raise BadFormat(
                self.name, f"version {version} is older than version {self.oldest}, the oldest readable"
            )

    def decode(self, text: str | bytes, kind: type[_T]) -> _T:
        """Read a document, or refuse it whole."""
        if len(text) > DOCUMENT_MAX:
            raise BadFormat(self.name, f"{len(text)} bytes, must be at most {DOCUMENT_MAX}")
        try:
            self.check(msgspec.json.decode(text, type=_Versioned).v)
            return msgspec.json.decode(text, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadFormat(self.name, str(error)) from None

    def refuse(self, error: BadRequest) -> BadFormat:
        """A value that the vocabulary refuses, reported as a fault of the document."""
        return BadFormat(self.name, error.message)


class _Versioned(msgspec.Struct):
    v: int


def encode(document: Document) -> str:
    """Write compact JSON; the same value always gives the same text."""
    return msgspec.json.encode(document).decode()


# The quotes of a document inside a document are escaped.
_UUID = re.compile(r'"((?:GPU|MIG)-[0-9A-Za-z-]+)\\*"')


def named_gpus(text: str | bytes) -> tuple[str, ...]:
    """Every GPU UUID in a JSON document whose format is unknown; none where it is not even JSON."""
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ()
    words = text if isinstance(text, str) else text.decode()
    return tuple(dict.fromkeys(_UUID.findall(words)))
