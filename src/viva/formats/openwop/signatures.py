"""Ed25519 signatures of packs: verification with `trusted_keys`, signing with `viva pack sign`."""

import base64
import binascii
import re
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import Any

from msgspec import Struct

_RAW_KEY_PREFIX = "ed25519:"
_DIGEST_LINE = re.compile(r"([0-9a-fA-F]{64}) [ *](\S.*)")
_INSTALL_MESSAGE = "Ed25519 needs the package `cryptography`: pip install 'viva-eval[openwop]'"


class SignedContent(Struct, frozen=True):
    """Signed bytes with their name, the signature, and the public key that came with it."""

    description: str
    content: bytes
    signature: bytes
    embedded_key: bytes | None = None


def verify_signature(signed: SignedContent, trusted_keys: tuple[str, ...]) -> str:
    """The name of the trusted key that made the signature. ValueError if none did, or if a trusted key cannot be used.

    A trusted key is a PEM file, or `ed25519:` and the raw key in base64. The key that comes with a pack is not trusted;
    it only helps the message to distinguish an unknown signer from changed content.
    """
    keys = {name: _load_trusted_key(name) for name in trusted_keys}
    signature = _parse_signature(signed.signature)
    for name, key in keys.items():
        if _is_valid(key, signature, signed.content):
            return name if name.startswith(_RAW_KEY_PREFIX) else Path(name).name
    if signed.embedded_key is not None and _is_signed_by(signed.embedded_key, signature, signed.content):
        raise ValueError(f"{signed.description} is signed with a key that [openwop] trusted_keys does not name")
    raise ValueError(f"the signature of {signed.description} matches no key of [openwop] trusted_keys")


def parse_digests(raw: bytes) -> dict[str, str]:
    """Parse a list as written by `sha256sum`: file name to SHA-256 digest. ValueError names the wrong line."""
    digests: dict[str, str] = {}
    seen: set[str] = set()
    try:
        lines = raw.decode().splitlines()
    except UnicodeDecodeError:
        raise ValueError("is not UTF-8") from None
    for number, line in enumerate(lines, 1):
        fits = _DIGEST_LINE.fullmatch(line)
        if fits is None or str(PurePosixPath(fits[2])) != fits[2]:
            raise ValueError(f"line {number} is not a SHA-256 digest in hexadecimal digits, two spaces and a path")
        if fits[2].casefold() in seen:
            raise ValueError(f"line {number}: {fits[2]!r} is listed twice, or differs from another path only in case")
        seen.add(fits[2].casefold())
        digests[fits[2]] = fits[1].lower()
    return digests


def format_digests(files: Mapping[str, bytes]) -> bytes:
    """The list in the format that `parse_digests` reads."""
    return "".join(f"{sha256(files[name]).hexdigest()}  {name}\n" for name in sorted(files)).encode()


class Signer:
    """An Ed25519 private key from a PEM file. ValueError says why it cannot be used."""

    def __init__(self, file: Path) -> None:
        try:
            from cryptography.exceptions import UnsupportedAlgorithm
            from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
            from cryptography.hazmat.primitives.serialization import load_pem_private_key
        except ImportError as missing:
            raise ValueError(_INSTALL_MESSAGE) from missing
        try:
            key = load_pem_private_key(file.read_bytes(), None)
        except OSError as error:
            raise ValueError(f"cannot be read: {error.strerror}") from error
        except TypeError as error:
            raise ValueError("is encrypted; give a key without a password") from error
        except (ValueError, UnsupportedAlgorithm) as error:
            raise ValueError("is not a private key in PEM format") from error
        if not isinstance(key, Ed25519PrivateKey):
            raise ValueError("is not an Ed25519 private key; `openssl genpkey -algorithm ed25519` makes one")
        self._key = key

    def sign(self, content: bytes) -> bytes:
        """The signature in base64, one line."""
        return base64.b64encode(self._key.sign(content)) + b"\n"

    @property
    def public_key(self) -> str:
        """The public key in the form of `trusted_keys`."""
        return _RAW_KEY_PREFIX + base64.b64encode(self._key.public_key().public_bytes_raw()).decode()


def _load_trusted_key(name: str) -> Any:
    try:
        return _parse_public_key(
            name.removeprefix(_RAW_KEY_PREFIX).encode() if name.startswith(_RAW_KEY_PREFIX) else Path(name).read_bytes()
        )
    except (OSError, ValueError) as error:
        raise ValueError(f"[openwop] trusted_keys: {name}: {error}") from error


def _parse_public_key(encoded: bytes) -> Any:
    """A key in PEM format, or its 32 bytes in base64."""
    try:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
        from cryptography.hazmat.primitives.serialization import load_pem_public_key
    except ImportError as missing:
        raise ValueError(_INSTALL_MESSAGE) from missing
    if b"-----BEGIN" in encoded:
        try:
            key = load_pem_public_key(encoded)
        except UnsupportedAlgorithm as unknown:
            raise ValueError("is a key of an unknown type; use an Ed25519 key") from unknown
        if not isinstance(key, Ed25519PublicKey):
            raise ValueError("is not an Ed25519 public key")
        return key
    raw = _decode_hex_or_base64(encoded)
    if len(raw) != 32:
        raise ValueError("is not an Ed25519 public key: neither PEM nor 32 bytes in base64")
    return Ed25519PublicKey.from_public_bytes(raw)


def _parse_signature(encoded: bytes) -> bytes:
    """The 64 bytes of a signature, given as raw bytes, base64 or hexadecimal digits."""
    return encoded if len(encoded) == 64 else _decode_hex_or_base64(encoded)


def _decode_hex_or_base64(encoded: bytes) -> bytes:
    text = encoded.strip().removeprefix(_RAW_KEY_PREFIX.encode())
    for decode in (binascii.unhexlify, lambda data: base64.b64decode(data, validate=True)):
        try:
            return decode(text)
        except (binascii.Error, ValueError):
            continue
    return b""


def _is_signed_by(encoded: bytes, signature: bytes, content: bytes) -> bool:
    """Did the key that came with the pack make the signature? False if the key is invalid."""
    try:
        return _is_valid(_parse_public_key(encoded), signature, content)
    except ValueError:
        return False


def _is_valid(key: Any, signature: bytes, content: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature

    try:
        key.verify(signature, content)
    except InvalidSignature:
        return False
    return True
