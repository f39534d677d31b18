"""Ed25519 signatures of packs. They are looked at only where the config names keys that it trusts."""

import base64
import binascii
from pathlib import Path
from typing import Any

from msgspec import Struct

_RAW = "ed25519:"
_INSTALL = "Ed25519 needs the package `cryptography`: pip install 'viva-eval[openwop]'"


class Signed(Struct, frozen=True):
    """What was signed (in words, and the bytes), the signature, and the key that the signer sent along."""

    what: str
    content: bytes
    signature: bytes
    own_key: bytes | None = None


def signature_note(signed: Signed, trusted_keys: tuple[str, ...]) -> str:
    """What can be said of the signature. ValueError where it does not hold, or a trusted key cannot be used.

    A trusted key is a PEM file, or `ed25519:` and the raw key in base64. The key that comes with a pack is no proof of
    anything; it only tells a signer whom we do not trust from content that was changed.
    """
    if not trusted_keys:
        return "signature present, not verified: [openwop] trusted_keys names no key"
    keys = {name: _key(name) for name in trusted_keys}
    signature = _signature(signed.signature)
    for name, key in keys.items():
        if _holds(key, signature, signed.content):
            return f"signature verified ({Path(name).name if not name.startswith(_RAW) else name}): {signed.what}"
    if signed.own_key is not None and _holds_by(signed.own_key, signature, signed.content):
        return "signature present, not verified: it was made with a key that [openwop] trusted_keys does not name"
    raise ValueError(f"the signature does not hold: by no trusted key is it one of {signed.what}")


def _key(name: str) -> Any:
    try:
        return _public_key(name.removeprefix(_RAW).encode() if name.startswith(_RAW) else Path(name).read_bytes())
    except (OSError, ValueError) as wrong:
        raise ValueError(f"[openwop] trusted_keys: {name}: {wrong}") from wrong


def _public_key(written: bytes) -> Any:
    """PEM, or the 32 bytes themselves in base64."""
    try:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
        from cryptography.hazmat.primitives.serialization import load_pem_public_key
    except ImportError as missing:
        raise ValueError(_INSTALL) from missing
    if b"-----BEGIN" in written:
        try:
            key = load_pem_public_key(written)
        except UnsupportedAlgorithm as unknown:
            raise ValueError("is a key of a kind that is not known here") from unknown
        if not isinstance(key, Ed25519PublicKey):
            raise ValueError("is no Ed25519 public key")
        return key
    raw = _decoded(written)
    if len(raw) != 32:
        raise ValueError("is no Ed25519 public key: neither PEM nor 32 bytes in base64")
    return Ed25519PublicKey.from_public_bytes(raw)


def _signature(written: bytes) -> bytes:
    """The 64 bytes as they are, or in base64 or hexadecimal digits."""
    return written if len(written) == 64 else _decoded(written)


def _decoded(written: bytes) -> bytes:
    text = written.strip().removeprefix(_RAW.encode())
    for decode in (binascii.unhexlify, lambda data: base64.b64decode(data, validate=True)):
        try:
            return decode(text)
        except (binascii.Error, ValueError):
            continue
    return b""


def _holds_by(written: bytes, signature: bytes, content: bytes) -> bool:
    """The same with a key as it was sent along; one that is none proves nothing."""
    try:
        return _holds(_public_key(written), signature, content)
    except ValueError:
        return False


def _holds(key: Any, signature: bytes, content: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature

    try:
        key.verify(signature, content)
    except InvalidSignature:
        return False
    return True
