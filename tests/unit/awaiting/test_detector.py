"""The awaiting detector: each layer over the ones below it, then how it reads wording."""

import importlib.util
import json
import re
from pathlib import Path
from typing import get_args

import pytest

from viva.awaiting.detector import CONFIRMATION_TOOLS, detect_awaiting
from viva.awaiting.languages import Meaning, _load_language_signs, _move_boundary_inside, _read_sections, load_language
from viva.model.message import Reply, ToolCall
from viva.text.pattern import LazyPattern

ROOT = Path(__file__).parents[3]
DATA = ROOT / "benchmarks" / "data" / "awaiting"


def _load(name: str, path: Path):
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _benchmark():
    return _load("awaiting_benchmark", ROOT / "benchmarks" / "awaiting.py")


def said(text: str) -> tuple[bool, str]:
    found = detect_awaiting(Reply(content=text))
    return found.is_awaiting, found.reason


ASKED = ToolCall("ask_user", {"question": "Which one?"})
ANSWERED = ToolCall("ask_user", {"question": "Which one?"}, result="the red one")


# --- layers, N22 ---


@pytest.mark.parametrize(("declared", "awaiting"), [("awaiting", True), ("done", False)])
def test_the_agents_own_word_beats_every_other_layer(declared, awaiting):
    reply = Reply(
        "Which one?" if declared == "done" else "Done.",
        declared_state=declared,
        protocol_state="completed" if awaiting else "input-required",
        tool_calls=() if awaiting else (ASKED,),
        finish_reason="length",
    )
    found = detect_awaiting(reply)
    assert (found.is_awaiting, found.reason, found.confidence) == (awaiting, "agent_declared", 1.0)


@pytest.mark.parametrize(
    ("state", "awaiting"),
    [
        ("input-required", True),
        ("auth-required", True),
        ("TASK_STATE_INPUT_REQUIRED", True),
        ("session/request_permission", True),
        ("completed", False),
        ("failed", False),
        ("working", False),
    ],
)
def test_a_protocols_state_beats_tools_finish_reason_and_wording(state, awaiting):
    reply = Reply(
        "Done." if awaiting else "Which one?",
        protocol_state=state,
        tool_calls=() if awaiting else (ASKED,),
        finish_reason="length" if awaiting else "stop",
    )
    found = detect_awaiting(reply)
    assert (found.is_awaiting, found.reason) == (awaiting, "protocol_state")


def test_a_state_that_says_nothing_about_waiting_leaves_it_to_the_wording():
    assert detect_awaiting(Reply("Which one?", protocol_state="end_turn")).reason == "content_is_question"


def test_a_pending_confirmation_tool_beats_the_finish_reason_and_wording():
    found = detect_awaiting(Reply("Done.", tool_calls=(ASKED,), finish_reason="tool_calls"))
    assert (found.is_awaiting, found.reason) == (True, "tool_requires_confirmation")


@pytest.mark.parametrize("name", ["mcp.ask_user", "server__ask_user", "ui:ask_user", "tools/ask_user"])
def test_a_confirmation_tool_is_known_behind_a_namespace(name):
    assert detect_awaiting(Reply(tool_calls=(ToolCall(name),))).reason == "tool_requires_confirmation"


@pytest.mark.parametrize("name", ["ask_user_later", "task_user", "ask"])
def test_a_confirmation_tool_is_not_known_by_a_part_of_its_name(name):
    assert not detect_awaiting(Reply("Done.", tool_calls=(ToolCall(name),))).is_awaiting


def test_the_names_of_confirmation_tools_can_be_configured():
    reply = Reply("Done.", tool_calls=(ToolCall("poke_user"),))
    assert not detect_awaiting(reply).is_awaiting
    assert detect_awaiting(reply, CONFIRMATION_TOOLS | {"poke_user"}).reason == "tool_requires_confirmation"


