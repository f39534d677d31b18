"""Secrets in whatever is kept or shown."""

from viva.model.message import Reply, ToolCall
from viva.session.redaction import Redactor


def test_secrets_are_replaced_everywhere_in_a_record():
    redactor = Redactor(["sk-secret-1", 'quo"ted\\secret', "geheim-ü"])
    reply = Reply(
        "my sk-secret-1!",
        data={"sk-secret-1": ['a quo"ted\\secret', "geheim-ü"]},
        tool_calls=(ToolCall("t", {"key": "sk-secret-1sk-secret-1"}),),
    )
    clean = redactor.record(reply)
    assert clean.content == "my ***!"
    assert clean.data == {"***": ["a ***", "***"]}
    assert clean.tool_calls[0].arguments == {"key": "******"}
    assert redactor.text('x quo"ted\\secret y') == "x *** y"


def test_a_record_without_secrets_is_the_same_object():
    reply = Reply("nothing to hide")
    assert Redactor(["sk-secret-1"]).record(reply) is reply


def test_the_longest_secret_goes_first():
    """One that holds another leaves no rest behind."""
    assert Redactor(["secret", "secret-and-more"]).text("secret-and-more") == "***"


def test_short_values_are_ordinary_words():
    assert not Redactor(["abc", "12345", ""])
    assert Redactor(["abc"]).text("abc") == "abc"
    assert Redactor(["123456"])
