"""What may stand around a reply, and what may follow it, without changing whether the agent waits."""

import json
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from viva.awaiting.detector import detect_awaiting
from viva.awaiting.languages import detect_language
from viva.model.message import Reply

REPLIES = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "unit" / "awaiting" / "replies.jsonl").read_text("utf-8").splitlines()
]
ENGLISH = [reply["text"] for reply in REPLIES if detect_language(reply["text"]).name == "english"]
ONE_LINE = [text for text in ENGLISH if not set(text) & set('\n*_`"')]

QUESTIONS = {
    "english": [
        "Would a flight with Alaska Airlines interest you?",
        "Which of these would you like?",
        "Do you want me to send it?",
        "Shall I book it?",
        "Would the early train suit you?",
        "Are you happy with that?",
        "What is your order number?",
        "Should I delete the old branch?",
        "How many tickets do you need?",
    ],
    "german": ["Möchten Sie diesen Flug nehmen?", "Soll ich ihn buchen?", "Wie viele Karten brauchen Sie?"],
    "french": ["Souhaitez-vous ce vol ?", "Voulez-vous que je le réserve ?"],
    "spanish": ["¿Quiere usted este vuelo?", "¿Desea que lo reserve?"],
    "italian": ["Vuole prenotare questo volo?"],
    "portuguese": ["Você quer reservar este voo?"],
    "dutch": ["Wilt u deze vlucht boeken?"],
}
FACTS = {
    "english": [
        "It leaves at 9:45.",
        "The fare is $120.",
        "There is one seat left.",
        "They open at nine.",
        "Both take about an hour.",
    ],
    "german": ["Er startet um 9:45 Uhr.", "Die Karte kostet 20 Euro."],
    "french": ["Il part à 9 h 45.", "Le billet coûte 20 euros."],
    "spanish": ["Sale a las 9:45.", "El billete cuesta 20 euros."],
    "italian": ["Parte alle 9:45.", "Il biglietto costa 20 euro."],
    "portuguese": ["Ele sai às 9h45.", "A passagem custa 20 euros."],
    "dutch": ["Hij vertrekt om 9:45 uur.", "Het kaartje kost 20 euro."],
}
GOODBYES = {
    "english": ["Goodbye!", "Bye!", "Take care!", "Thanks, bye for now.", "See you next week!", "Okay, take care!"],
    "german": ["Auf Wiedersehen!", "Tschüss!"],
    "french": ["Au revoir !", "À bientôt !"],
    "spanish": ["¡Hasta luego!", "Adiós."],
    "italian": ["Arrivederci!"],
    "portuguese": ["Tchau!", "Até logo!"],
    "dutch": ["Tot ziens!"],
}


def awaits(text: str) -> bool:
    return detect_awaiting(Reply(text)).is_awaiting


@given(data=st.data(), language=st.sampled_from(sorted(QUESTIONS)))
def test_facts_after_a_question_to_the_user_keep_it_waiting(data, language):  # N23
    question = data.draw(st.sampled_from(QUESTIONS[language]))
    facts = data.draw(st.lists(st.sampled_from(FACTS[language]), min_size=1, max_size=3))
    assert awaits(" ".join([question, *facts]))


@given(data=st.data(), language=st.sampled_from(sorted(QUESTIONS)))
def test_a_goodbye_at_the_end_leaves_nothing_to_wait_for(data, language):  # N23
    text = data.draw(st.sampled_from(QUESTIONS[language]))
    goodbye = data.draw(st.sampled_from(GOODBYES[language]))
    assert not awaits(f"{text} {goodbye}")


@pytest.mark.parametrize("goodbye", GOODBYES["english"])
def test_a_goodbye_ends_any_reply(goodbye):
    assert [text for text in ENGLISH if awaits(f"{text}\n\n{goodbye}")] == []


WRAPPERS = ["{} 😊", "🎉 {}", "**{}**", "_{}_", '"{}"', "“{}”", "\n\n{}\n", "<think>Which one? Hm.</think>\n{}"]


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_emoji_quotes_and_markdown_around_a_reply_do_not_matter(wrapper):  # N23
    assert [text for text in ONE_LINE if awaits(wrapper.replace("{}", text)) != awaits(text)] == []


PIECES = [
    "there is a ",
    "i found 3 ",
    "bye ",
    "```",
    "`",
    '"',
    "*",
    "?",
    "\n",
    "- ",
    "(",
    "</think>",
    "Subject:",
    "would you ",
    "¿",
    "か",
    "؟",
]


@given(st.one_of(st.text(), st.lists(st.sampled_from(PIECES), max_size=60).map("".join)))
@example("\ud800")
@example("\x00?")
def test_no_text_is_too_strange(text):
    found = detect_awaiting(Reply(text))
    assert found.reason in {"content_is_question", "content_is_request", "closing_offer", "completed"}
    assert 0 <= found.confidence <= 1


@pytest.mark.parametrize("before", ["Which one do you want? ", "It was fine. ", "Please tell me.\n", "- one\n"])
@given(text=st.sampled_from(ENGLISH))
def test_only_the_end_of_a_long_reply_is_read_so_time_does_not_grow_with_it(before, text):  # N23
    once = before * (8000 // len(before))
    assert detect_awaiting(Reply(once + "\n\n" + text)) == detect_awaiting(Reply(once * 5 + "\n\n" + text))
