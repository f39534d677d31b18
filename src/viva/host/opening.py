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
from viva.host.auth import LOCAL, READING, Keys, new_token
from viva.host.host import Host, Serving
from viva.host.inventory import Inventory, listed
from viva.host.store import Store
from viva.host.suites import Offer, Suites, offers, packs
from viva.record.private import make_private_folder
from viva.session.agents import Agents

_UNFIT = re.compile(r"[\s?#@\\\x00-\x1f\x7f]")
"""In an address: a query or fragment would swallow the path, a password would be told to everybody."""


class Opening(Struct, kw_only=True):
    """What was asked for on the command line, and what came of it: everything that can be wrong was looked at."""

    settings: Settings
    serving: Serving
    keys: Keys
    inventory: Inventory
    suites: Suites
    rubric: bool
    bind: str
    port: int
    store: Store | None = None
    """Already opened, where it has to be known beforehand that nobody else has it."""
    new_token: str | None = None
    """A token that was made because none is configured. It is shown once."""

    def host(self) -> Host:
        """Opens it, on the loop that serves it."""
        store = self.store or Store(self.settings.home / "host")
        host = Host(self.settings, self.serving, store, self.keys, self.inventory, self.suites, rubric=self.rubric)
        host.runs.works["invocation"] = lambda run, log: invocations.invoke(host, run, log)
        host.runs.works["eval"] = lambda run, log: evals.run_eval(host, run, log)
        return host


def opening(
    file: Path | None, folder: Path, *, bind: str | None, port: int | None, public_url: str | None, seams: bool
) -> Opening:
    """Reads and checks the config. Raises BadInput."""
    settings = config.load(file, folder)
    catalog.load_plugins(settings.plugins, settings.folder)
    serve, openwop = settings.serve, settings.openwop
    bind = str(bind or serve.get("host", "127.0.0.1"))
    port = int(serve.get("port", 8765)) if port is None else port
    tenants = openwop.tenants
    keys = _keys(settings, tenants)
    token = None
    if not keys:
        if not is_loopback(bind):
            raise settings.problem(f"{bind} is open to others: give [openwop.tenants.NAME] tokens first", "serve")
        token = new_token()
        settings.redactor.learn([token])
        keys.add(token, LOCAL)
    found: list[Offer] = offers(openwop.suites, settings)
    for name, tenant in tenants.items():
        found += offers(tenant.get("suites", ()), settings, name)
    paths = [*openwop.suites, *(ref for tenant in tenants.values() for ref in tenant.get("suites", ()))]
    agents = listed(settings, packs(paths, settings))
    make_private_folder(settings.home)
    if seams:
        agents.append(conformance.AGENT)
        found.append(conformance.offer(settings.home / "host"))
    if not agents:
        raise BadInput.of("there is no agent to serve: name some as [agents.NAME] in viva.toml")
    at = f"[{bind}]" if ":" in bind else bind
    public = str(public_url or serve.get("public_url") or f"http://{at}:{port}")
    if not is_address(public):
        raise BadInput.of(f"{public!r} is no address that others could reach this host by: write https://host/path")
    return Opening(
        settings=settings,
        serving=Serving(
            public_url=public.rstrip("/"),
            conformance=seams,
            at_once=serve.get("at_once", 16),
            most=serve.get("max_unfinished", 1000),
        ),
        keys=keys,
        inventory=Inventory(agents),
        suites=Suites(found),
        rubric=_has_judge(settings),
        bind=bind,
        port=port,
        new_token=token,
    )


def is_address(url: str) -> bool:
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


def _keys(settings: Settings, tenants: Mapping[str, Mapping[str, Any]]) -> Keys:
    keys = Keys()
    for name, tenant in tenants.items():
        for field in ("tokens", "read_tokens"):
            for written in tenant.get(field, ()):
                token = settings.expand(written, "openwop", "tenants", name, field)
                if len(token) < 16:
                    raise settings.problem("a token has at least 16 characters", "openwop", "tenants", name, field)
                if keys.owner(token) is not None:
                    raise settings.problem("this token is there twice", "openwop", "tenants", name, field)
                settings.redactor.learn([token])
                keys.add(token, name, *([READING] if field == "read_tokens" else []))
    return keys


def _has_judge(settings: Settings) -> bool:
    """Can rubrics be judged? What the built-in judge lacks is a connector."""
    return not Agents(settings).wrong_with(settings.openwop.judge or "viva.validator")
