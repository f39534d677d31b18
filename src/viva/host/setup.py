"""The configuration of a host: loaded from viva.toml and the flags of `viva serve`, and checked."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct

from viva import config
from viva.config import Settings
from viva.errors import BadInput
from viva.host import conformance
from viva.host.connections import load_connection_limits
from viva.host.discovery import build_capabilities
from viva.host.host import HostSetup, ServeOptions
from viva.host.inventory import AgentRegistry, HostedSuite, SuiteRegistry, load_agents, load_hosted_suites, load_packs
from viva.host.monitoring import load_operation_options
from viva.host.runs import HostLimits
from viva.host.store import LEASE_S
from viva.host.tokens import (
    ALL_SCOPES,
    HOST_SCOPES,
    LOCAL_TENANT,
    NO_TENANT,
    READ_SCOPES,
    Scope,
    TokenFile,
    TokenRegistry,
    create_token,
)
from viva.host.workflows import list_fixtures, list_workflows
from viva.record.private_files import make_private_folder
from viva.session.agents import AgentFactory
from viva.text.addresses import is_loopback
from viva.text.credentials import find_url_credentials
from viva.text.duration import parse_duration

MIN_TOKEN_LENGTH = 16
MIN_FREE_MB = 50
_INVALID_URL_CHARACTERS = re.compile(r"[\s?#@\\\x00-\x1f\x7f]")
"""Characters that a public URL must not have: a query would hide the path, a password would be sent to every client."""


class ServeFlags(Struct, frozen=True):
    """The flags of `viva serve`; without a value the config decides."""

    bind_address: str | None = None
    port: int | None = None
    public_url: str | None = None
    conformance_routes: bool = False
    drain_s: float = 0.0
    keep_s: float | None = None


def load_setup(file: Path | None, folder: Path, flags: ServeFlags, generated_token: str | None = None) -> HostSetup:
    """Loads and checks the config, at the start or again. A generated token is kept. Raises BadInput."""
    settings = config.load_project(file, folder)
    serve = settings.serve
    bind_address = str(flags.bind_address or serve.get("host", "127.0.0.1"))
    port = int(serve.get("port", 8765)) if flags.port is None else flags.port
    tokens = _load_tokens(settings, settings.openwop.tenants)
    if tokens:
        generated_token = None
    else:
        if not is_loopback(bind_address):
            message = (
                f"{bind_address} is reachable from other machines: add a token with `viva serve token add TENANT` first"
            )
            raise settings.problem(message, "serve")
        generated_token = generated_token or create_token()
        settings.redactor.add_secrets([generated_token])
        tokens.add(generated_token, LOCAL_TENANT)
    agents, suites = _load_agents_and_suites(settings, conformance_routes=flags.conformance_routes)
    host_name = f"[{bind_address}]" if ":" in bind_address else bind_address
    url = str(flags.public_url or serve.get("public_url") or f"http://{host_name}:{port}")
    if not is_public_url(url):
        raise BadInput.of(f"The public URL {url!r} is invalid. Expected https://host/path")
    return HostSetup(
        settings=settings,
        options=ServeOptions(
            public_url=url.rstrip("/"),
            conformance=flags.conformance_routes,
            known_hosts=tuple(serve.get("hosts", ())),
            drain_s=flags.drain_s,
            lease_s=_load_lease(settings),
            min_free_bytes=int(serve.get("min_free_mb", MIN_FREE_MB)) * 1024 * 1024,
        ),
        limits=HostLimits(
            at_once=serve.get("at_once", 16),
            max_unfinished=serve.get("max_unfinished", 10_000),
            defaults=serve.get("tenant_limits", {}),
            by_tenant={name: tenant.get("limits", {}) for name, tenant in settings.openwop.tenants.items()},
        ),
        tokens=tokens,
        agents=agents,
        suites=suites,
        workflows=list_workflows(is_conformance=flags.conformance_routes),
        capabilities=build_capabilities(
            has_suites=bool(suites),
            has_judge=not AgentFactory(settings).find_agent_problems(settings.openwop.judge or "viva.validator"),
            fixtures=list_fixtures(is_conformance=flags.conformance_routes),
        ),
        bind_address=bind_address,
        port=port,
        connection_limits=load_connection_limits(settings),
        operations=load_operation_options(settings, port, flags.keep_s),
        store_url=_load_store_url(settings),
        reload=lambda: load_setup(file, folder, flags, generated_token),
        generated_token=generated_token,
    )


def _load_agents_and_suites(settings: Settings, *, conformance_routes: bool) -> tuple[AgentRegistry, SuiteRegistry]:
    shared: list[str] = list(settings.openwop.suites)
    by_tenant = {name: tenant.get("suites", ()) for name, tenant in settings.openwop.tenants.items()}
    suites: list[HostedSuite] = load_hosted_suites(shared, settings)
    for name, refs in by_tenant.items():
        suites += load_hosted_suites(refs, settings, name)
    agents = load_agents(
        settings, load_packs([*shared, *(ref for refs in by_tenant.values() for ref in refs)], settings)
    )
    make_private_folder(settings.data_folder)
    if conformance_routes:
        agents.append(conformance.ECHO_AGENT)
        suites.append(conformance.write_suite(settings.data_folder / "host"))
    if not agents:
        raise BadInput.of("No agent to serve. Add [agents.NAME] to viva.toml")
    return AgentRegistry(agents), SuiteRegistry(suites)


def is_public_url(url: str) -> bool:
    """Is the text an http(s) URL to which a path can be appended?"""
    try:
        parts = urlsplit(url)
        is_http = parts.scheme in ("http", "https") and parts.hostname and (parts.port is None or parts.port >= 0)
        return bool(is_http) and not _INVALID_URL_CHARACTERS.search(url)
    except ValueError:
        return False


def _load_tokens(settings: Settings, tenants: Mapping[str, Mapping[str, Any]]) -> TokenRegistry:
    """Loads the tokens of the config, and opens the file of those that `viva serve token` adds."""
    tokens = TokenRegistry(TokenFile(settings.data_folder / "host"))
    fields: tuple[tuple[str, frozenset[Scope]], ...] = (("tokens", ALL_SCOPES), ("read_tokens", READ_SCOPES))
    groups: list[tuple[str, frozenset[Scope], tuple[str, ...]]] = [
        (NO_TENANT, HOST_SCOPES, ("serve", "admin_tokens")),
        *((name, scopes, ("openwop", "tenants", name, field)) for name in tenants for field, scopes in fields),
    ]
    for name, scopes, place in groups:
        table = settings.serve if name == NO_TENANT else tenants[name]
        for value in table.get(place[-1], ()):
            token = settings.expand_variables(value, *place)
            if len(token) < MIN_TOKEN_LENGTH:
                raise settings.problem(f"a token must have at least {MIN_TOKEN_LENGTH} characters", *place)
            if tokens.find_tenant(token) is not None:
                raise settings.problem("duplicate token", *place)
            settings.redactor.add_secrets([token])
            tokens.add(token, name, scopes)
    return tokens


def _load_lease(settings: Settings) -> float:
    try:
        return parse_duration(settings.serve.get("lease", LEASE_S)) or LEASE_S
    except ValueError as error:
        raise settings.problem(str(error), "serve", "lease") from error


def _load_store_url(settings: Settings) -> str | None:
    if "store" not in settings.serve:
        return None
    url = settings.expand_variables(settings.serve["store"], "serve", "store")
    settings.redactor.add_secrets(find_url_credentials(url))
    if not url.startswith(("postgresql://", "postgres://")):
        raise settings.problem("the store must be a URL that starts with postgresql://", "serve", "store")
    return url