def test_a_confirmation_that_was_answered_within_the_turn_leaves_it_to_the_text_after_it():
    assert said_of(ANSWERED, "I ordered the red one.") == (False, "completed")
    assert said_of(ANSWERED, "Which size?") == (True, "content_is_question")
    assert said_of(ANSWERED, "") == (True, "tool_requires_confirmation")


def test_a_confirmation_that_was_refused_is_no_longer_pending():
    assert said_of(ToolCall("ask_user", error="not allowed"), "I stopped here.") == (False, "completed")


def said_of(call: ToolCall, text: str) -> tuple[bool, str]:
    found = detect_awaiting(Reply(text, tool_calls=(call,)))
    return found.is_awaiting, found.reason


@pytest.mark.parametrize("reason", ["length", "tool_calls", "content_filter", "MAX_TOKENS", "tool_use"])
def test_a_truncated_reply_does_not_wait(reason):
    found = detect_awaiting(Reply("Which one do you want?", finish_reason=reason))
    assert (found.is_awaiting, found.reason) == (False, "finish_reason")


@pytest.mark.parametrize("reason", [None, "stop", "end_turn", "STOP"])
def test_an_ordinary_finish_reason_leaves_it_to_the_wording(reason):
    assert detect_awaiting(Reply("Which one do you want?", finish_reason=reason)).reason == "content_is_question"


# --- wording, N22 ---


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("Which flight would you like?", "content_is_question"),
        ("Please let me know which flight you would like.", "content_is_request"),
        ("Your order was cancelled. Is there anything else I can help with?", "closing_offer"),
        ("Your order was cancelled.", "completed"),
    ],
)
def test_each_kind_of_outcome_has_its_reason(text, reason):
    assert said(text) == (reason != "completed", reason)


def test_a_question_before_a_closing_offer_is_what_counts():
    assert said("Which one do you want? Let me know if you have any questions.")[1] == "content_is_question"


@pytest.mark.parametrize(
    "text",
    [
        "Which one do you want? I'm happy to wait.",
        "Which one do you want?\n1. Red\n2. Blue",
        "Which one do you want?\n\n| Name | Price |\n|---|---|\n| Red | $5 |",
        "Do you want the red one? 🔴",
        "Do you want the red one (yes/no)?",
        "**Do you want the red one?**",
        'Do you want "the red one?"',
        "Should I run it?\n\n```python\nprint('done')\n```",
        "<think>Is it red? I don't know.</think>\nWhich one?",
        "Do you want to include breakfast",
        "I can do that, but could you first tell me\nyour name?",
    ],
)
def test_what_follows_or_wraps_a_question_does_not_hide_it(text):
    assert said(text) == (True, "content_is_question")  # N23


@pytest.mark.parametrize(
    "text",
    [
        "Why does this happen? Because the disk is full.",
        "Can I get a refund? No, the fare is non-refundable.",
        "See https://example.com/search?q=a.",
        "Use `WHERE id = ?` and bind the value.",
        '```sh\nread -p "Continue? "\n```',
        '```sh\nread -p "Continue? ',
        "> When will it arrive?\n\nOn Friday.",
        "<thinking>Should I ask?</thinking>\nIt is booked.",
        'You asked "can I keep both?". You can.',
        "## What changed?\n\nThe parser is faster now.",
        "| Safe? | Yes |\n|---|---|\n| Fast? | Yes |",
        "Here are five interview questions:\n1. Why us?\n2. What are your strengths?",
        "Here is a draft:\n\nSubject: Order\n\nHi Tom,\ncould you send it?\n\nBest,\nAnna",
        "1. Open the settings\n2. Enter your name\n3. Confirm",
        "Please note that the shop closes at six.",
        "If you'd like to cancel, go to the settings.",
        "You can load a part of it if\nyou'd like to save memory.",
        "Please allow five days for delivery.",
        "I've sent a confirmation request to your manager.",
        "Feel free to reach out.",
        "One moment please, I'm checking.",
        "",
        " \n ",
        "?",
    ],
)
def test_what_only_looks_like_a_question_or_a_request_is_none(text):
    assert said(text) == (False, "completed")


