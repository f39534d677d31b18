"""`viva.toml`, the environment and flags become Settings. The only place that reads the environment."""

import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, cast

from msgspec import Struct, field

from viva.errors import BadInput, Problem
from viva.llm.provider_errors import MODEL_CLIENT_PACKAGES
from viva.llm.target import find_url_problem
from viva.model.case import LinkMode, Sandbox, WorkspaceKind
from viva.model.connector import Connector, Connectors, Price, Secret, provider_of
from viva.model.finding import Severity
from viva.record.redaction import Redactor
from viva.schemas.positions import KeyPath, find_toml_line
from viva.schemas.validation import find_violations
from viva.text import credentials
from viva.text.duration import parse_duration

CONFIG_FILE = "viva.toml"
_KEYS = {"openai": "OPENAI_API_KEY", "anthropic": "ANTHROPIC_API_KEY", "gemini": "GEMINI_API_KEY"}
_ADDRESSES = {"openai": "OPENAI_BASE_URL", "anthropic": "ANTHROPIC_BASE_URL", "gemini": "GOOGLE_GEMINI_BASE_URL"}
"""Where the providers' own programs look for another address; who has set one means all that speaks to the provider."""
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")

_WRONG_PREFIX = re.compile(r"agents?:(.+)", re.IGNORECASE)
_PLACE = re.compile(r"[\w.-]+:\d+(/\S*)?")
"""An address that misses its scheme."""


class Defaults(Struct, frozen=True):
    """`[defaults]`: what a flag or a case may say otherwise."""

    agent: str | None = None
    timeout_s: float | None = None
    turn_timeout_s: float | None = None
    parallel: int | None = None
    simulator: str | None = None
    evaluator: str | None = None
    judge: str | None = None
    workspace: WorkspaceKind | None = None
    link_mode: LinkMode | None = None
    keep_workspace: bool = False
    sandbox: Sandbox | None = None


class OpenwopSettings(Struct, frozen=True):
    """`[openwop]`: how eval suites are run."""

    pass_score: float | None = None
    judge: str | None = None
    safety_judge: str | None = None
    fail_at: Severity = "low"
    trusted_keys: tuple[str, ...] = ()
    require_signature: bool = False
    suites: tuple[str, ...] = ()
    tenants: Mapping[str, Mapping[str, Any]] = {}
    """What `viva serve` offers, to all and to each tenant."""


class Settings(Struct, kw_only=True):
    """What a run knows of its surroundings. `folder` is where paths of the config start."""

    folder: Path
    file: Path | None = None
    defaults: Defaults = Defaults()
    agents: Mapping[str, Mapping[str, Any]] = {}
    connectors: Mapping[str, Connector] = {}
    """Those of the config; as `Connectors`, also those that well-known models need no config for."""
    plugins: tuple[str, ...] = ()
    attachment_roots: tuple[str, ...] = ()
    confirmation_tools: tuple[str, ...] = ()
    provider_packages: frozenset[str] = MODEL_CLIENT_PACKAGES
    openwop: OpenwopSettings = OpenwopSettings()
    serve: Mapping[str, Any] = {}
    environ: Mapping[str, str] = {}
    redactor: Redactor = field(default_factory=Redactor)
    """Knows every secret of the project. It is the only one: agents that are built later add theirs to it."""
    source_text: str = ""
    unset_variables: list[str] | None = None
    """Where a variable that is not set is no reason to stop: what is to be said of it."""

    @property
    def data_folder(self) -> Path:
        """Where runs are kept."""
        return self.folder / ".viva"

    def describe_place(self, *place: str) -> str:
        """Where a value of the config was written: `viva.toml:12`."""
        return f"{self.file.name}:{find_toml_line(self.source_text, place)}" if self.file else "the defaults"

    def problem(self, what: str, *place: str) -> BadInput:
        file = str(self.file) if self.file else ""
        return BadInput.of(what, file, find_toml_line(self.source_text, place) if file else 0)

    def expand_variables(self, text: str, *place: str) -> str:
        """`$NAME` and `${NAME}` from the environment; what is found is kept secret, what is missing is a problem."""

        def value_of(match: re.Match[str]) -> str:
            name = match[1] or match[2]
            if name not in self.environ:
                missing = self.problem(f"the environment variable {name} is not set", *place)
                if self.unset_variables is None:
                    raise missing
                self.unset_variables.append(str(missing))
                return match[0]
            self.redactor.add_secrets([self.environ[name]])
            return self.environ[name]

        return _VARIABLE.sub(value_of, text)

    def explain_unknown_connector(self, name: str) -> str:
        """No connector has that name: the near ones, or all."""
        known = list(self.connectors)
        near = get_close_matches(name, known, 3, 0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(known) or 'none'}"
        return f"there is no connector {name!r}; {hint}"

    def unknown_agent_error(self, name: str, built_in: Sequence[str] = ()) -> BadInput:
        """Nobody has that name: the near ones, or all."""
        known, name = list(self.agents), credentials.mask_reference(name)
        if mistyped := _WRONG_PREFIX.fullmatch(name):
            return BadInput.of(f"{name!r}: the prefix of an agent is agents:, as in agents:{mistyped[1]}")
        if _PLACE.fullmatch(name):
            return BadInput.of(f"there is no agent {name!r}; did you mean http://{name}?")
        near = get_close_matches(name, known, 3, 0.5) or get_close_matches(name, built_in, 3, 0.7)
        if near:
            return BadInput.of(f"there is no agent {name!r}; did you mean {' or '.join(near)}?")
        where = f"{self.file} knows " + (", ".join(known) or "none") if self.file else f"there is no {CONFIG_FILE} here"
        return BadInput.of(
            f"there is no agent {name!r}: {where}; or give a reference such as python:./agent.py:agent or http://..."
        )


