"""Settings from `viva.toml` and the environment. No other module reads the environment."""

import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, cast

from msgspec import Struct, field, structs

from viva import catalog
from viva.errors import BadInput, Problem
from viva.llm.provider_errors import MODEL_CLIENT_PACKAGES
from viva.llm.target import find_url_problem
from viva.model.case import LinkMode, Sandbox, WorkspaceKind
from viva.model.connector import Connector, Connectors, Price, Secret, find_provider_of_model
from viva.model.finding import Severity
from viva.record.redaction import Redactor
from viva.schemas.positions import KeyPath, find_toml_line
from viva.schemas.validation import find_violations
from viva.text import credentials
from viva.text.duration import parse_duration
from viva.text.pattern import LazyPattern
from viva.text.similar_names import find_similar_names

CONFIG_FILE = "viva.toml"
_KEY_VARIABLES = {"openai": "OPENAI_API_KEY", "anthropic": "ANTHROPIC_API_KEY", "gemini": "GEMINI_API_KEY"}
_BASE_URL_VARIABLES = {
    "openai": "OPENAI_BASE_URL",
    "anthropic": "ANTHROPIC_BASE_URL",
    "gemini": "GOOGLE_GEMINI_BASE_URL",
}
"""Environment variables that set another base URL, as in the providers' own programs."""
_PROXY_VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
_CONVERTED_FIELDS = frozenset({"provider", "base_url", "headers", "price", "models"})
"""Fields of a connector whose value in the config is converted. The others are taken over as they are."""
_VARIABLE = LazyPattern(r"\$(?:\{(\w+)\}|(\w+))")

_URL_WITHOUT_SCHEME = LazyPattern(r"[\w.-]+:\d+(/\S*)?")
"""A URL without its scheme."""


class Defaults(Struct, frozen=True):
    """`[defaults]`: what flags and cases may override."""

    agent: str | None = None
    timeout_s: float | None = None
    turn_timeout_s: float | None = None
    parallel: int | Literal["auto"] | None = None
    simulator: str | None = None
    evaluator: str | None = None
    judge: str | None = None
    workspace: WorkspaceKind | None = None
    link_mode: LinkMode | None = None
    keep_workspace: bool = False
    sandbox: Sandbox | None = None


class OpenwopSettings(Struct, frozen=True):
    """`[openwop]`: how eval suites run."""

    pass_score: float | None = None
    judge: str | None = None
    safety_judge: str | None = None
    fail_at: Severity = "low"
    trusted_keys: tuple[str, ...] = ()
    require_signature: bool = False
    suites: tuple[str, ...] = ()
    agents: tuple[str, ...] | None = None
    """The agents of `viva serve` for all tenants. None: all but judges, simulators and agents of single tenants."""
    tenants: Mapping[str, Mapping[str, Any]] = {}
    """The settings of each tenant of `viva serve`."""


class HistorySettings(Struct, frozen=True):
    """`[history]`: the URL of the team's history and the options for fsspec. Variables are not expanded yet."""

    remote: str | None = None
    options: Mapping[str, Any] = {}


