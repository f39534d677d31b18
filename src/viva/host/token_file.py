"""The file with the tokens that `viva serve token` adds and revokes. It has digests only; a running host follows it."""

import fcntl
import os
import re
import secrets
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

from msgspec import Struct

from viva.errors import BadInput
from viva.model import codec
from viva.record.atomic_files import replace_file
from viva.record.private_files import make_private_folder, open_private

_ID_BYTES = 4
TENANT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


class StoredToken(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A token without its secret. `tenant` is empty for tokens of the whole host."""

    id: str
    tenant: str
    digest: str
    scopes: tuple[str, ...]
    created_at: str
    expires_at: float | None = None
    note: str = ""


class TokenFile:
    """`.viva/host/tokens.json`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.path = folder / "tokens.json"

    def find_version(self) -> object:
        """Changes with the content. None: there is no file."""
        try:
            status = self.path.stat()
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size

    def load(self) -> list[StoredToken]:
        """Raises BadInput for a file that was damaged: a host without it would refuse or accept the wrong ones."""
        try:
            return codec.decode_kept(self.path.read_bytes(), type=list[StoredToken])
        except FileNotFoundError:
            return []
        except OSError as error:
            raise BadInput.of(f"cannot be read: {error.strerror}", str(self.path)) from error
        except codec.DecodeError as error:
            raise BadInput.of(f"is damaged: {error}", str(self.path)) from error

    def add(
        self, token: str, tenant: str, scopes: Sequence[str], expires_at: float | None = None, note: str = ""
    ) -> StoredToken:
        if tenant and not TENANT_NAME.fullmatch(tenant):
            raise BadInput.of(f"{tenant!r} is no name of a tenant: use letters, digits, '-', '_' and '.'")
        stored = StoredToken(
            id=f"tok-{secrets.token_hex(_ID_BYTES)}",
            tenant=tenant,
            digest=sha256(token.encode()).hexdigest(),
            scopes=tuple(scopes),
            created_at=datetime.now(UTC).isoformat(timespec="seconds"),
            expires_at=expires_at,
            note=note,
        )
        with self._locked():
            self._save([*self.load(), stored])
        return stored

    def revoke(self, name: str) -> StoredToken:
        """Removes a token by its id. Raises BadInput if there is none."""
        with self._locked():
            tokens = self.load()
            match = next((token for token in tokens if token.id == name), None)
            if match is None:
                raise BadInput.of(f"there is no token {name!r}; `viva serve token list` shows all")
            self._save([token for token in tokens if token is not match])
        return match

    def _save(self, tokens: list[StoredToken]) -> None:
        replace_file(self.path, codec.encode(tokens), durable=True, private=True)

    @contextmanager
    def _locked(self) -> Generator[None]:
        """Two commands at once lose nothing."""
        make_private_folder(self._folder)
        lock = open_private(self._folder / "tokens.lock", os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)