def test_the_question_after_a_drafted_letter_counts():
    draft = "Here is a draft:\n\nHi Tom,\n\ncould you send it?\n\nBest,\nAnna\n\nShall I send it?"
    assert said(draft) == (True, "content_is_question")


def test_an_offer_to_go_ahead_is_a_request_and_an_offer_of_more_help_is_not():
    assert said("Let me know if you'd like me to go ahead with the exchange.")[1] == "content_is_request"
    assert said("Let me know if you need anything else.")[1] == "closing_offer"


def test_a_long_reply_is_read_from_its_end():
    story = "It was a quiet day and nothing happened. " * 5000
    assert said("Which one do you want? " + story) == (False, "completed")
    assert said(story + "Which one do you want?") == (True, "content_is_question")


def test_a_request_is_found_above_a_long_list():
    options = "\n".join(f"{number}. Flight {number}" for number in range(1, 40))
    assert said(f"Please choose one of these:\n{options}") == (True, "content_is_request")


@pytest.mark.parametrize(
    "text",
    [
        "Welche soll ich buchen? Beide kosten gleich viel.",
        "Bitte geben Sie Ihre Bestellnummer an.",
        "Veuillez confirmer votre adresse.",
        "Por favor, indíqueme la fecha.",
        "Mi faccia sapere quale preferisce.",
        "Preciso do seu endereço.",
        "Ik heb nog uw postcode nodig.",
        "Proszę podać numer zamówienia.",
        "请提供您的订单号。",
        "您想要哪个尺码？我们有三种。",
        "お名前を教えてください。",
        "よろしいでしょうか。",
        "성함을 알려 주세요.",
        "Укажите номер заказа.",
        "ما هو رقم الحجز؟",
        "Ποιος είναι ο αριθμός;",
        "Ո՞րն է համարը",
        "Lütfen adınızı yazın.",
    ],
)
def test_other_languages_ask_too(text):
    assert said(text)[0]  # N23


@pytest.mark.parametrize(
    "text",
    [
        "Bitte warten Sie einen Augenblick.",
        "Veuillez patienter.",
        "Por favor, espere un momento.",
        "请稍等。",
        "少々お待ちください。",
        "잠시만 기다려 주세요.",
        "Пожалуйста, подождите.",
        "Η κράτηση έγινε; όχι ακόμη.",
        "Warum? Weil die Bank das prüft.",
    ],
)
def test_other_languages_state_and_put_off_too(text):
    assert not said(text)[0]


@pytest.mark.parametrize(
    "text",
    ["Kann ich sonst noch etwas für Sie tun?", "¿Hay algo más en lo que pueda ayudarle?", "还有什么可以帮您的吗？"],
)
def test_closing_offers_are_known_in_other_languages(text):
    assert said(text) == (True, "closing_offer")


# --- questions with facts after them, goodbyes, N23 ---


@pytest.mark.parametrize(
    "text",
    [
        "Would a flight with Alaska Airlines interest you? It leaves at 9:45.",
        "Would a ground-floor room do? It has a small garden. The rent is 400 euros.",
        "Could it be the cable? That is the most common cause.",
        "The refund can go to your card or to an account. Which works better? Both take a day.",
        "**Do you want to continue?**\n\n_This overwrites the file._",
        "Soll ich den Termin absagen? Die Frist endet heute.",
        "Vuole prenotare questo volo? Parte alle 9:45.",
    ],
)
def test_facts_after_a_question_to_the_user_do_not_answer_it(text):
    assert said(text) == (True, "content_is_question")


@pytest.mark.parametrize(
    "text",
    [
        "Would this work in production? Probably not.",
        "Is it safe? In general, yes.",
        "What does this mean for you? From June on, you pay less.",
        "Ever wondered why cats purr? It calms them.",
        "So why does it fail? The lock is taken twice.",
        "Which is better? Rust is faster, Go is simpler.",
        "What would happen then? The server restarts.",
        "**Can I bring my dog?**\nYes, on a leash.",
    ],
)
def test_a_question_that_the_reply_answers_itself_is_none(text):
    assert said(text) == (False, "completed")


