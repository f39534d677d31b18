"""Connectors: how a model is reached. Keys are secrets: they can be used, but not printed."""

import re
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Literal

from msgspec import Struct, structs

API_KEY_HEADERS = frozenset({"authorization", "x-api-key", "x-goog-api-key", "api-key"})
StructuredAnswerMode = Literal["schema", "json", "text"]
ProviderApi = Literal["", "responses"]
"""An API of the provider other than its usual one."""


class Secret:
    """A value that is printed only by `reveal`."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        return self._value

    def __bool__(self) -> bool:
        return bool(self._value)

    def __repr__(self) -> str:
        return "Secret(***)"

    __str__ = __repr__


class Price(Struct, frozen=True):
    """USD per million tokens."""

    input: float
    output: float


class Connector(Struct, frozen=True, kw_only=True):
    """A provider, a model, a URL and a key. `api_key` is the value itself: only the config reads the environment.

    `api` is `responses` for OpenAI's Responses API. `structured` says how a JSON answer is requested: by its schema, as any JSON, or by the prompt alone.
    """

    name: str
    provider: str = "openai"
    api: ProviderApi = ""
    model: str = ""
    base_url: str = ""
    api_key: Secret | None = None
    key_source: str = ""
    headers: Mapping[str, str] = {}
    temperature: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    timeout_s: float = 120.0
    retries: int = 4
    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    price: Price | None = None
    models: tuple[str, ...] = ()
    structured: StructuredAnswerMode = "schema"
    extra: Mapping[str, object] = {}
    is_built_in: bool = False
    """Is it built in? A well-known model needs no connector in the config."""

    @property
    def lacks_key(self) -> bool:
        """Is an API key needed but missing? A server with a base URL of its own may need none, unless the connector is built in."""
        has_key = bool(self.api_key) or any(name.lower() in API_KEY_HEADERS for name in self.headers)
        return not has_key and (self.is_built_in or not self.base_url)

    def __post_init__(self) -> None:
        if self.seed is not None and self.provider == "anthropic":
            raise ValueError("the Anthropic API does not take `seed`: remove it")
        if self.api and self.provider != "openai":
            raise ValueError(f"only the provider openai has the API {self.api!r}: remove `api`")
        if self.seed is not None and self.api:
            raise ValueError("the Responses API does not take `seed`: remove it")


class Connectors(Mapping[str, Connector]):
    """The connectors of a project, by name. `defaults` has one for each provider, for models without one in the config."""

    def __init__(self, configured: Mapping[str, Connector], defaults: Mapping[str, Connector]) -> None:
        self._configured = dict(configured)
        self.defaults = dict(defaults)

    def __getitem__(self, name: str) -> Connector:
        return self._configured[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._configured)

    def __len__(self) -> int:
        return len(self._configured)


_WELL_KNOWN_MODELS = {"gemini": re.compile(r"gemini-.+"), "openai": re.compile(r"gpt-.+|o[1-9]\d*(?:-.+)?"), "anthropic": re.compile(r"claude-.+")}  # fmt: skip
"""The model names of each provider."""


def find_provider_of_model(model: str) -> str | None:
    """The provider of a well-known model."""
    return next((provider for provider, names in _WELL_KNOWN_MODELS.items() if names.fullmatch(model)), None)


_ANSWER_SETTINGS = ("provider", "api", "model", "temperature", "seed", "max_tokens", "structured", "extra")
_DEFAULT = Connector(name="")


def select_answer_settings(connector: Connector) -> dict[str, object]:
    """The provider and the settings that an answer depends on, if they are set: the model and its parameters, not the URL or the key."""
    settings = {name: getattr(connector, name) for name in _ANSWER_SETTINGS}
    return {name: value for name, value in settings.items() if name == "provider" or value != getattr(_DEFAULT, name)}


def find_connector(model: str, connectors: Mapping[str, Connector]) -> Connector | None:
    """The connector for a model: the one with that model; else the first with a matching pattern; else, for a well-known
    model, the first of its provider; else the provider's default.
    """
    if not model:
        return None
    provider = find_provider_of_model(model)
    rules: tuple[Callable[[Connector], bool], ...] = (
        lambda each: each.model == model,
        lambda each: any(fnmatchcase(model, pattern) for pattern in each.models),
        lambda each: each.provider == provider and not each.models,
    )
    connector = next((each for matches in rules for each in connectors.values() if matches(each)), None)
    if connector is None and provider is not None and isinstance(connectors, Connectors):
        connector = connectors.defaults.get(provider)
    return connector if connector is None or connector.model == model else structs.replace(connector, model=model)


def find_answer_settings(name: str, connectors: Mapping[str, Connector]) -> dict[str, object] | None:
    """The answer settings of a connector, by its name or a model's; None if there is none."""
    connector = connectors.get(name) or find_connector(name, connectors)
    return select_answer_settings(connector) if connector is not None else None