class Settings(Struct, frozen=True, kw_only=True):
    """The settings of a project. Paths in the config are relative to `folder`."""

    folder: Path
    file: Path | None = None
    defaults: Defaults = Defaults()
    agents: Mapping[str, Mapping[str, Any]] = {}
    connectors: Mapping[str, Connector] = {}
    """The connectors of the config. Models without one use the default connector of their provider."""
    plugins: tuple[str, ...] = ()
    attachment_roots: tuple[str, ...] = ()
    confirmation_tools: tuple[str, ...] = ()
    provider_packages: frozenset[str] = MODEL_CLIENT_PACKAGES
    openwop: OpenwopSettings = OpenwopSettings()
    history: HistorySettings = HistorySettings()
    serve: Mapping[str, Any] = {}
    environ: Mapping[str, str] = {}
    redactor: Redactor = field(default_factory=Redactor)
    """Knows the secrets of config and environment; agents add theirs. A project has only this one."""
    source_text: str = ""
    unset_variables: list[str] | None = None
    """Collects messages about unset variables. None: an unset variable is an error."""
    used_variables: set[str] = field(default_factory=set[str])
    """Collects the names of the variables that were replaced by their values."""

    @property
    def data_folder(self) -> Path:
        """The folder of runs and history."""
        return self.folder / ".viva"

    def problem(self, message: str, *place: str) -> BadInput:
        """A BadInput with the file and line of a value."""
        file = str(self.file) if self.file else ""
        return BadInput.of(message, file, find_toml_line(self.source_text, place) if file else 0)

    def expand_variables(self, text: str, *place: str) -> str:
        """Replace `$NAME` and `${NAME}` by values of the environment, which become secrets."""

        def get_value(match: re.Match[str]) -> str:
            name = match[1] or match[2]
            if name not in self.environ:
                problem = self.problem(f"the environment variable {name} is not set", *place)
                if self.unset_variables is None:
                    raise problem
                self.unset_variables.append(str(problem))
                return match[0]
            self.redactor.add_secrets([self.environ[name]])
            self.used_variables.add(name)
            return self.environ[name]

        return _VARIABLE.sub(get_value, text)

    def expand_history_settings(self) -> HistorySettings:
        """The settings of the remote history with variables expanded. A `remote` without a scheme is a folder relative to the config.

        Only commands that use the remote history call this, so that a run needs none of its variables.
        """
        strict = structs.replace(self, unset_variables=None)
        remote = self.history.remote
        if remote is not None:
            remote = strict.expand_variables(remote, "history", "remote")
            remote = remote if "://" in remote else str((self.folder / Path(remote).expanduser()).resolve())
        options = {
            name: strict.expand_variables(value, "history", "options", name) if isinstance(value, str) else value
            for name, value in self.history.options.items()
        }
        self.redactor.add_secrets(
            [*credentials.find_url_credentials(remote or ""), *credentials.find_config_credentials(options)]
        )
        return HistorySettings(remote, options)

    def explain_unknown_connector(self, name: str) -> str:
        known = list(self.connectors)
        similar = find_similar_names(name, known)
        hint = f"did you mean {' or '.join(similar)}?" if similar else f"known: {', '.join(known) or 'none'}"
        return f"there is no connector {name!r}; {hint}"

    def create_unknown_agent_error(self, name: str, built_in: Sequence[str]) -> BadInput:
        known, name = list(self.agents), credentials.mask_agent_reference(name)
        kind, _, place = name.partition(":")
        if kind.lower() in ("agent", "agents") and place in known:
            similar = [f"agents:{place}"]
        elif _URL_WITHOUT_SCHEME.fullmatch(name):
            similar = [f"http://{name}"]
        elif name.endswith(".py"):
            similar = [f"python:{name}:NAME, with the name of the function or object in it"]
        else:
            similar = find_similar_names(name, known) or find_similar_names(name, built_in)
        if place and not similar:  # a mistyped kind, as in langgrap:./app.py:graph, or none, as in app:graph
            kinds = find_similar_names(kind, catalog.BUILT_IN["agent"], 1)
            similar = [f"{each}:{place}" for each in kinds] or [f"python:{name}"]
        if similar:
            return BadInput.of(f"there is no agent {name!r}; did you mean {' or '.join(similar)}?")
        where = f"{self.file} has " + (", ".join(known) or "none") if self.file else f"there is no {CONFIG_FILE} here"
        advice = "Pass one of its names, or a reference" if known else "Pass a reference"
        return BadInput.of(
            f"there is no agent {name!r}; {where}. {advice}, such as python:./agent.py:agent or http://localhost:8000/chat"
        )


def find_config(start: Path, top: Path | None = None) -> Path | None:
    """The nearest viva.toml in a folder and its parents, up to `top`."""
    for folder in (start, *start.parents):
        if (folder / CONFIG_FILE).is_file():
            return folder / CONFIG_FILE
        if folder == top:
            break
    return None


