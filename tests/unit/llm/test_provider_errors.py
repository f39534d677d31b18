"""Whose fault an exception of a Python agent is, with the real clients of model providers against a server on a socket."""

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import pytest

from viva.llm.provider_errors import MODEL_CLIENT_PACKAGES, classify_error
from viva.testing.http_server import HttpServer, StubResponse


def ask_openai(url: str) -> None:
    import openai

    with openai.OpenAI(api_key="k", base_url=url, max_retries=0, timeout=20) as client:
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])


def ask_openai_async(url: str) -> None:
    import openai

    async def ask() -> None:
        async with openai.AsyncOpenAI(api_key="k", base_url=url, max_retries=0, timeout=20) as client:
            await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])

    asyncio.run(ask())


def ask_anthropic(url: str) -> None:
    import anthropic

    with anthropic.Anthropic(api_key="k", base_url=url, max_retries=0, timeout=20) as client:
        client.messages.create(model="m", max_tokens=5, messages=[{"role": "user", "content": "hi"}])


def ask_gemini(url: str) -> None:
    from google import genai
    from google.genai import types

    with genai.Client(api_key="k", http_options=types.HttpOptions(base_url=url)) as client:
        client.models.generate_content(model="m", contents="hi")


CLIENTS = [ask_openai, ask_openai_async, ask_anthropic, ask_gemini]


def raised_by(call: Callable[[], object]) -> BaseException:
    with pytest.raises(BaseException) as caught:
        call()
    return caught.value


@pytest.mark.parametrize("ask", CLIENTS)
@pytest.mark.parametrize(
    ("status", "blame"),
    [(401, "infra"), (403, "infra"), (429, "infra"), (500, "infra"), (503, "infra"), (400, "agent"), (404, "agent")],
)
def test_a_providers_status_decides(ask: Callable[[str], None], status: int, blame: str) -> None:
    body = b'{"error": {"message": "no", "type": "x", "code": %d, "status": "X"}}' % status
    with HttpServer(
        lambda _: StubResponse(status=status, body=body, headers={"Content-Type": "application/json"})
    ) as server:
        raised = raised_by(lambda: ask(server.url))
    assert classify_error(raised).fault == blame, repr(raised)  # N17


@pytest.mark.parametrize("ask", CLIENTS[:3])
def test_a_provider_that_does_not_exist_is_not_the_agents_fault(ask: Callable[[str], None]) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        assert classify_error(raised_by(lambda: ask(url))).fault == "infra"  # N17


def provider_error(status: int = 429) -> Exception:
    """An exception of the openai package, as the table knows it."""
    kind = type("RateLimitError", (Exception,), {"__module__": "openai._exceptions", "status_code": status})
    return kind("slow down")


def wrapped_as_cause() -> None:
    try:
        raise provider_error()
    except Exception as inner:
        raise RuntimeError("the crew failed") from inner


def wrapped_as_context() -> None:
    try:
        raise provider_error()
    except Exception:
        raise KeyError("reply")  # noqa: B904 -- the point


def wrapped_in_a_group() -> None:
    raise ExceptionGroup("workers", [ValueError("x"), ExceptionGroup("inner", [provider_error()])])


def in_a_cycle() -> None:
    error, other = RuntimeError("a"), provider_error()
    error.__cause__, other.__cause__ = other, error
    raise error


@pytest.mark.parametrize("fail", [wrapped_as_cause, wrapped_as_context, wrapped_in_a_group, in_a_cycle])
def test_the_whole_chain_counts(fail: Callable[[], None]) -> None:
    assert classify_error(raised_by(fail)).fault == "infra"  # N17


def test_a_suppressed_context_does_not_count() -> None:
    def fail() -> None:
        try:
            raise provider_error()
        except Exception:
            raise KeyError("reply") from None

    assert classify_error(raised_by(fail)).fault == "agent"


def test_an_exception_that_causes_itself_is_the_agents() -> None:
    def fail() -> None:
        error = RuntimeError("loop")
        raise error from error

    assert classify_error(raised_by(fail)).fault == "agent"


class ToolServerError(Exception):
    status_code = 503


@pytest.mark.parametrize(
    "error",
    [ToolServerError(), ConnectionRefusedError(), socket.gaierror(), ConnectionResetError()],
    ids=lambda error: type(error).__name__,
)
def test_other_servers_may_be_a_tools_or_the_agents_own(error: Exception) -> None:
    assert classify_error(error).fault == "undetermined"  # N17


def test_the_clients_of_http_are_not_those_of_a_provider() -> None:
    import requests

    assert classify_error(raised_by(lambda: requests.get("http://127.0.0.1:1/", timeout=5))).fault == "undetermined"
    with HttpServer(lambda _: StubResponse(status=404, close="announced")) as server:
        error = raised_by(lambda: requests.get(server.url, timeout=300).raise_for_status())
    assert classify_error(error).fault == "agent"
    alone: Any = type("ReadTimeout", (Exception,), {"__module__": "requests.exceptions"})  # nothing else in its chain
    assert classify_error(alone()).fault == "undetermined"
    unrelated: Any = type("ReadTimeout", (Exception,), {"__module__": "agent"})
    assert classify_error(unrelated()).fault == "agent"


@pytest.mark.parametrize("error", [KeyError("x"), TimeoutError(), OSError(2, "no file"), SystemExit(500)], ids=repr)
def test_all_else_is_the_agents(error: BaseException) -> None:
    assert classify_error(error).fault == "agent"


def test_the_config_can_name_more_packages() -> None:
    kind: Any = type("Broken", (Exception,), {"__module__": "acme_llm.client", "status_code": 500})
    assert classify_error(kind()).fault == "undetermined"
    assert classify_error(kind(), MODEL_CLIENT_PACKAGES | {"acme_llm"}).fault == "infra"


def test_an_exception_whose_attributes_raise_is_the_agents() -> None:
    class HostileError(Exception):
        @property
        def status_code(self) -> int:
            raise RuntimeError("no")

        def __str__(self) -> str:
            raise RuntimeError("no")

    assert classify_error(HostileError()).fault == "agent"


def test_an_attribute_that_raises_hides_no_status_beside_it() -> None:
    class HalfHostileError(Exception):
        response = ToolServerError()

        @property
        def status_code(self) -> int:
            raise RuntimeError("no")

    assert classify_error(HalfHostileError()).fault == "undetermined"  # N17
