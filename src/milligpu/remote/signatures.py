"""Documents that a pool's authority signs: the body and its signature as one line of text.

What is signed begins with a purpose, so that a signature for one kind of document is never taken for another's.
"""

import base64
import binascii

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec


class SignatureRefused(Exception):
    """The text is no document with a valid signature."""

    def __init__(self, *, is_foreign: bool) -> None:
        """`is_foreign`: it is signed, but not by this authority."""
        super().__init__()
        self.is_foreign = is_foreign


def sign(purpose: bytes, body: bytes, key: ec.EllipticCurvePrivateKey) -> str:
    signature = key.sign(purpose + body, ec.ECDSA(hashes.SHA256()))
    return f"{_to_text(body)}.{_to_text(signature)}"


def verify(purpose: bytes, text: str, key: ec.EllipticCurvePublicKey, length_max: int) -> bytes:
    """Return the body of a document that this authority signed for this purpose."""
    body_text, _, signature_text = text[:length_max].partition(".")
    try:
        body, signature = _from_text(body_text), _from_text(signature_text)
    except (ValueError, binascii.Error):
        raise SignatureRefused(is_foreign=False) from None
    try:
        key.verify(signature, purpose + body, ec.ECDSA(hashes.SHA256()))
    except InvalidSignature:
        raise SignatureRefused(is_foreign=True) from None
    return body


def _to_text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _from_text(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
