"""How a model is reached. Keys are secrets: they can be used, but not printed."""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Literal

from msgspec import Struct

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
    key_from: str = ""
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

    def __post_init__(self) -> None:
        if self.seed is not None and self.provider == "anthropic":
            raise ValueError("the Anthropic API takes no `seed`: its answers cannot be made the same again")


def settings_that_answer(connector: Connector) -> dict[str, object]:
    """What an answer depends on, as far as it is set: the model and how it is asked. Not the address, not the key."""
    names = ("provider", "model", "temperature", "seed", "max_tokens", "extra")
    found = {name: getattr(connector, name) for name in names}
    return {name: value for name, value in found.items() if value not in (None, "", {})}


def reaching(model: str, connectors: Mapping[str, Connector]) -> Connector | None:
    """The connector by which a model is reached: the one that is for it or, else, the first with a pattern that fits its name."""
    exact = (connector for connector in connectors.values() if model and connector.model == model)
    fitting = (each for each in connectors.values() if any(fnmatchcase(model, pattern) for pattern in each.models))
    return next(exact, None) or next(fitting, None)