def find_config(start: Path) -> Path | None:
    """The nearest viva.toml upward from a folder."""
    for folder in (start, *start.parents):
        if (folder / CONFIG_FILE).is_file():
            return folder / CONFIG_FILE
    return None


def load_settings(
    file: Path | None, start: Path, env_file: Path | None = None, *, allow_unset: bool = False
) -> Settings:
    """The settings of a project; those of an empty config where there is none. With `only_look` nothing will be called,
    and variables need not be set.
    """
    added = {} if env_file is None else _env_file(env_file)
    os.environ.update(added)  # an agent that is Python code looks there by itself
    environ = dict(os.environ)
    redactor = Redactor([*_secrets_of(environ), *credentials.find_in_environment(added)])
    if file is None and (file := find_config(start)) is None:
        connectors = Connectors({}, _default_connectors(environ))
        unset = [] if allow_unset else None
        return Settings(folder=start, environ=environ, redactor=redactor, connectors=connectors, unset_variables=unset)
    text, value = _read(file)
    settings = Settings(
        folder=file.resolve().parent,
        file=file,
        environ=environ,
        redactor=redactor,
        source_text=text,
        unset_variables=[] if allow_unset else None,
    )
    problems = {_problem(file, text, c.path, c.message, c.unknown_key) for c in find_violations("config", value)}
    settings.connectors = Connectors(dict(_connectors(value, settings, problems)), _default_connectors(environ))
    if problems:
        raise BadInput(*sorted(problems))
    settings.defaults = _defaults(value.get("defaults", {}), settings)
    settings.agents = value.get("agents", {})
    settings.plugins = tuple(value.get("plugins", ()))
    settings.attachment_roots = tuple(str(settings.folder / root) for root in value.get("attachment_roots", ()))
    settings.confirmation_tools = tuple(value.get("awaiting", {}).get("confirmation_tools", ()))
    settings.provider_packages |= set(value.get("faults", {}).get("provider_packages", ()))
    settings.openwop = _openwop(value.get("openwop", {}), settings)
    settings.serve = value.get("serve", {})
    return settings


def _read(file: Path) -> tuple[str, dict[str, Any]]:
    try:
        text = file.read_text(encoding="utf-8-sig")
        return text, tomllib.loads(text)
    except OSError as wrong:
        raise BadInput.of(f"cannot be read: {wrong.strerror}", str(file)) from wrong
    except UnicodeDecodeError as wrong:
        raise BadInput.of("is not UTF-8", str(file)) from wrong
    except tomllib.TOMLDecodeError as wrong:
        line = re.search(r"line (\d+)", str(wrong))
        raise BadInput.of(f"is not TOML: {wrong}", str(file), int(line[1]) if line else 1) from wrong


def _problem(file: Path, text: str, path: KeyPath, what: str, key: str | None) -> Problem:
    place = (*path, key) if key is not None else path
    shown = ".".join(str(step) for step in path)
    return Problem(str(file), find_toml_line(text, place), shown, what)


def _defaults(written: Mapping[str, Any], settings: Settings) -> Defaults:
    return Defaults(
        agent=written.get("agent"),
        timeout_s=_duration(written, "timeout", settings, "defaults"),
        turn_timeout_s=_duration(written, "turn_timeout", settings, "defaults"),
        parallel=written.get("parallel"),
        simulator=written.get("simulator"),
        evaluator=written.get("evaluator"),
        judge=written.get("judge"),
        workspace=written.get("workspace"),
        link_mode=written.get("link_mode"),
        keep_workspace=written.get("keep_workspace", False),
        sandbox=written.get("sandbox"),
    )


def _openwop(written: Mapping[str, Any], settings: Settings) -> OpenwopSettings:
    folder = settings.folder
    keys = [key if key.startswith("ed25519:") else str(folder / key) for key in written.get("trusted_keys", ())]
    if written.get("require_signature") and not keys:
        what = "require_signature needs the keys of signers: name them as `trusted_keys`"
        raise settings.problem(what, "openwop", "require_signature")
    return OpenwopSettings(
        pass_score=written.get("pass_score"),
        judge=written.get("judge"),
        safety_judge=written.get("safety_judge"),
        fail_at=written.get("fail_at", "low"),
        trusted_keys=tuple(keys),
        require_signature=written.get("require_signature", False),
        suites=tuple(written.get("suites", ())),
        tenants=written.get("tenants", {}),
    )


