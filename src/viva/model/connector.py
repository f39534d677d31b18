"""How a model is reached. Keys are secrets: they can be used, but not printed."""

import re
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Literal

from msgspec import Struct, structs

KEY_HEADERS = frozenset({"authorization", "x-api-key", "x-goog-api-key", "api-key"})
Structured = Literal["schema", "json", "text"]


class Secret:
    """A value that shows itself only to the one who asks for it by name."""

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
    """USD for a million tokens."""

    input: float
    output: float


class Connector(Struct, frozen=True, kw_only=True):
    """A provider, a model, an address and a key. `api_key` is already looked up: nothing below the config reads the environment.

    `structured` is how a fixed shape of answers is asked for: by its schema, as any JSON, or by the prompt alone.
    """

    name: str
    provider: str = "openai"
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
    structured: Structured = "schema"
    extra: Mapping[str, object] = {}
    is_default: bool = False
    """It stands in no config: a well-known model needs none."""

    @property
    def lacks_key(self) -> bool:
        """Will the provider surely refuse it for want of a key? Another address may need none."""
        sends_one = bool(self.api_key) or any(name.lower() in KEY_HEADERS for name in self.headers)
        return not sends_one and (self.is_default or not self.base_url)

    def __post_init__(self) -> None:
        if self.seed is not None and self.provider == "anthropic":
            raise ValueError("the Anthropic API takes no `seed`: its answers cannot be made the same again")


class Connectors(Mapping[str, Connector]):
    """The connectors of a project, by name. `defaults` has one for each provider, for models that need none in the config."""

    def __init__(self, configured: Mapping[str, Connector], defaults: Mapping[str, Connector]) -> None:
        self._configured = dict(configured)
        self.defaults = dict(defaults)

    def __getitem__(self, name: str) -> Connector:
        return self._configured[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._configured)

    def __len__(self) -> int:
        return len(self._configured)


_WELL_KNOWN = {"gemini": re.compile(r"gemini-.+"), "openai": re.compile(r"gpt-.+|o[1-9]\d*(?:-.+)?"), "anthropic": re.compile(r"claude-.+")}  # fmt: skip
"""How providers name their models."""


def provider_of(model: str) -> str | None:
    """The provider of a well-known model."""
    return next((provider for provider, names in _WELL_KNOWN.items() if names.fullmatch(model)), None)


def answer_settings(connector: Connector) -> dict[str, object]:
    """What an answer depends on, as far as it is set: the model and how it is asked. Not the address, not the key."""
    names = ("provider", "model", "temperature", "seed", "max_tokens", "extra")
    found = {name: getattr(connector, name) for name in names}
    return {name: value for name, value in found.items() if value not in (None, "", {})}


def find_connector(model: str, connectors: Mapping[str, Connector]) -> Connector | None:
    """The connector by which a model is reached, with that model: the one that is for it; else the first with a pattern that
    fits its name; for a well-known model else the first of its provider; else the provider's default.
    """
    if not model:
        return None
    provider = provider_of(model)
    ways: tuple[Callable[[Connector], bool], ...] = (
        lambda each: each.model == model,
        lambda each: any(fnmatchcase(model, pattern) for pattern in each.models),
        lambda each: each.provider == provider and not each.models,
    )
    found = next((each for fits in ways for each in connectors.values() if fits(each)), None)
    if found is None and provider is not None and isinstance(connectors, Connectors):
        found = connectors.defaults.get(provider)
    return found if found is None or found.model == model else structs.replace(found, model=model)


def connector_settings(name: str, connectors: Mapping[str, Connector]) -> dict[str, object] | None:
    """The same of the connector that a case asks for, by its name or that of a model; None if there is none."""
    connector = connectors.get(name) or find_connector(name, connectors)
    return answer_settings(connector) if connector is not None else None
