"""Tokens in a file: digests only, scopes, an end, and changes while a host runs."""

from pathlib import Path

import pytest

from viva.errors import BadInput
from viva.host.errors import ApiError
from viva.host.tokens import ALL_SCOPES, Principal, TokenFile, TokenRegistry

TOKEN = "viva-a-token-for-tests-0123456789"


def authenticate(registry: TokenRegistry, token: str = TOKEN) -> Principal:
    return registry.authenticate({"authorization": f"Bearer {token}"})


def test_a_token_is_accepted_and_refused_without_a_new_registry(tmp_path: Path):
    file = TokenFile(tmp_path)
    registry = TokenRegistry(TokenFile(tmp_path))
    with pytest.raises(ApiError):
        authenticate(registry)
    stored = file.add(TOKEN, "acme", sorted(ALL_SCOPES))
    assert authenticate(registry) == Principal("acme", f"acme/{stored.id}", ALL_SCOPES)
    assert len(registry) == 1
    file.revoke(stored.id)
    with pytest.raises(ApiError) as error:
        authenticate(registry)
    assert error.value.status == 401


def test_the_file_has_no_token_and_is_private(tmp_path: Path):
    TokenFile(tmp_path).add(TOKEN, "acme", ["runs:read"])
    path = tmp_path / "tokens.json"
    assert TOKEN not in path.read_text()
    assert path.stat().st_mode & 0o077 == 0


def test_a_token_ends_at_its_time(tmp_path: Path):
    now = 1000.0
    file = TokenFile(tmp_path)
    file.add(TOKEN, "acme", ["runs:read"], expires_at=1010.0)
    registry = TokenRegistry(file, clock=lambda: now)
    assert authenticate(registry).tenant == "acme"
    now = 1010.0
    with pytest.raises(ApiError):
        authenticate(registry)


def test_a_damaged_file_accepts_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = TokenFile(tmp_path)
    registry = TokenRegistry(file)
    file.add(TOKEN, "acme", ["runs:read"])
    file.path.write_text("[{")
    with pytest.raises(ApiError):
        authenticate(registry)
    assert "damaged" in capsys.readouterr().err
    with pytest.raises(BadInput):
        file.revoke("tok-1")