@pytest.mark.parametrize(
    "text",
    [
        "OK, let me know, take care!",
        "Alright, just let me know. Bye!",
        "Let us know when you've decided. Have a nice weekend!",
        "Which one would you like? Never mind. Goodbye!",
        "Alles klar, melden Sie sich einfach. Auf Wiedersehen!",
        "De acuerdo, avíseme cuando quiera. ¡Hasta luego!",
        "好的，请告诉我。再见！",
    ],
)
def test_a_goodbye_ends_the_conversation(text):
    assert said(text) == (False, "completed")


@pytest.mark.parametrize(
    "text",
    [
        "OK, let me know.",
        "Let us know when you've decided. I'll keep the offer open.",
        "Which one would you like? Have a nice weekend!",
        "How do you say goodbye in French?",
        "Shall I take care of it?",
        "Please tell me when I may see you.",
        "Please send me the signed form. Have a great day!",
    ],
)
def test_a_wish_or_a_word_of_a_goodbye_does_not_end_it(text):
    assert said(text)[0]


# --- offers without a question, N23 ---


@pytest.mark.parametrize(
    "text",
    [
        "There is a direct United flight at 9:10 am for $205.",
        "There's an Accord available at the airport.",
        "I found 3 restaurants. One is Bella Trattoria in San Jose.",
        "I found 3 films that you might like: Dune, Heat or Alien.",
        "I've found a bus that leaves at 7:40 am. It costs $22.",
        "There are 4 options. There's a 4 star hotel called The Juniper.",
        "Sam's Grill is a nice place in Fremont.",
        "Anna Berg is a highly rated psychologist in your area.",
        "Delta Airlines has a flight with one stop for $180.",
        "A compact car is available at the station tomorrow.",
        "You might like Corner Bistro, a small French restaurant.",
        "No worries, there’s also a salon in Easton called Shear Joy.",
        "Dr. Okafor has an opening on Tuesday at 9:30.",
        "I could move you to the evening class for an extra $35.",
        "I can send you a replacement free of charge.",
        "Another option is the smaller model at $41 a day.",
        "I found a two-bedroom flat on Elm Street for $1,450 a month.",
        "The next available slot is Friday at 2 pm.",
        "I'd recommend the Marlow Inn. Its address is 12 Quay Street.",
        "I would definitely suggest visiting the glass museum, admission is £6.",
        "There is also the Hopper Gallery in the west of the city.",
        "There's Bellweather, a small bakery on the south side of town.",
        "I have the Old Mill on the north side of town.",
        "You could try Nonna Lina, which is at 4 Harbour Street.",
        "Maple Court would be a good choice for you.",
        "The Lantern is the only place that matches your budget.",
        "The clock tower is a must-see.",
        "Low Tide is playing at the Rex on Friday at 8 pm.",
        "I can make that reservation for you.",
        "I managed to find a studio near the harbour.",
    ],
)
def test_a_thing_to_take_or_leave_is_a_request_of_low_confidence(text):
    found = detect_awaiting(Reply(text))
    assert (found.is_awaiting, found.reason, found.confidence) == (True, "content_is_request", 0.6)


