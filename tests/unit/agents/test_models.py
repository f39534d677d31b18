"""Which agent stands for a model, which connector a call goes through, and the schemas that providers take."""

from typing import Any

import pytest

from model_conversations import hold_conversation, only
from viva.agents.anthropic import AnthropicAgent
from viva.agents.chat import ChatAgent
from viva.agents.gemini_api import GeminiAgent
from viva.agents.models import build_model_agent, choose_connector
from viva.agents.responses import ResponsesAgent
from viva.agents.strict_schema import forbid_additional_properties, is_strict
from viva.errors import BadInput, Unreachable
from viva.model.connector import Connector, Connectors, Secret
from viva.testing import Say


@pytest.mark.parametrize(
    ("provider", "agent"), [("openai", ChatAgent), ("anthropic", AnthropicAgent), ("gemini", GeminiAgent)]
)
def test_the_provider_decides_on_the_agent(provider: str, agent: type):
    connector = Connector(name="c", provider=provider, model="m")
    assert type(build_model_agent(connector, "s", {"type": "object"}, max_tool_rounds=3)) is agent


def test_an_unknown_provider_is_named():
    with pytest.raises(BadInput, match="connector 'c': unknown provider 'acme'"):
        build_model_agent(Connector(name="c", provider="acme"))


def test_a_connector_is_chosen_by_the_options():  # N20
    own, big = Connector(name="own"), Connector(name="big")
    assert choose_connector({}, own, {"big": big}) is own
    assert choose_connector({"connector": "own"}, own, {}) is own
    assert choose_connector({"connector": "big"}, own, {"big": big}) is big
    with pytest.raises(Unreachable, match="there is no connector 'huge'; known: big"):
        choose_connector({"connector": "huge"}, own, {"big": big})


def test_a_well_known_model_can_be_asked_for_as_a_connector():  # P3
    default = Connector(name="anthropic", provider="anthropic", is_built_in=True)
    found = choose_connector({"connector": "claude-x"}, Connector(name="own"), Connectors({}, {"anthropic": default}))
    assert (found.provider, found.model) == ("anthropic", "claude-x")


def test_another_model_can_be_asked_for():
    """P3: `agent_model` of a playbook, or --agent-model."""
    own = Connector(name="own", model="small")
    assert choose_connector({"model": "small"}, own, {}) is own
    assert choose_connector({"model": "large"}, own, {}).model == "large"
    assert choose_connector({"model": "large", "connector": "big"}, own, {"big": Connector(name="big")}).name == "big"


def test_a_seed_is_refused_where_the_api_has_none():
    with pytest.raises(ValueError, match="does not take `seed`"):
        Connector(name="c", provider="anthropic", seed=1)
    assert Connector(name="c", provider="gemini", seed=1).seed == 1


@pytest.mark.parametrize(
    ("model", "thinks"),
    [
        ("gpt-4o-mini", False),
        ("gpt-4.1", False),
        ("ft:gpt-4o-2024-08-06:acme::x", False),
        ("openai/gpt-4o", False),
        ("gpt-5-chat-latest", False),
        ("gpt-5-mini", True),
        ("o3", True),
        ("my-deployment", True),
    ],
)
def test_what_a_model_thought_is_asked_for_only_where_it_thinks(model: str, thinks: bool):
    """The Responses API answers 400 for the others: "Encrypted content is not supported with this model"."""
    connector = {"api": "responses", "model": model}
    conversation = hold_conversation(["ok"], "?", agent=ResponsesAgent, connector=connector)
    assert conversation.sent.get("include") == (["reasoning.encrypted_content"] if thinks else None)
    own = hold_conversation(["ok"], "?", agent=ResponsesAgent, connector=connector, body={"include": []})
    assert own.sent["include"] == []


OPEN: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "string"}}}
CLOSED = OPEN | {"additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (OPEN, CLOSED),
        (CLOSED, CLOSED),
        (OPEN | {"additionalProperties": True}, OPEN | {"additionalProperties": True}),
        ({"type": "array", "items": OPEN}, {"type": "array", "items": CLOSED}),
        ({"anyOf": [OPEN, {"type": "null"}]}, {"anyOf": [CLOSED, {"type": "null"}]}),
        ({"$defs": {"x": OPEN}, "$ref": "#/$defs/x"}, {"$defs": {"x": CLOSED}, "$ref": "#/$defs/x"}),
        ({"enum": [{"type": "object"}]}, {"enum": [{"type": "object"}]}),
        ({"type": ["object", "null"]}, {"type": ["object", "null"], "additionalProperties": False}),
        ({"type": "string"}, {"type": "string"}),
        (True, True),
    ],
)
def test_objects_are_closed_unless_they_say_otherwise(schema: Any, expected: Any):
    before = repr(schema)
    assert forbid_additional_properties(schema) == expected
    assert repr(schema) == before


@pytest.mark.parametrize(
    ("schema", "strict"),
    [
        (CLOSED | {"required": ["a"]}, True),
        (CLOSED, False),
        (OPEN | {"required": ["a"]}, False),
        ({"type": "array", "items": CLOSED}, False),
        ({"type": "string"}, True),
        ({"anyOf": [CLOSED | {"required": ["a"]}, {"type": "null"}]}, True),
    ],
)
def test_only_what_is_closed_and_required_is_strict(schema: Any, strict: bool):
    assert is_strict(schema) is strict


def test_a_schema_that_cannot_be_strict_is_sent_all_the_same():
    """OpenAI refuses a strict schema with an optional property."""
    conversation = hold_conversation(["{}", "{}"], "a", output=OPEN)
    assert conversation.sent["response_format"]["json_schema"] == {"name": "answer", "schema": CLOSED, "strict": False}
    conversation = hold_conversation(["{}"], "a", output=CLOSED | {"required": ["a"]})
    assert conversation.sent["response_format"]["json_schema"]["strict"] is True
    assert only(conversation).content == "{}"


def test_the_format_that_a_config_writes_wins():
    conversation = hold_conversation(["{}"], "a", output=OPEN, body={"response_format": {"type": "json_object"}})
    assert conversation.sent["response_format"] == {"type": "json_object"}


AZURE = "https://x.openai.azure.com/openai/deployments/d?api-version=2024-10-21"


@pytest.mark.parametrize(
    ("base_url", "header", "value"),
    [
        (AZURE, "api-key", "k"),
        ("https://x.services.ai.azure.com/openai/v1", "api-key", "k"),
        ("https://api.openai.com/v1", "Authorization", "Bearer k"),
        ("http://localhost/x.openai.azure.com/v1", "Authorization", "Bearer k"),
    ],
)
def test_azure_gets_its_key_in_its_own_header(base_url: str, header: str, value: str):
    connector = Connector(name="c", base_url=base_url, api_key=Secret("k"))
    headers = ChatAgent(connector=connector).get_endpoint(connector).headers
    assert {name: headers[name] for name in headers if name != "Content-Type"} == {header: value}


def test_azure_is_addressed_by_deployment_and_version():
    connector = Connector(name="c", base_url=AZURE)
    url = ChatAgent(connector=connector).get_endpoint(connector).url
    assert url == "https://x.openai.azure.com/openai/deployments/d/chat/completions?api-version=2024-10-21"


def test_a_gateway_before_azure_gets_the_header_that_the_config_gives():
    conversation = hold_conversation([Say(content="x")], "a", connector={"headers": {"api-key": "azure"}})
    headers = conversation.server.requests[0].headers
    assert headers["api-key"] == "azure"
    assert "authorization" not in headers
