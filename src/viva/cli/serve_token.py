"""`viva serve token`: adds, lists and revokes the tokens of a host, also while it runs."""

import time
from datetime import UTC, datetime
from pathlib import Path

import click

from viva import config
from viva.cli.history import config_option
from viva.config import Settings
from viva.errors import BadInput
from viva.host.monitoring import STANDARD_ERROR, Monitor, load_operation_options
from viva.host.tokens import ALL_SCOPES, HOST_SCOPES, SCOPES, StoredToken, TokenFile, create_token
from viva.reporters.table import Column, format_table, get_output_width
from viva.text.duration import parse_age

EPILOG = """\b
Examples:
  viva serve token add acme                             all that tenant acme may do; the token is shown once
  viva serve token add acme --scope runs:read --expires 90d --note "dashboard"
  viva serve token add --scope admin                    run list, cancellation and deletion for all tenants
  viva serve token revoke tok-1f2e3d4c

\b
Scopes of a tenant: runs:read, runs:create, runs:cancel, annotations:write (all of them by default).
Scopes of the host: admin, metrics. A running host accepts and refuses tokens at once.
"""
_COLUMNS = (
    Column("id"),
    Column("tenant"),
    Column("scopes", is_flexible=True),
    Column("created"),
    Column("expires"),
    Column("note", is_flexible=True, is_text=True, is_optional=True),
)


@click.group("token", epilog=EPILOG)
def command() -> None:
    """Add, list and revoke tokens of a host."""


@command.command(epilog=EPILOG)
@click.argument("tenant", required=False)
@click.option("--scope", "scopes", multiple=True, metavar="SCOPE", help="What it may be used for. Repeatable.")
@click.option("--expires", metavar="TIME", help="For how long it is valid, for example 90d or 12h (default: forever).")
@click.option("--note", default="", metavar="TEXT", help="What it is for; `list` shows it.")
@config_option
def add(tenant: str | None, scopes: tuple[str, ...], expires: str | None, note: str, config_file: Path | None) -> int:
    """Create a token of TENANT and print it once. The host stores only its digest."""
    unknown = [scope for scope in scopes if scope not in SCOPES]
    if unknown:
        raise BadInput.of(f"--scope: there is no scope {unknown[0]!r}; there are {', '.join(SCOPES)}")
    of_host = [scope for scope in scopes if scope in HOST_SCOPES]
    if of_host and (tenant is not None or len(of_host) < len(set(scopes))):
        raise BadInput.of(f"--scope {of_host[0]} is for the whole host: give no tenant and no scope of a tenant")
    if tenant is None and not of_host:
        raise BadInput.of("No tenant given. Give a tenant, or --scope admin or --scope metrics")
    try:
        expires_at = None if expires is None else time.time() + parse_age(expires)
    except ValueError as error:
        raise BadInput.of(f"--expires: {error}") from error
    token = create_token()
    chosen = [scope for scope in SCOPES if scope in (scopes or ALL_SCOPES)]
    settings = config.load_settings(config_file, Path.cwd(), allow_unset=True)
    stored = _open_token_file(settings).add(token, tenant or "", chosen, expires_at, note)
    _write_audit_entry(settings, "add_token", stored)
    print(token)
    click.echo(f"{stored.id}: {_describe_owner(stored.tenant)}, {', '.join(chosen)}. It is shown only once.", err=True)
    return 0


@command.command("list")
@config_option
def list_tokens(config_file: Path | None) -> int:
    """List the tokens that were added, without their secrets. Those of viva.toml are not among them."""
    tokens = _open_token_file(config.load_settings(config_file, Path.cwd(), allow_unset=True)).load()
    if not tokens:
        click.echo("No tokens were added. `viva serve token add TENANT` adds one", err=True)
        return 0
    rows = [
        [token.id, token.tenant or "(host)", " ".join(token.scopes), token.created_at[:10], _describe_expiry(token.expires_at), token.note]
        for token in tokens
    ]  # fmt: skip
    for line in format_table(_COLUMNS, rows, get_output_width()):
        print(line)
    return 0


@command.command()
@click.argument("token_id")
@config_option
def revoke(token_id: str, config_file: Path | None) -> int:
    """Revoke the token with the id TOKEN_ID. A running host refuses it from then on."""
    settings = config.load_settings(config_file, Path.cwd(), allow_unset=True)
    stored = _open_token_file(settings).revoke(token_id)
    _write_audit_entry(settings, "revoke_token", stored)
    print(f"{stored.id} of {_describe_owner(stored.tenant)} is revoked")
    return 0


def _open_token_file(settings: Settings) -> TokenFile:
    return TokenFile(settings.data_folder / "host")


def _write_audit_entry(settings: Settings, action: str, stored: StoredToken) -> None:
    """Write an action to the audit log of the host, if the log is a file."""
    path = load_operation_options(settings).audit_log
    if path is not None and path != STANDARD_ERROR:
        monitor = Monitor(audit_log=path)
        monitor.audit(action, tenant=stored.tenant, token=stored.id)
        monitor.close()


def _describe_owner(tenant: str) -> str:
    return f"tenant {tenant}" if tenant else "the host"


def _describe_expiry(expires_at: float | None) -> str:
    if expires_at is None:
        return "never"
    if expires_at <= time.time():
        return "expired"
    return datetime.fromtimestamp(expires_at, UTC).isoformat(timespec="minutes").replace("+00:00", "Z")