@pytest.mark.parametrize(
    "text",
    [
        "I found the bug in parser.py and fixed it.",
        "There is a test for this in tests/.",
        "I found 3 failing tests: a, b and c.",
        "There are two ways to do this. The first is shorter.",
        "There is a flight delay of two hours.",
        "There is a hotel class in the code.",
        "There are 12 hotels in the north.",
        "There are no flights on that day.",
        "There is a $50 fee for the flight.",
        "I found a hotel and booked it for you. It costs $120.",
        "It is a 4 star hotel.",
        "The flight leaves at 9:10 am and costs $205.",
        "The film is a great one.",
        "I couldn't find a hotel.",
        "There is a car in the picture.",
        "There are a few options that might interest you.",
        "There is a known issue with version 2.3 for $40 licences.",
        "I found a memory leak that costs $40 a day.",
        "I can confirm that your payment of $40 arrived.",
        "We can add 3 to both sides of the equation.",
        "I've moved you to the evening class for an extra $35.",
        "I recommend against that, it costs $40.",
        "The next available version with this fix is 4.2.",
        "Oslo is a lovely city in Norway.",
        "Great, I got you three seats for $48. Your reference number is QX77.",
        "I have a red van picking you up at 9:15.",
        "I suggest restarting the router in the west of the building.",
        "I recommend PostgreSQL here.",
        "I would suggest the second approach.",
        "Its address is 12 Quay Street, and the phone number is 555-0199.",
        "I have the receipt for $40.",
        "I found the clinic. Its phone number is 555-0199.",
        "There is the entrance fee of $4.",
        "You can take the second exit on the north side of town.",
        "You should see the change on Monday.",
        "The server is playing dead on Friday.",
        "There is an alarm for the school run at 7:15 am.",
    ],
)
def test_what_only_sounds_like_an_offer_is_none(text):
    assert said(text) == (False, "completed")


def test_only_a_short_reply_of_sentences_can_be_an_offer():
    offer = "There is a direct flight at 9 am."
    assert said(offer)[0]
    assert not said(f"{offer}\nIt is run by a small airline.")[0]
    assert not said(f"{offer} It uses `{{}}` as a sign.")[0]
    assert said(f"{offer} It passes hills{' and small bays' * 10}.")[0]
    assert not said(f"{offer} It passes hills{' and small bays' * 30}.")[0]


def test_a_closing_after_an_offer_is_still_a_closing():
    assert said("There is a direct flight at 9 am. Is there anything else?") == (True, "closing_offer")


# --- patterns ---


def test_a_pattern_is_compiled_when_it_is_first_used():
    pattern = LazyPattern("^a+")
    assert set(vars(pattern)) == {"source", "flags"}
    assert pattern.fits("aab") is not None
    assert pattern.fits("baa") is None
    assert pattern.search("baa") is None
    assert set(vars(pattern)) == {"source", "flags", "fits", "search"}


def test_reading_english_loads_no_table_of_another_language():
    fresh = _load("fresh_languages", ROOT / "src" / "viva" / "awaiting" / "languages.py")
    assert fresh.load_language.cache_info().currsize == 0  # nothing is read on import
    assert fresh.detect_language("Which of the two do you want?").name == "english"
    assert fresh.load_language.cache_info().currsize == 1


TABLES = sorted(path.stem for path in (ROOT / "src" / "viva" / "awaiting" / "words").glob("*.txt"))


@pytest.mark.parametrize("name", [name for name in TABLES if name != "languages"])
def test_every_pattern_of_a_table_compiles_and_every_language_asks(name):
    language = load_language(name)
    rules = [rule for _, rule in language.rules.rows]
    for pattern in (language.answers, language.presents, *(pattern for pattern, _ in rules)):
        pattern.search("")
        assert "<" not in pattern.source.replace("(?<", ""), "a name that is not filled in"
    assert {"nothing", "closing", "question", "request"} <= {meaning for _, meaning in rules}


SENTENCES = [
    sentence.lower()
    for line in (Path(__file__).parent / "replies.jsonl").read_text().splitlines()
    for sentence in re.split(r"(?<=[.?!]) ", json.loads(line)["text"])
]


def test_the_index_finds_the_rules_whose_needle_is_in_a_sentence():
    language = load_language("english")
    for index in (language.rules, language.offers):
        for sentence in [*SENTENCES, "", "you2 you", "4you", "x" * 50 + "you", "is12 there 5 any3"]:
            assert list(index.find_rows(sentence)) == [row for needle, row in index.rows if needle in f"^{sentence}"]


