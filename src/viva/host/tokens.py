"""Bearer tokens: each belongs to a tenant, has scopes, and may expire. The host stores only digests of tokens.

Tokens are in the config, and in a file that `viva serve token` changes. A running host reads the file when it changes.
"""

import fcntl
import hmac
import os
import re
import secrets
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Literal, get_args

from msgspec import Struct

from viva.errors import BadInput
from viva.host.errors import forbidden, unauthenticated
from viva.host.monitoring import log_line
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
        """Returns a value that changes when the file changes. None: there is no file."""
        try:
            status = self.path.stat()
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size

    def load(self) -> list[StoredToken]:
        """Loads the tokens. Raises BadInput for a damaged file."""
        try:
            return codec.decode_own(self.path.read_bytes(), type=list[StoredToken])
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
            raise BadInput.of(f"{tenant!r} is not a valid tenant name: use letters, digits, '-', '_' and '.'")
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
        """Locks the file: two commands at the same time must not lose a change."""
        make_private_folder(self._folder)
        lock = open_private(self._folder / "tokens.lock", os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)


Scope = Literal["runs:read", "runs:create", "runs:cancel", "annotations:write", "metrics", "admin"]
SCOPES: tuple[Scope, ...] = get_args(Scope)
HOST_SCOPES: frozenset[Scope] = frozenset({"metrics", "admin"})
"""Scopes for the whole host. Tokens with them belong to no tenant."""
READ_SCOPES: frozenset[Scope] = frozenset({"runs:read"})
ALL_SCOPES: frozenset[Scope] = frozenset(SCOPES) - HOST_SCOPES
LOCAL_TENANT = "local"
"""The tenant of a host without configured tenants."""
NO_TENANT = ""
"""The tenant name of tokens for the whole host."""


class Principal(Struct, frozen=True):
    """The owner of a token. `name` identifies the token within its tenant without revealing it."""

    tenant: str
    name: str
    scopes: frozenset[Scope] = ALL_SCOPES
    expires_at: float | None = None

    def require_scope(self, scope: Scope) -> None:
        if scope not in self.scopes:
            raise forbidden(f"This token lacks the scope {scope}", requiredScope=scope)


class TokenRegistry:
    """The tokens of a host: those of the config, and those of a file that may change at any time."""

    def __init__(self, file: TokenFile | None = None, clock: Callable[[], float] = time.time) -> None:
        self._principals: dict[bytes, Principal] = {}
        self._file = file
        self._file_version: object = None
        self._file_principals: dict[bytes, Principal] = {}
        self._clock = clock

    def __len__(self) -> int:
        self._reload_file()
        return len(self._principals) + len(self._file_principals)

    def add(self, token: str, tenant: str, scopes: frozenset[Scope] = ALL_SCOPES) -> None:
        number = 1 + sum(principal.tenant == tenant for principal in self._principals.values())
        self._principals[sha256(token.encode()).digest()] = Principal(tenant, f"{tenant or 'host'}/{number}", scopes)

    def find_tenant(self, token: str) -> str | None:
        principal = self._principals.get(sha256(token.encode()).digest())
        return principal.tenant if principal else None

    def authenticate(self, headers: Mapping[str, str]) -> Principal:
        """Finds the principal of a request. Compares every token, so that timing reveals nothing."""
        self._reload_file()
        scheme, _, token = headers.get("authorization", "").partition(" ")
        digest = sha256(token.strip().encode("utf-8", "surrogateescape")).digest()
        match: Principal | None = None
        for principals in (self._principals, self._file_principals):
            for token_digest, principal in principals.items():
                if hmac.compare_digest(token_digest, digest):
                    match = principal
        if scheme.lower() != "bearer" or match is None:
            raise unauthenticated()
        if match.expires_at is not None and match.expires_at <= self._clock():
            raise unauthenticated()
        return match

    def _reload_file(self) -> None:
        """Reads the file again if it has changed, so that a revoked token is refused at once."""
        if self._file is None or (version := self._file.find_version()) == self._file_version:
            return
        self._file_version = version
        self._file_principals = {}
        try:
            tokens = self._file.load()
        except BadInput as error:  # without the file it is unknown which tokens were revoked
            log_line(f"The tokens of this file are refused: {error}")
            return
        for token in tokens:
            scopes: frozenset[Scope] = frozenset(scope for scope in SCOPES if scope in token.scopes)
            name = f"{token.tenant or 'host'}/{token.id}"
            self._file_principals[bytes.fromhex(token.digest)] = Principal(token.tenant, name, scopes, token.expires_at)


def create_token() -> str:
    return f"viva-{secrets.token_urlsafe(24)}"
