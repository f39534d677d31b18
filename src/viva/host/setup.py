"""From viva.toml to a host that can be served: its keys, agents and suites, and what it refuses to do without."""

import re
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct

from viva import catalog, config
from viva.config import Settings
from viva.errors import BadInput
from viva.host import conformance, evals, invocations
from viva.host.agents import AgentRegistry, load_agents
from viva.host.auth import LOCAL_TENANT, READ_SCOPES, TokenRegistry, create_token
from viva.host.host import Host, ServeOptions
from viva.host.store import Store
from viva.host.suites import HostedSuite, SuiteRegistry, load_hosted_suites, load_packs
from viva.record.private_files import make_private_folder
from viva.session.agents import AgentFactory

_UNFIT = re.compile(r"[\s?#@\\\x00-\x1f\x7f]")
"""In an address: a query or fragment would swallow the path, a password would be told to everybody."""


class HostSetup(Struct, kw_only=True):
    """What was asked for on the command line, and what came of it: everything that can be wrong was looked at."""

    settings: Settings
    options: ServeOptions
    tokens: TokenRegistry
    agents: AgentRegistry
    suites: SuiteRegistry
    has_judge: bool
    bind_address: str
    port: int
    store: Store | None = None
    """Already opened, where it has to be known beforehand that nobody else has it."""
    generated_token: str | None = None
    """A token that was made because none is configured. It is shown once."""

    def open_host(self) -> Host:
        """Opens it, on the loop that serves it."""
        store = self.store or Store(self.settings.data_folder / "host")
        host = Host(self.settings, self.options, store, self.tokens, self.agents, self.suites, has_judge=self.has_judge)
        host.runs.run_functions["invocation"] = lambda run, log: invocations.run_invocation(host, run, log)
        host.runs.run_functions["eval"] = lambda run, log: evals.run_eval(host, run, log)
        return host


def load_setup(
    file: Path | None,
    folder: Path,
    *,
    bind_address: str | None,
    port: int | None,
    public_url: str | None,
    conformance_routes: bool,
) -> HostSetup:
    """Reads and checks the config. Raises BadInput."""
    settings = config.load_settings(file, folder)
    catalog.load_plugins(settings.plugins, settings.folder)
    serve, openwop = settings.serve, settings.openwop
    bind_address = str(bind_address or serve.get("host", "127.0.0.1"))
    port = int(serve.get("port", 8765)) if port is None else port
    tenants = openwop.tenants
    keys = _keys(settings, tenants)
    token = None
    if not keys:
        if not is_loopback(bind_address):
            raise settings.problem(
                f"{bind_address} is open to others: give [openwop.tenants.NAME] tokens first", "serve"
            )
        token = create_token()
        settings.redactor.add_secrets([token])
        keys.add(token, LOCAL_TENANT)
    found: list[HostedSuite] = load_hosted_suites(openwop.suites, settings)
    for name, tenant in tenants.items():
        found += load_hosted_suites(tenant.get("suites", ()), settings, name)
    paths = [*openwop.suites, *(ref for tenant in tenants.values() for ref in tenant.get("suites", ()))]
    agents = load_agents(settings, load_packs(paths, settings))
    make_private_folder(settings.data_folder)
    if conformance_routes:
        agents.append(conformance.ECHO_AGENT)
        found.append(conformance.write_suite(settings.data_folder / "host"))
    if not agents:
        raise BadInput.of("there is no agent to serve: name some as [agents.NAME] in viva.toml")
    at = f"[{bind_address}]" if ":" in bind_address else bind_address
    public = str(public_url or serve.get("public_url") or f"http://{at}:{port}")
    if not is_public_url(public):
        raise BadInput.of(f"{public!r} is no address that others could reach this host by: write https://host/path")
    return HostSetup(
        settings=settings,
        options=ServeOptions(
            public_url=public.rstrip("/"),
            conformance=conformance_routes,
            max_running=serve.get("at_once", 16),
            max_unfinished=serve.get("max_unfinished", 1000),
        ),
        tokens=keys,
        agents=AgentRegistry(agents),
        suites=SuiteRegistry(found),
        has_judge=_has_judge(settings),
        bind_address=bind_address,
        port=port,
        generated_token=token,
    )


def is_public_url(url: str) -> bool:
    """Can links be made from it, by putting a path behind it?"""
    try:
        parts = urlsplit(url)
        known = parts.scheme in ("http", "https") and parts.hostname and (parts.port is None or parts.port >= 0)
        return bool(known) and not _UNFIT.search(url)
    except ValueError:
        return False


def is_loopback(bind: str) -> bool:
    if bind == "localhost":
        return True
    try:
        return ip_address(bind).is_loopback
    except ValueError:
        return False


def _keys(settings: Settings, tenants: Mapping[str, Mapping[str, Any]]) -> TokenRegistry:
    keys = TokenRegistry()
    for name, tenant in tenants.items():
        for field in ("tokens", "read_tokens"):
            for written in tenant.get(field, ()):
                token = settings.expand_variables(written, "openwop", "tenants", name, field)
                if len(token) < 16:
                    raise settings.problem("a token has at least 16 characters", "openwop", "tenants", name, field)
                if keys.find_tenant(token) is not None:
                    raise settings.problem("this token is there twice", "openwop", "tenants", name, field)
                settings.redactor.add_secrets([token])
                keys.add(token, name, *([READ_SCOPES] if field == "read_tokens" else []))
    return keys


def _has_judge(settings: Settings) -> bool:
    """Can rubrics be judged? What the built-in judge lacks is a connector."""
    return not AgentFactory(settings).find_agent_problems(settings.openwop.judge or "viva.validator")