def test_a_pattern_without_a_word_boundary_at_its_start_matches_the_same():
    language = load_language("english")
    patterns = [pattern for _, (pattern, _) in language.rules.rows] + [
        pattern for _, (_, pattern) in language.offers.rows
    ]
    bound = [pattern for pattern in (*patterns, language.settled) if pattern.source.startswith(r"\b")]
    assert len(bound) > 100
    for pattern in bound:
        assert not _move_boundary_inside(pattern.source).startswith(r"\b")
        plain = re.compile(pattern.source)
        for sentence in SENTENCES:
            assert (pattern.search(sentence) is None) == (plain.search(sentence) is None), (pattern.source, sentence)


@pytest.mark.parametrize("source", [r"\b[ab]c", r"\b(?:a|\d)", r"\ba?b", r"\b(?:ab)?c", r"^a", "a"])
def test_a_pattern_that_may_start_with_anything_is_left_alone(source):
    assert _move_boundary_inside(source) == source


def test_no_table_has_a_section_that_nothing_reads():
    rows = {*get_args(Meaning), "offer"}
    patterns = {"answers", "presents", "direct", "settled"}
    for name in TABLES:
        assert set(_read_sections(name)) <= ({"script", "common"} if name == "languages" else rows | patterns), name


def test_every_table_is_reached_by_a_script_or_by_common_words():
    scripts, common = _load_language_signs()
    assert sorted([name for _, name in (*scripts, *common)] + ["languages"]) == TABLES


# --- the measure, N23 ---


@pytest.mark.parametrize(("name", "at_least"), [("dev.jsonl", 600), ("holdout.jsonl", 200)])
def test_the_goal_of_precision_and_recall_is_met(name, at_least):
    benchmark = _benchmark()
    lines, problems = benchmark.read([DATA / name])
    assert problems == []
    assert len(lines) >= at_least
    measured = benchmark.measure(lines)
    assert measured.precision >= 0.97, measured.misses
    assert measured.recall >= 0.95, measured.misses


def _replies(split: str) -> list[dict[str, str]]:
    lines = (Path(__file__).parent / "replies.jsonl").read_text("utf-8").splitlines()
    return [reply for line in lines if (reply := json.loads(line))["split"] == split]


@pytest.mark.parametrize(
    ("split", "precision", "recall", "offers"), [("tuning", 0.98, 0.99, 0.99), ("held_out", 0.99, 0.9, 0.9)]
)
def test_plain_offers_are_found_without_false_alarms(split, precision, recall, offers):
    """The rules were written with the misses of the tuning half in sight, never with those of the other half."""
    replies = [reply for reply in _replies(split) if reply["kind"] != "closing"]
    assert len(replies) >= 150
    called = [reply["kind"] for reply in replies if said(reply["text"])[0]]
    right = [kind for kind in called if kind != "completed"]
    kinds = [reply["kind"] for reply in replies]
    assert len(right) / len(called) >= precision
    assert len(right) / (kinds.count("awaiting") + kinds.count("offer")) >= recall
    assert right.count("offer") / kinds.count("offer") >= offers


def test_the_goal_is_well_above_the_specifications_three_patterns():
    benchmark = _benchmark()
    lines, _ = benchmark.read([DATA / "holdout.jsonl"])
    floor = benchmark.measure(lines, benchmark.by_specification)
    assert floor.recall + 0.3 < benchmark.measure(lines).recall


def test_the_benchmark_names_each_line_that_it_cannot_read(tmp_path, capsys):
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"text": "Which?", "awaiting": true}\n{"text": "Which?"}\nnonsense\n', encoding="utf-8")
    assert _benchmark().main([str(bad)]) == 4
    told = capsys.readouterr().err.splitlines()
    assert [line.split(": ")[0] for line in told] == [f"{bad}:2", f"{bad}:3"]


def test_the_benchmark_leaves_closing_lines_out_and_counts_a_closing_offer_as_awaiting(tmp_path):
    benchmark = _benchmark()
    file = tmp_path / "some.jsonl"
    file.write_text(
        '{"text": "Anything else?", "awaiting": true, "closing": true}\n{"text": "Anything else?", "awaiting": false}\n',
        encoding="utf-8",
    )
    measured = benchmark.measure(benchmark.read([file])[0])
    assert (measured.left_out, measured.called, measured.found) == (1, 1, 0)
