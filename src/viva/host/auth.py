"""Bearer tokens: each belongs to a tenant and has scopes. The host stores only digests of tokens."""

import hmac
import secrets
from collections.abc import Mapping
from hashlib import sha256
from typing import Literal

from msgspec import Struct

from viva.host.errors import forbidden, unauthenticated

Scope = Literal["runs:read", "runs:create", "runs:cancel", "annotations:write"]
READ_SCOPES: frozenset[Scope] = frozenset({"runs:read"})
ALL_SCOPES: frozenset[Scope] = frozenset({"runs:read", "runs:create", "runs:cancel", "annotations:write"})
LOCAL_TENANT = "local"
"""The tenant of a host without configured tenants."""


class Principal(Struct, frozen=True):
    """The owner of a token. `name` identifies the token within its tenant without revealing it."""

    tenant: str
    name: str
    scopes: frozenset[Scope] = ALL_SCOPES

    def require_scope(self, scope: Scope) -> None:
        if scope not in self.scopes:
            raise forbidden(f"This token lacks the scope {scope}", requiredScope=scope)


class TokenRegistry:
    """The tokens of a host."""

    def __init__(self) -> None:
        self._principals: dict[bytes, Principal] = {}

    def __len__(self) -> int:
        return len(self._principals)

    def add(self, token: str, tenant: str, scopes: frozenset[Scope] = ALL_SCOPES) -> None:
        number = 1 + sum(principal.tenant == tenant for principal in self._principals.values())
        self._principals[sha256(token.encode()).digest()] = Principal(tenant, f"{tenant}/{number}", scopes)

    def find_tenant(self, token: str) -> str | None:
        principal = self._principals.get(sha256(token.encode()).digest())
        return principal.tenant if principal else None

    def authenticate(self, headers: Mapping[str, str]) -> Principal:
        """Finds the principal of a request. Compares every token, so that timing reveals nothing."""
        scheme, _, token = headers.get("authorization", "").partition(" ")
        digest = sha256(token.strip().encode("utf-8", "surrogateescape")).digest()
        match: Principal | None = None
        for token_digest, principal in self._principals.items():
            if hmac.compare_digest(token_digest, digest):
                match = principal
        if scheme.lower() != "bearer" or match is None:
            raise unauthenticated()
        return match


def create_token() -> str:
    return f"viva-{secrets.token_urlsafe(24)}"