def load_settings(
    file: Path | None,
    start: Path,
    env_file: Path | None = None,
    *,
    allow_unset: bool = False,
    top: Path | None = None,
) -> Settings:
    """Load the settings of a project; without a config file, the defaults. With `allow_unset`, environment variables may be unset.
    A config above the folder `top` is not used.
    """
    added = {} if env_file is None else _read_env_file(env_file)
    os.environ.update(added)  # Python agents read it themselves
    environ = dict(os.environ)
    redactor = Redactor([*_find_environment_secrets(environ), *credentials.find_environment_credentials(added)])
    unset_variables: list[str] | None = [] if allow_unset else None
    default_connectors = _create_default_connectors(environ)
    if file is None and (file := find_config(start, top and top.resolve())) is None:
        return Settings(
            folder=start,
            environ=environ,
            redactor=redactor,
            connectors=Connectors({}, default_connectors),
            unset_variables=unset_variables,
        )
    text, config = _read_config(file)
    settings = Settings(
        folder=file.resolve().parent,
        file=file,
        environ=environ,
        redactor=redactor,
        source_text=text,
        unset_variables=unset_variables,
    )
    problems = {
        _create_schema_problem(file, text, c.path, c.message, c.unknown_key) for c in find_violations("config", config)
    }
    connectors = dict(_load_connectors(config, settings, problems))
    if problems:
        raise BadInput(*sorted(problems))
    return structs.replace(
        settings,
        connectors=Connectors(connectors, default_connectors),
        defaults=_load_defaults(config.get("defaults", {}), settings),
        agents=config.get("agents", {}),
        plugins=tuple(config.get("plugins", ())),
        attachment_roots=tuple(str(settings.folder / root) for root in config.get("attachment_roots", ())),
        confirmation_tools=tuple(config.get("awaiting", {}).get("confirmation_tools", ())),
        provider_packages=settings.provider_packages | set(config.get("faults", {}).get("provider_packages", ())),
        openwop=_load_openwop(config.get("openwop", {}), settings),
        history=HistorySettings(**config.get("history", {})),
        serve=config.get("serve", {}),
    )


def load_project(
    file: Path | None,
    start: Path,
    env_file: Path | None = None,
    *,
    allow_unset: bool = False,
    top: Path | None = None,
) -> Settings:
    """Load the settings of a project as `load_settings` does, and the plugins that they name."""
    settings = load_settings(file, start, env_file, allow_unset=allow_unset, top=top)
    catalog.load_plugins(settings.plugins, settings.folder)
    return settings


def find_unset_variables(names: Iterable[str], env_file: Path | None) -> list[str]:
    """The names of variables that neither the environment nor the file of `--env-file` sets."""
    environ = os.environ | (_read_env_file(env_file) if env_file else {})
    return [name for name in names if not environ.get(name)]


def _read_config(file: Path) -> tuple[str, dict[str, Any]]:
    """The text of the file, and its content."""
    try:
        text = file.read_text(encoding="utf-8-sig")
        return text, tomllib.loads(text)
    except OSError as error:
        raise BadInput.of(f"cannot be read: {error.strerror}", str(file)) from error
    except UnicodeDecodeError as error:
        raise BadInput.of("is not UTF-8", str(file)) from error
    except tomllib.TOMLDecodeError as error:
        line = re.search(r"line (\d+)", str(error))
        raise BadInput.of(f"is not TOML: {error}", str(file), int(line[1]) if line else 1) from error


def _create_schema_problem(file: Path, text: str, path: KeyPath, message: str, key: str | None) -> Problem:
    place = (*path, key) if key is not None else path
    return Problem(str(file), find_toml_line(text, place), ".".join(str(step) for step in path), message)


def _load_defaults(table: Mapping[str, Any], settings: Settings) -> Defaults:
    return Defaults(
        timeout_s=_parse_duration(table, "timeout", settings, "defaults"),
        turn_timeout_s=_parse_duration(table, "turn_timeout", settings, "defaults"),
        **{name: value for name, value in table.items() if name not in ("timeout", "turn_timeout")},
    )


def _load_openwop(table: Mapping[str, Any], settings: Settings) -> OpenwopSettings:
    folder = settings.folder
    keys = [key if key.startswith("ed25519:") else str(folder / key) for key in table.get("trusted_keys", ())]
    if table.get("require_signature") and not keys:
        message = "require_signature needs the keys of signers: add them as `trusted_keys`"
        raise settings.problem(message, "openwop", "require_signature")
    fields: dict[str, Any] = {**table, "trusted_keys": tuple(keys), "suites": tuple(table.get("suites", ()))}
    if "agents" in table:
        fields["agents"] = tuple(table["agents"])
    return OpenwopSettings(**fields)


def _parse_duration(table: Mapping[str, Any], key: str, settings: Settings, *place: str) -> float | None:
    if key not in table:
        return None
    try:
        return parse_duration(table[key])
    except ValueError as error:
        raise settings.problem(str(error), *place, key) from error


