"""Who asks: a bearer token belongs to a tenant, and may do this or that. Tokens are known here by their digests only."""

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
"""The tenant of a host whose config names none."""


class Principal(Struct, frozen=True):
    """Somebody with a token. `name` tells one token of a tenant from another, and nothing about the token."""

    tenant: str
    name: str
    scopes: frozenset[Scope] = ALL_SCOPES

    def require_scope(self, scope: Scope) -> None:
        if scope not in self.scopes:
            raise forbidden(f"this key lacks the scope {scope}", requiredScope=scope)


class TokenRegistry:
    """All tokens of a host."""

    def __init__(self) -> None:
        self._known: dict[bytes, Principal] = {}

    def __len__(self) -> int:
        return len(self._known)

    def add(self, token: str, tenant: str, scopes: frozenset[Scope] = ALL_SCOPES) -> None:
        number = 1 + sum(known.tenant == tenant for known in self._known.values())
        self._known[sha256(token.encode()).digest()] = Principal(tenant, f"{tenant}/{number}", scopes)

    def find_tenant(self, token: str) -> str | None:
        """The tenant that has this token, if one has."""
        known = self._known.get(sha256(token.encode()).digest())
        return known.tenant if known else None

    def authenticate(self, headers: Mapping[str, str]) -> Principal:
        """Whoever the request comes from. Every token is compared, so that the time it takes tells nothing."""
        kind, _, token = headers.get("authorization", "").partition(" ")
        digest = sha256(token.strip().encode("utf-8", "surrogateescape")).digest()
        found: Principal | None = None
        for known, principal in self._known.items():
            if hmac.compare_digest(known, digest):
                found = principal
        if kind.lower() != "bearer" or found is None:
            raise unauthenticated()
        return found


def create_token() -> str:
    return f"viva-{secrets.token_urlsafe(24)}"