def _duration(written: Mapping[str, Any], key: str, settings: Settings, *place: str) -> float | None:
    if key not in written:
        return None
    try:
        return parse_duration(written[key])
    except ValueError as wrong:
        raise settings.problem(str(wrong), *place, key) from wrong


def _default_connectors(environ: Mapping[str, str]) -> dict[str, Connector]:
    """How a well-known model is reached for which nothing is configured: at its provider's own address, with its usual key."""
    return {
        provider: Connector(
            name=provider,
            provider=provider,
            base_url=environ.get(_ADDRESSES[provider], "").rstrip("/"),
            api_key=Secret(key) if (key := environ.get(variable)) else None,
            key_source=variable,
            is_default=True,
        )
        for provider, variable in _KEYS.items()
    }


def _provider(name: str, written: Mapping[str, Any]) -> str:
    """Its `provider`; else the one that it is called after, or whose model it is for; else OpenAI's API, which many speak."""
    if "provider" in written:
        return str(written["provider"])
    if name in _KEYS:
        return name
    return (None if written.get("base_url") else provider_of(str(written.get("model", "")))) or "openai"


def _connectors(
    value: Mapping[str, Any], settings: Settings, problems: set[Problem]
) -> Iterator[tuple[str, Connector]]:
    """The connectors; what is wrong with one is added to the problems. After others, those that fit by themselves are checked."""
    written: Any = value.get("connectors", {})
    fits = not problems
    for name, each in cast("Mapping[str, Any]", written).items() if isinstance(written, Mapping) else ():
        if fits or not find_violations("config", {"connectors": {name: each}}):
            try:
                yield name, _connector(name, each, settings)
            except BadInput as wrong:
                problems.update(wrong.problems)


def _connector(name: str, written: Mapping[str, Any], settings: Settings) -> Connector:
    provider = _provider(name, written)
    address = settings.expand_variables(str(written.get("base_url", "")), "connectors", name, "base_url")
    if address and (wrong := find_url_problem(address)):
        raise settings.problem(f"connector {name!r}: `base_url` {wrong}", "connectors", name, "base_url")
    key_from = str(written.get("api_key_env", _KEYS[provider]))
    key = settings.environ.get(key_from)
    headers = {
        k: settings.expand_variables(v, "connectors", name, "headers") for k, v in written.get("headers", {}).items()
    }
    settings.redactor.add_secrets([key] if key else [])
    settings.redactor.add_secrets(credentials.find_in_table({**written, "headers": headers, "base_url": address}))
    price = written.get("price")
    try:
        return Connector(
            name=name,
            provider=provider,
            model=written.get("model", ""),
            base_url=(address or settings.environ.get(_ADDRESSES[provider], "")).rstrip("/"),
            api_key=Secret(key) if key else None,
            key_source=key_from,
            headers=headers,
            temperature=written.get("temperature"),
            seed=written.get("seed"),
            max_tokens=written.get("max_tokens"),
            timeout_s=_duration(written, "timeout", settings, "connectors", name) or 120.0,
            retries=written.get("retries", 4),
            requests_per_minute=written.get("requests_per_minute"),
            tokens_per_minute=written.get("tokens_per_minute"),
            price=Price(price["input"], price["output"]) if price else None,
            models=tuple(written.get("models", ())),
            structured=written.get("structured", "schema"),
            extra=cast("Mapping[str, object]", written.get("body", {})),
        )
    except ValueError as wrong:
        raise settings.problem(f"connector {name!r}: {wrong}", "connectors", name, "seed") from wrong


def _secrets_of(environ: Mapping[str, str]) -> list[str]:
    """The providers' keys, and what the addresses of providers and proxies hold."""
    keys = [environ[name] for name in _KEYS.values() if environ.get(name)]
    addresses = [environ.get(name, "") for name in (*_ADDRESSES.values(), *_PROXIES, *map(str.lower, _PROXIES))]
    return [*keys, *(found for text in addresses for found in credentials.find_in_text(_as_address(text)))]


def _as_address(text: str) -> str:
    """A proxy may be written without `http://`."""
    return text if "://" in text else f"http://{text}"


def _env_file(path: Path) -> dict[str, str]:
    """`NAME=value` lines; quotes around a value and `export` before a name are allowed."""
    found: dict[str, str] = {}
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as wrong:
        raise BadInput.of(f"cannot be read: {wrong}", str(path)) from wrong
    for number, line in enumerate(lines, 1):
        bare = line.strip().removeprefix("export ").strip()
        if not bare or bare.startswith("#"):
            continue
        name, equals, value = bare.partition("=")
        if not equals or not name.strip().isidentifier():
            raise BadInput.of("is not NAME=value", str(path), number)  # the line itself may be a secret
        value = value.strip()
        quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
        found[name.strip()] = value[1:-1] if quoted else value
    return found
