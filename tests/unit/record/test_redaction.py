"""Secrets in whatever is kept or shown."""

import html
import json
from base64 import b64encode, urlsafe_b64encode
from urllib.parse import quote, quote_plus

import pytest

from viva.checks.formatting import quote_value
from viva.model import codec
from viva.model.ellipsis import cut_end, cut_start, decode_end, decode_start
from viva.model.message import Reply, ToolCall
from viva.record.redaction import MIN_SECRET_LENGTH, Redactor


def test_secrets_are_replaced_everywhere_in_a_record():
    redactor = Redactor(["sk-secret-1", 'quo"ted\\secret', "geheim-ü"])
    reply = Reply(
        "my sk-secret-1!",
        data={"sk-secret-1": ['a quo"ted\\secret', "geheim-ü"]},
        tool_calls=(ToolCall("t", {"key": "sk-secret-1sk-secret-1"}),),
    )
    clean = redactor.redact(reply)
    assert clean.content == "my ***!"
    assert clean.data == {"***": ["a ***", "***"]}
    assert clean.tool_calls[0].arguments == {"key": "******"}
    assert redactor.redact_text('x quo"ted\\secret y') == "x *** y"


def test_a_record_without_secrets_is_the_same_object():
    reply = Reply("nothing to hide")
    assert Redactor(["sk-secret-1"]).redact(reply) is reply


def test_the_longest_secret_goes_first():
    """One that holds another leaves no rest behind."""
    assert Redactor(["secret", "secret-and-more"]).redact_text("secret-and-more") == "***"


def test_a_value_is_found_in_every_form_that_it_takes_in_a_report():
    """P6: within JSON, with its line breaks made visible, line by line, and cut short."""
    value = 'first "line" ü\nand the second\\line'
    redactor = Redactor([value])
    for text in (
        value,
        json.dumps(value),
        json.dumps(value, ensure_ascii=False),
        json.dumps(json.dumps(value)),
        quote_value(value),
        quote_value(value, 20),
        f"@@ -0 +1 @@\n+{value.splitlines()[0]}\n+{value.splitlines()[1]}",
    ):
        clean = redactor.redact_text(text) + str(redactor.redact(Reply(text)).content)
        assert "first" not in clean, text
        assert "second" not in clean, text
        assert "***" in clean


SECRET = "sk-proj/Zürich+4711<&>0123456789"


@pytest.mark.parametrize("limit", range(10, 45))
def test_no_part_of_a_secret_stays_beside_a_cut(limit: int):
    """What is cut before it is redacted has an ellipsis where it was cut: at the end, at the start, or on both sides."""
    redactor = Redactor([SECRET])
    said = f"it says {SECRET} and goes on"
    start, end = cut_start(said, limit), cut_end(said, limit)
    for text in (start, end, cut_end(start, 12), cut_start(end, 12), f"{end} and {start}"):
        clean = redactor.redact_text(text) + redactor.redact(Reply(text)).content
        left = [clean[at : at + MIN_SECRET_LENGTH] for at in range(len(clean))]
        assert not [part for part in left if len(part) == MIN_SECRET_LENGTH and part in SECRET], (text, clean)


def test_no_part_of_a_secret_stays_where_bytes_are_cut():
    """P6: also if the cut is in the middle of a character."""
    secret = "schlüßel-größe-überall"
    redactor, said = Redactor([secret]), f"key {secret} is wrong".encode()
    for at in range(12, len(said)):
        for text in (decode_start(said, at), decode_end(said[-at:])):
            clean = redactor.redact_text(text)
            assert not [part for part in (secret[:6], secret[-6:]) if part in clean], text


def test_what_only_ends_alike_is_left_alone():
    redactor = Redactor(["https://host-1/path"])
    for text in ("…st-2/path", "…path", "ost-1/path", "… ost-1/path", "a … b … c"):
        assert redactor.redact_text(text) == text


@pytest.mark.parametrize(
    "text",
    [
        SECRET.replace("/", "\\/"),  # as PHP writes JSON
        json.dumps(SECRET)[1:-1].replace("/", "\\/"),
        json.dumps(SECRET)[1:-1].replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"),  # Go
    ],
)
def test_json_of_other_languages_hides_no_secret(text: str):
    redactor = Redactor([SECRET])
    assert redactor.redact_text(f'{{"key": "{text}"}}') == '{"key": "***"}'
    assert redactor.redact(Reply(text)).content == "***"


@pytest.mark.parametrize(
    "text",
    [
        quote(SECRET, safe=""),
        quote_plus(SECRET)
        .replace("%C3", "%c3")
        .replace("%BC", "%bc")
        .replace("%2B", "%2b")
        .replace("%3C", "%3c")
        .replace("%3E", "%3e")
        .replace("%2F", "%2f"),
        html.escape(SECRET),
        b64encode(f"user:{SECRET}".encode()).decode(),
        urlsafe_b64encode(SECRET.encode()).decode(),
    ],
)
def test_a_secret_that_is_encoded_is_found(text: str):  # 12.3
    clean = Redactor([SECRET]).redact_text(f"it was {text}.")
    assert "***" in clean
    assert not any(text[at : at + 12] in clean for at in range(8, len(text) - 12)), clean


def test_a_secret_on_one_line_is_found():
    """Error messages have single spaces."""
    redactor = Redactor(["two  words\tand\nmore", "a     b"])
    assert redactor.redact_text("it was two words and more") == "it was ***"
    assert redactor.redact_text("a b") == "a b"


def test_what_only_begins_alike_is_left_alone():
    assert Redactor(["https://host-1/path"]).redact_text("https://host-2 https://host-1/… https://host-1/path") == (
        "https://host-2 ***… ***"
    )


@pytest.mark.parametrize("value", ["plain-value", 'quo"ted \\ ü', "two lines of it\nof which each is long"])
def test_a_cassette_keeps_names_for_which_a_replay_has_values_again(value: str):
    output = Reply(f"<{value}> {json.dumps({'a': value})}", data={value: [json.dumps(value, ensure_ascii=False)]})
    redactor = Redactor(["sk-secret-1"], {"TOKEN": value})
    taped = redactor.hide_secrets(output)
    assert redactor.hide_secrets("sk-secret-1") == "***"  # what has no name is gone for good
    assert "***TOKEN***" in taped.content
    assert codec.encode(value)[1:-1] not in codec.encode(taped)
    assert redactor.restore_secrets(taped) == output
    assert b"TOKEN" not in codec.encode(Redactor([], {"TOKEN": "another"}).restore_secrets(taped))


def test_short_values_are_ordinary_words():
    assert Redactor().redact_text("a…b…c") == Redactor(["abc"]).redact_text("a…b…c") == "a…b…c"
    assert not Redactor(["abc", "12345", ""])
    assert Redactor(["abc"]).redact_text("abc") == "abc"
    assert Redactor(["123456"])
