"""The card of an A2A agent: where its service is, how it is spoken to, and which credentials it asks for."""

from collections.abc import Mapping
from typing import Any, Literal, cast
from urllib.parse import urljoin, urlsplit

from msgspec import Struct

from viva.agents.json_objects import as_list, as_object
from viva.errors import Unreachable
from viva.model.ellipsis import cut_end
from viva.text.credentials import mask_url_credentials

CARD_PATH = ".well-known/agent-card.json"
_OLD_CARD_PATH = ".well-known/agent.json"
_BINDINGS: Mapping[str, Literal["jsonrpc", "rest"]] = {"JSONRPC": "jsonrpc", "HTTP+JSON": "rest"}
_SCHEME_TYPES = {
    "apiKeySecurityScheme": "apiKey",
    "httpAuthSecurityScheme": "http",
    "oauth2SecurityScheme": "oauth2",
    "openIdConnectSecurityScheme": "openIdConnect",
    "mtlsSecurityScheme": "mutualTLS",
}


class A2aService(Struct, frozen=True):
    """A service that Viva can speak to. `is_old` means version 0.3 of the protocol or an earlier one."""

    url: str
    binding: Literal["jsonrpc", "rest"]
    is_old: bool
    can_stream: bool


def list_card_urls(url: str) -> list[str]:
    """The URLs where the card of an agent may be, the most likely one first."""
    if urlsplit(url).path.endswith(".json"):
        return [url]
    base = url.rstrip("/") + "/"
    urls = [urljoin(base, path) for path in (CARD_PATH, _OLD_CARD_PATH)]
    return list(dict.fromkeys([urls[0], urljoin(url, f"/{CARD_PATH}"), urls[1]]))


def read_card(card: Any, card_url: str, headers: Mapping[str, str]) -> A2aService:
    """The service that a card names. Raises Unreachable if Viva cannot use it, and says what is missing."""
    if not isinstance(card, dict):
        raise Unreachable(
            f"{mask_url_credentials(card_url)} is not an agent card: it is not a JSON object", deterministic=True
        )
    fields = cast("dict[str, Any]", card)
    service = _choose_service(fields, card_url)
    if problem := _find_missing_credential(fields, headers, service.url):
        raise Unreachable(problem, deterministic=True)
    return service


def _choose_service(card: Mapping[str, Any], card_url: str) -> A2aService:
    """The first interface in a binding that Viva speaks; cards of version 0.3 name theirs in other fields."""
    capabilities = as_object(card.get("capabilities"))
    interfaces = [as_object(each) for each in as_list(card.get("supportedInterfaces"))]
    if not interfaces:
        version = card.get("protocolVersion") or "0.3"
        main = {"url": card.get("url"), "protocolBinding": card.get("preferredTransport") or "JSONRPC"}
        others = [as_object(each) for each in as_list(card.get("additionalInterfaces"))]
        more = [{"url": each.get("url"), "protocolBinding": each.get("transport")} for each in others]
        interfaces = [{"protocolVersion": version, **each} for each in (main, *more)]
    bindings: list[str] = []
    for each in interfaces:
        url, name = each.get("url"), str(each.get("protocolBinding"))
        if not isinstance(url, str) or not url:
            continue
        if (binding := _BINDINGS.get(name)) is not None:
            is_old = str(each.get("protocolVersion") or "1.0").startswith("0.")
            return A2aService(_resolve_url(card_url, url), binding, is_old, capabilities.get("streaming") is True)
        bindings.append(name)
    lacking = (
        f"it offers {cut_end(', '.join(bindings), 100)}, not {' or '.join(_BINDINGS)}"
        if bindings
        else "it does not name an address"
    )
    raise Unreachable(
        f"the agent card at {mask_url_credentials(card_url)} cannot be used: {lacking}", deterministic=True
    )


def _resolve_url(card_url: str, url: str) -> str:
    try:
        return urljoin(card_url, url)
    except ValueError:
        raise Unreachable(
            f"the agent card names an address that is not valid: {cut_end(url, 100)!r}", deterministic=True
        ) from None


def _find_missing_credential(card: Mapping[str, Any], headers: Mapping[str, str], url: str) -> str | None:
    """Describes the credentials that the card asks for and `headers` lack; None if one alternative of the card is met."""
    header_names = {name.lower() for name in headers}
    schemes = as_object(card.get("securitySchemes"))
    alternatives = as_list(card.get("securityRequirements")) or as_list(card.get("security"))
    missing: list[str] = []
    for each in alternatives:
        names = as_object(each)
        names = as_object(names["schemes"]) if "schemes" in names else names
        lacking = [
            _describe_missing_credential(name, as_object(schemes.get(name)), header_names, url) for name in names
        ]
        if not any(lacking):
            return None
        missing.append(" and ".join(filter(None, lacking)))
    return f"the agent asks for {', or for '.join(missing)}" if missing else None


def _describe_missing_credential(name: str, scheme: Mapping[str, Any], header_names: set[str], url: str) -> str | None:
    kind = str(scheme.get("type") or "")
    for key, usual in _SCHEME_TYPES.items():
        if isinstance(scheme.get(key), dict):
            kind, scheme = usual, cast("dict[str, Any]", scheme[key])
    if kind == "apiKey":
        place, key = str(scheme.get("location") or scheme.get("in") or "header"), str(scheme.get("name") or "")
        if place == "query":
            return None if f"{key}=" in urlsplit(url).query else f"the query parameter {key!r}, which Viva cannot add"
        needed_header = "cookie" if place == "cookie" else key.lower()
        return None if needed_header in header_names else f'the key {key!r}: set `headers = {{{key!r} = "$NAME"}}`'
    if kind in ("http", "oauth2", "openIdConnect"):
        hint = "set `token` or the header Authorization"
        return None if "authorization" in header_names else f"{cut_end(name, 60)!r} ({kind}): {hint}"
    return f"{cut_end(name, 60)!r} ({kind or 'unknown'}), a scheme that Viva lacks"
