"""Where credentials stand, and what is left of an address without them."""

import base64

import pytest

from viva.text import credentials


@pytest.mark.parametrize(
    ("text", "found", "masked"),
    [
        ("http://host/chat", set(), "http://host/chat"),
        (
            "http://user:p%40ss@host/?api_key=K1&v=2",
            {"p%40ss", "p@ss", "user:p@ss", "user:p%40ss", "K1"},
            "http://***@host/?api_key=***&v=2",
        ),
        ("https://token@host", {"token"}, "https://***@host"),
        ("http://host/?access_token=a+b%2F", {"a+b%2F", "a b/"}, "http://host/?access_token=***"),
        ("http://host/?X-Amz-Signature=abc&sig=d", {"abc", "d"}, "http://host/?X-Amz-Signature=***&sig=***"),
        ("http://host/?keyword=refund&author=x&auth_type=y", set(), "http://host/?keyword=refund&author=x&auth_type=y"),
        ("http://$USER:$PW@host/?key=${KEY}", set(), "http://$USER:$PW@host/?key=${KEY}"),
        ("http://host/?token={{session_id}}", set(), "http://host/?token={{session_id}}"),
        ("http://host/@name/x", set(), "http://host/@name/x"),
        ("agents:gen?count=3&api_key=K1", {"K1"}, "agents:gen?count=3&api_key=***"),
        ("http://***@host/?key=***", set(), "http://***@host/?key=***"),
    ],
)
def test_the_credentials_of_addresses(text: str, found: set[str], masked: str):
    assert set(credentials.find_url_credentials(text)) - {"***"} == found
    assert credentials.mask_url_credentials(text) == masked
    assert credentials.mask_url_credentials(masked) == masked


def test_the_credentials_of_headers():
    """By name, or by the shape of the value; never the word before a credential."""
    basic = base64.b64encode(b"user:pass-word").decode()
    headers = {
        "Authorization": f"Basic {basic}",
        "X-Api-Key": "literal-1",
        "X-Plain": "Bearer literal-2",
        "Cookie": "theme=dark; sid=literal-3",
        "X-Shape": "sk-abcdefghijklmnopqrstuvwx",
        "Accept": "application/json",
        "X-Token": "{{options.token}}",
        "X-Trace": "ordinary",
    }
    found = set(credentials.find_header_credentials(headers))
    assert {basic, "user:pass-word", "pass-word", "literal-1", "literal-2", "literal-3"} <= found
    assert "sk-abcdefghijklmnopqrstuvwx" in found
    assert not {"application/json", "ordinary", "Bearer literal-2", "{{options.token}}"} & found


def test_the_credentials_of_environments_and_commands():
    env = {"MY_TOKEN": "t-1", "db_password": "t-2", "URL": "postgres://u:t-3@host/db", "LANG": "C", "REF_KEY": "$OTHER"}
    assert set(credentials.find_environment_credentials(env)) == {"t-1", "t-2", "t-3", "u:t-3"}
    command = 'agent --api-key k-1 --token=k-2 PASSWORD=k-3 -H "Authorization: Bearer k-4" --model m --key $KEY'
    assert set(credentials.find_command_credentials(command)) == {"k-1", "k-2", "k-3", "k-4"}
    assert credentials.mask_agent_reference(f"acp:{command}") == (
        'acp:agent --api-key *** --token=*** PASSWORD=*** -H "Authorization: ***" --model m --key $KEY'
    )
    assert credentials.mask_agent_reference("python:./token.py:agent") == "python:./token.py:agent"


def test_a_config_table_is_searched_and_masked_at_any_depth():
    table = {
        "url": "http://u:pw-1@host",
        "token": "literal-1",
        "headers": {"X-Key": "literal-2"},
        "env": {"API_TOKEN": "literal-3"},
        "options": {"api_key": "literal-4", "max_tokens": 7, "api_key_env": "NAME"},
        "command": ["agent", "--token", "literal-5", "--verbose"],
        "tools": [{"name": "t", "secret": "literal-6"}],
        "prompt": "the token is secret",
    }
    found = set(credentials.find_config_credentials(table))
    assert {"pw-1", *(f"literal-{number}" for number in range(1, 7))} <= found
    assert not {"NAME", "t", "agent"} & found
    masked = credentials.mask_config_table(table)
    assert not [secret for secret in found if secret in str(masked) and len(secret) > 3]
    assert masked["options"] == {"api_key": "***", "max_tokens": 7, "api_key_env": "NAME"}
    assert masked["headers"] == ["X-Key"]
    assert masked["command"] == ["agent", "--token", "***", "--verbose"]
    assert masked["prompt"] == "the token is secret"
