"""Finds and masks credentials in URLs, headers, environment tables and command lines.

Only literal values count: `$NAME` and `{{variable}}` are references.
"""

import base64
import binascii
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast
from urllib.parse import unquote, unquote_plus

from viva.text.pattern import LazyPattern

MASK = "***"

_SENSITIVE_NAME_PARTS = ("auth", "key", "token", "secret", "cookie", "passw", "credential", "signature")
"""Parts of the names of headers and environment variables with credentials."""
_SECRET_NAME_WORDS = frozenset(
    ("key", "apikey", "token", "secret", "password", "passwd", "passphrase", "pwd", "auth", "authorization", "credential",
     "credentials", "signature", "sig", "jwt", "bearer", "cookie", "sas")
)  # fmt: skip
_DESCRIBING_NAME_WORDS = frozenset(
    ("type", "method", "mode", "scheme", "url", "uri", "id", "name", "header", "env", "file", "path", "ref", "limit")
)
"""A name that ends in one of these words only describes a credential: `auth_type`, `api_key_env`."""
_COMMAND_FIELDS = ("command", "resume", "args", "model_args")
"""Fields of a config that hold words of a command line."""
_WORDS = LazyPattern(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")

KNOWN_KEY_PATTERN = LazyPattern(
    r"""\b(?:
        (?:AKIA|ASIA)[0-9A-Z]{16}                                    # AWS
      | gh[pousr]_[A-Za-z0-9]{36,} | github_pat_[A-Za-z0-9_]{22,} | glpat-[A-Za-z0-9_-]{20,}
      | sk-[A-Za-z0-9_-]{20,} | [rs]k_(?:live|test)_[A-Za-z0-9]{16,}  # OpenAI, Anthropic, Stripe
      | xox[abprs]-[A-Za-z0-9-]{10,} | AIza[0-9A-Za-z_-]{35}          # Slack, Google
      | eyJ[A-Za-z0-9_-]{10,2000}\.eyJ[A-Za-z0-9_-]{10,4000}\.[A-Za-z0-9_-]{10,}
    )(?![A-Za-z0-9])""",
    re.VERBOSE,
)
"""Keys of well-known services."""
_AUTH_SCHEME = LazyPattern(
    r"(?:bearer|basic|token|digest|apikey|api-key|key|negotiate)\s+(\S.*)", re.IGNORECASE | re.DOTALL
)
_USERINFO = LazyPattern(r"(?<=://)[^\s/?#\"'<>]*(?=@)")
_QUERY_PARAMETER = LazyPattern(r"(?<=[?&;#])([^=&;#\s?\"'<>]+)=([^&;#\s\"'<>]+)")
_NAME_AND_VALUE = LazyPattern(
    r"""(?<![^\s"'=])(?:(--?[A-Za-z][\w-]*)(?:=|\s+(?!-))|([A-Za-z][\w-]*)(?:=|:\s*))
        ["']?((?:(?:bearer|basic|token)\s+)?[^\s"']+)""",
    re.IGNORECASE | re.VERBOSE,
)
"""`--token VALUE`, `--token=VALUE`, `NAME=VALUE` and `Header: VALUE` in a command line."""
_REFERENCE = LazyPattern(r"\$\{?\w+\}?|\{\{.*\}\}")
"""A reference to a value."""


def is_secret_name(name: str) -> bool:
    """Does the name of a query parameter, option or field say that its value is a credential?"""
    words = [word.lower() for word in _WORDS.findall(name)]
    return bool(words) and words[-1] not in _DESCRIBING_NAME_WORDS and any(word in _SECRET_NAME_WORDS for word in words)


def is_sensitive_name(name: str) -> bool:
    """Does the name of a header or environment variable say that its value is a credential? More names count than in `is_secret_name`."""
    return any(word in name.lower() for word in _SENSITIVE_NAME_PARTS)


def find_url_credentials(text: str) -> Iterator[str]:
    """The credentials in the URLs of a text: user info, and query parameters with secret names."""
    if "://" not in text and "?" not in text:
        return
    for match in _USERINFO.finditer(text):
        yield from _split_userinfo(match[0])
    for match in _QUERY_PARAMETER.finditer(text):
        if is_secret_name(unquote(match[1])) and not _REFERENCE.search(match[2]):
            yield match[2]
            yield unquote_plus(match[2])


def find_header_credentials(headers: Mapping[str, str]) -> Iterator[str]:
    """The credentials in header values, without `Bearer` and the like: by the header's name or the value's form."""
    for name, value in headers.items():
        yield from find_url_credentials(value)
        yield from KNOWN_KEY_PATTERN.findall(value)
        scheme = _AUTH_SCHEME.fullmatch(value.strip())
        if scheme is None and not is_sensitive_name(name):
            continue
        credential = scheme[1].strip() if scheme else value.strip()
        if _REFERENCE.fullmatch(credential):
            continue
        yield credential
        yield from _decode_basic_credential(credential)
        if "cookie" in name.lower():
            yield from (cookie.partition("=")[2].strip() for cookie in value.split(";"))


def find_environment_credentials(environ: Mapping[str, str]) -> Iterator[str]:
    """The values of variables with sensitive names, and the credentials in URLs."""
    for name, value in environ.items():
        yield from find_url_credentials(value)
        if is_sensitive_name(name) and not _REFERENCE.fullmatch(value):
            yield value


def find_command_credentials(words: str | Sequence[str]) -> Iterator[str]:
    """The credentials in a command line: in options, variables and headers with secret names, and in URLs."""
    text = words if isinstance(words, str) else " ".join(words)
    yield from find_url_credentials(text)
    yield from KNOWN_KEY_PATTERN.findall(text)
    yield from (text[start:end].rpartition(" ")[2] for start, end in _find_secret_values(text))


def find_config_credentials(table: Mapping[str, Any]) -> Iterator[str]:
    """The credentials in a table of the config, at any depth: in fields with secret names, and in URLs."""
    for name, value in table.items():
        match value:
            case str() if name in ("command", "resume", "args", "model_args", "use"):
                yield from find_command_credentials(value)
            case str():
                yield from find_url_credentials(value)
                yield from KNOWN_KEY_PATTERN.findall(value)
                if is_secret_name(name) and not _REFERENCE.search(value):
                    yield value
            case Mapping() if name == "headers":
                yield from find_header_credentials(_to_texts(value))
            case Mapping() if name == "env":
                yield from find_environment_credentials(_to_texts(value))
            case Mapping():
                yield from find_config_credentials(cast("Mapping[str, Any]", value))
            case list() if name in _COMMAND_FIELDS:
                yield from find_command_credentials([str(word) for word in cast("list[Any]", value)])
            case list():
                yield from (
                    secret
                    for item in cast("list[Any]", value)
                    for secret in find_config_credentials({name: item} if item else {})
                )
            case _:
                pass


def mask_url_credentials(text: str) -> str:
    """Masks the credentials in the URLs of a text."""
    if "://" not in text and "?" not in text:
        return text
    text = _USERINFO.sub(lambda match: match[0] if _is_only_references(match[0]) else MASK, text)
    return _QUERY_PARAMETER.sub(_mask_query_parameter, text)


def mask_command(text: str) -> str:
    """Masks the credentials in a command line, also in its options, variables and headers."""
    text, done, pieces = mask_url_credentials(text), 0, list[str]()
    for start, end in _find_secret_values(text):
        pieces += [text[done:start], MASK]
        done = end
    return KNOWN_KEY_PATTERN.sub(MASK, "".join([*pieces, text[done:]]))


def mask_agent_reference(text: str) -> str:
    """Masks an agent of `-n`: a URL, a command line after `acp:`, or a name."""
    return mask_command(text) if text.startswith("acp:") else mask_url_credentials(text)


def mask_config_table(table: Mapping[str, Any]) -> dict[str, Any]:
    """Masks a table of the config; of headers and environments only the names stay."""
    return {name: _mask_field(name, value) for name, value in table.items()}


def _mask_field(name: str, value: Any) -> Any:
    match value:
        case str() if name in _COMMAND_FIELDS:
            return mask_command(value)
        case str() if is_secret_name(name) and not _REFERENCE.search(value):
            return MASK
        case str():
            return KNOWN_KEY_PATTERN.sub(MASK, mask_agent_reference(value))
        case Mapping() if name in ("headers", "env"):
            return sorted(cast("Mapping[str, Any]", value))
        case Mapping():
            return mask_config_table(cast("Mapping[str, Any]", value))
        case list() if name in _COMMAND_FIELDS:
            return _mask_words([str(word) for word in cast("list[Any]", value)])
        case list():
            return [_mask_field(name, item) for item in cast("list[Any]", value)]
        case _:
            return value


def _mask_words(words: list[str]) -> list[str]:
    """Masks a command line as a list: the value of an option may be the next word."""
    after = [""] + [word if word.startswith("-") and "=" not in word else "" for word in words]
    return [
        MASK if is_secret_name(option) and not word.startswith(("-", "$")) else mask_command(word)
        for option, word in zip(after, words, strict=False)
    ]


def _mask_query_parameter(match: re.Match[str]) -> str:
    secret = is_secret_name(unquote(match[1])) and not _REFERENCE.search(match[2])
    return f"{match[1]}={MASK}" if secret else match[0]


def _find_secret_values(text: str) -> Iterator[tuple[int, int]]:
    """The positions of values whose option, variable or header has a secret name. Such an option may itself be the value of
    another option.
    """
    at = 0
    while (match := _NAME_AND_VALUE.search(text, at)) is not None:
        if is_secret_name(match[1] or match[2]) and not _REFERENCE.search(match[3]):
            yield match.span(3)
            at = match.end()
        else:
            at = match.start(3)


def _split_userinfo(text: str) -> Iterator[str]:
    """The secrets in `user:password`: the password, and both together as in a Basic header. A user alone is a token."""
    if _is_only_references(text):
        return
    user, colon, password = text.partition(":")
    yield from (password, unquote(password)) if colon else (user, unquote(user))
    if colon and password:
        yield f"{unquote(user)}:{unquote(password)}"
        yield text


def _is_only_references(userinfo: str) -> bool:
    """Are user and password only references to variables, such as `$USER:$PASSWORD`, and so no secrets?"""
    return all(not part or _REFERENCE.fullmatch(part) for part in userinfo.partition(":")[::2]) or userinfo == MASK


def _decode_basic_credential(credential: str) -> Iterator[str]:
    """The user and password of a Basic header."""
    try:
        pair = base64.b64decode(credential, validate=True).decode()
    except (binascii.Error, ValueError):
        return
    if ":" in pair and pair.isprintable():
        yield pair
        yield pair.partition(":")[2]


def _to_texts(table: Any) -> dict[str, str]:
    return {str(name): str(value) for name, value in cast("Mapping[Any, Any]", table).items()}