def _create_default_connectors(environ: Mapping[str, str]) -> dict[str, Connector]:
    """A connector for each provider, with its own base URL and its usual key, for models without a config."""
    return {
        provider: Connector(
            name=provider,
            provider=provider,
            base_url=environ.get(_BASE_URL_VARIABLES[provider], "").rstrip("/"),
            api_key=Secret(key) if (key := environ.get(variable)) else None,
            key_source=variable,
            is_built_in=True,
        )
        for provider, variable in _KEY_VARIABLES.items()
    }


def _find_provider(name: str, table: Mapping[str, Any]) -> str:
    """The provider of a connector: from its field `provider`, its name or its model. The default is `openai`, an API that many servers have."""
    if "provider" in table:
        return str(table["provider"])
    if name in _KEY_VARIABLES:
        return name
    return (None if table.get("base_url") else find_provider_of_model(str(table.get("model", "")))) or "openai"


def _load_connectors(
    config: Mapping[str, Any], settings: Settings, problems: set[Problem]
) -> Iterator[tuple[str, Connector]]:
    """The valid connectors. Problems of the others are added to `problems`."""
    tables: Any = config.get("connectors", {})
    is_valid = not problems
    for name, table in cast("Mapping[str, Any]", tables).items() if isinstance(tables, Mapping) else ():
        if is_valid or not find_violations("config", {"connectors": {name: table}}):
            try:
                yield name, _load_connector(name, table, settings)
            except BadInput as error:
                problems.update(error.problems)


def _load_connector(name: str, table: Mapping[str, Any], settings: Settings) -> Connector:
    provider = _find_provider(name, table)
    base_url = settings.expand_variables(str(table.get("base_url", "")), "connectors", name, "base_url")
    if base_url and (url_problem := find_url_problem(base_url)):
        raise settings.problem(f"connector {name!r}: `base_url` {url_problem}", "connectors", name, "base_url")
    key_source = str(table.get("api_key_env", _KEY_VARIABLES[provider]))
    api_key = settings.environ.get(key_source)
    headers = {
        header: settings.expand_variables(value, "connectors", name, "headers")
        for header, value in table.get("headers", {}).items()
    }
    literal_secrets = credentials.find_config_credentials({**table, "headers": headers, "base_url": base_url})
    settings.redactor.add_secrets([*([api_key] if api_key else []), *literal_secrets])
    price = table.get("price")
    try:
        return Connector(
            name=name,
            provider=provider,
            base_url=(base_url or settings.environ.get(_BASE_URL_VARIABLES[provider], "")).rstrip("/"),
            api_key=Secret(api_key) if api_key else None,
            key_source=key_source,
            headers=headers,
            timeout_s=_parse_duration(table, "timeout", settings, "connectors", name) or 120.0,
            price=Price(price["input"], price["output"]) if price else None,
            models=tuple(table.get("models", ())),
            extra=cast("Mapping[str, object]", table.get("body", {})),
            **{key: table[key] for key in Connector.__struct_fields__ if key in table.keys() - _CONVERTED_FIELDS},
        )
    except ValueError as error:
        raise settings.problem(f"connector {name!r}: {error}", "connectors", name, "seed") from error


def _find_environment_secrets(environ: Mapping[str, str]) -> list[str]:
    """The providers' keys, and the credentials in the URLs of providers and proxies."""
    keys = [environ[name] for name in _KEY_VARIABLES.values() if environ.get(name)]
    variables = (*_BASE_URL_VARIABLES.values(), *_PROXY_VARIABLES, *map(str.lower, _PROXY_VARIABLES))
    values = [environ.get(name, "") for name in variables]
    urls = [value if "://" in value else f"http://{value}" for value in values]  # a proxy may have no scheme
    return [*keys, *(secret for url in urls for secret in credentials.find_url_credentials(url))]


def _read_env_file(path: Path) -> dict[str, str]:
    """`NAME=value` lines; quotes around a value and `export` before a name are allowed."""
    variables: dict[str, str] = {}
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput.of(f"cannot be read: {error}", str(path)) from error
    for number, line in enumerate(lines, 1):
        assignment = line.strip().removeprefix("export ").strip()
        if not assignment or assignment.startswith("#"):
            continue
        name, equals, value = assignment.partition("=")
        if not equals or not name.strip().isidentifier():
            raise BadInput.of("is not NAME=value", str(path), number)  # the line itself may be a secret
        value = value.strip()
        is_quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
        variables[name.strip()] = value[1:-1] if is_quoted else value
    return variables
