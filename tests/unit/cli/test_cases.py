"""Single-turn and static cases from `-i` to the report: what each rule makes of them."""

import json

from project import Project, case, contains


def test_a_failing_turn_ends_the_case_and_all_its_checks_are_shown(project: Project):
    """All assertions of the turn are evaluated; later turns are listed as not run."""
    project.suite(
        {
            "id": "stops",
            "turns": [
                {"input": "one", "assertions": [contains("one")]},
                {"input": "two", "assertions": [contains("2"), contains("two"), contains("zwei")]},
                {"input": "three", "assertions": [contains("three")]},
                {"input": "four"},
            ],
            "final_assertions": [contains("four")],
        }
    )
    ended, (record,) = project.report(code=1)  # N35
    assert record["status"] == "failed"  # N10
    assert record["fault"] == "agent"  # N17
    assert [turn["input"] for turn in record["turns"]] == ["one", "two"]
    assert [each["passed"] for each in record["turns"][1]["assertions"]] == [False, True, False]
    assert record["turns_not_run"] == ["three", "four"]
    assert record["final_assertions"] == []  # N12: only after a conversation without failure
    assert len(record["assertion_errors"]) == 2
    assert 'contains "zwei"' in ended.out


def test_a_broken_check_is_an_error_and_not_a_failure(project: Project):
    """What cannot be evaluated is an error, also when negated; a proven failure beside it wins."""
    broken = {"type": "max_cost", "value": 1}  # an agent that tells no usage has no known price
    project.write(
        "agent.py",
        "def agent(messages):\n    return {'content': messages[-1]['content'], 'usage': {'input_tokens': 5}}\n",
    )
    project.suite(
        case("error", assertions=[broken]),
        case("negated", assertions=[broken | {"negate": True}]),
        case("failed", assertions=[broken, contains("bye")]),
    )
    _, records = project.report(code=1)
    assert [(r["status"], r["fault"]) for r in records] == [
        ("error", "undetermined"),
        ("error", "undetermined"),
        ("failed", "agent"),
    ]  # N24, N10, N17
    assert records[0]["turns"][0]["assertions"][0]["passed"] is None


def test_nothing_passes_on_zero_checks(project: Project):
    """Skipped with a hint; if that is all there was, the exit code says so."""
    project.suite({"id": "bare", "input": "hello."}, {"id": "asks", "turns": [{"input": "What is your number?"}]})
    ended, records = project.report(code=5)  # N11, N35
    assert [record["status"] for record in records] == ["skipped", "skipped"]
    assert records[0]["error"] == "nothing was checked"
    assert "assertions" in records[0]["hint"]
    assert records[1]["error"] == "Agent awaiting input, no next turn defined"
    assert records[1]["hint"] == "Add more turns, use --interactive, or configure simulator"
    assert "2 skipped" in ended.out


def test_what_happens_when_the_agent_still_waits_is_for_the_case_to_say(project: Project):
    """`on_missing_input`, or its flag, decides; without either the checks do."""
    asking = {"input": "Which one?", "assertions": [contains("Which")]}
    project.suite(
        {"id": "default", **asking},
        {"id": "skip", "on_missing_input": "skip", **asking},
        {"id": "fail", "on_missing_input": "fail", **asking},
        {"id": "end", "on_missing_input": "end", **asking},
    )
    _, records = project.report()
    assert [r["status"] for r in records] == ["passed", "skipped", "failed", "passed"]  # N11
    _, records = project.report("--on-missing-input", "fail")
    assert [r["status"] for r in records] == ["failed"] * 4


def test_a_skipped_case_is_neither_run_nor_counted_against_anybody(project: Project):
    """`skip` with its reason; skips are allowed in a passing run."""
    project.suite(case("a"), case("b", skip=True), case("c", skip="waits for issue 12"))
    _, records = project.report(code=0)  # N35
    assert [record["status"] for record in records] == ["passed", "skipped", "skipped"]
    assert records[2]["error"] == "waits for issue 12"
    assert records[1]["turns"] == []


def test_a_tag_that_is_written_twice_counts_once(project: Project):
    """Also from the hundredth case of a file on, where cases are built by decoding them."""
    project.suite(*(case(f"c{number}", tags=["b", "a", "b"]) for number in range(120)))
    _, records = project.report(code=0)
    assert {tuple(record["tags"]) for record in records} == {("b", "a")}


def test_history_comes_first_and_the_last_message_is_sent(project: Project):
    """A list of messages is prior history; every turn gets the full history and the same session id."""
    project.write(
        "agent.py",
        "import json\n"
        "def agent(messages, options):\n"
        "    return json.dumps({'roles': [m['role'] for m in messages], 'last': messages[-1]['content'],\n"
        "                       'session': options['session_id'], 'referer': options['referer']})\n",
    )
    prior = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello"},
    ]
    project.suite(
        {
            "id": "h",
            "turns": [
                {
                    "input": [*prior, {"role": "user", "content": "Next"}],
                    "assertions": [{"type": "json_path", "path": "last", "value": "Next"}],
                },
                {
                    "input": {"content": "Again"},
                    "assertions": [{"type": "json_path", "path": "$.referer", "value": "agent-test"}],
                },
            ],
        },
        {"id": "other", "input": "x", "assertions": [{"type": "json_path", "path": "roles", "value": ["user"]}]},
    )
    _, (first, other) = project.report(code=0)
    said = [json.loads(turn["output"]) for turn in first["turns"]]
    assert said[0]["roles"] == ["system", "user", "assistant", "user"]  # N5
    assert said[1]["roles"] == ["system", "user", "assistant", "user", "assistant", "user"]  # N19
    assert said[0]["session"] == said[1]["session"] == first["session_id"]
    assert other["session_id"] != first["session_id"]


def test_options_are_merged_and_reach_the_agent(project: Project):
    """Agent config below case below turn; metadata key by key; the rest by key and unchanged."""
    project.write(
        "agent.py",
        "def agent(messages, options):\n    return {'data': {k: v for k, v in options.items() if k != 'session_id'}}\n",
    )
    project.write(
        "viva.toml",
        '[agents.a]\nuse = "python:./agent.py:agent"\n[agents.a.options]\nmode = "chat"\nsearch = true\n'
        '[agents.a.options.metadata]\ntier = "free"\nregion = "eu"\n',
    )
    project.suite(
        {
            "id": "o",
            "metadata": {"tier": "gold", "team": "red"},
            "options": {"skip": {"history": True}, "metadata": {"scenario": "edge"}},
            "turns": [
                {"input": "x", "assertions": [{"type": "json_path", "path": "mode", "value": "chat"}]},
                {"input": "y", "options": {"mode": "task", "metadata": {"team": "blue"}}},
                {"input": "z"},
            ],
        }
    )
    _, (record,) = project.report(agent=None)
    first, second, third = (turn["data"] for turn in record["turns"])
    assert first == {  # N20
        "referer": "agent-test",
        "mode": "chat",
        "search": True,
        "skip": {"history": True},
        "metadata": {"tier": "gold", "region": "eu", "team": "red", "scenario": "edge"},
    }
    assert second == first | {"mode": "task", "metadata": first["metadata"] | {"team": "blue"}}
    assert third == first


def test_what_a_turn_found_can_be_said_in_later_ones(project: Project):
    """`set` keeps a value; `{{name}}` says it in inputs and assertions, and labels show it; one that is not set is an error."""
    project.write(
        "agent.py",
        "def agent(messages):\n"
        "    text = messages[-1]['content']\n"
        "    return {'content': f'you said {text}', 'data': {'order': {'id': 4711, 'code': 'A-7'}}}\n",
    )
    project.suite(
        {
            "id": "remembers",
            "turns": [
                {"input": "make", "set": {"order": "$.order.id", "code": "order.code"}},
                {
                    "input": "cancel {{order}} / {{code}}",
                    "assertions": [
                        contains("cancel 4711 / A-7"),
                        contains("{{order}}"),
                        {"type": "json_path", "path": "order.id", "value": "{{order}}"},
                    ],
                },
            ],
        },
        {
            "id": "unset",
            "turns": [
                {"input": "make", "set": {"nothing": "$.absent"}, "assertions": [contains("make")]},
                {"input": "say {{nothing}}", "assertions": [contains("x")]},
            ],
        },
        {
            "id": "unused",
            "turns": [{"input": "a", "set": {"nothing": "$.absent"}, "assertions": [contains("{{nothing}}")]}],
        },
    )
    ended, (first, second, third) = project.report()
    assert first["status"] == "passed", first["assertion_errors"]  # N21
    labels = [each["label"] for each in first["turns"][1]["assertions"]]
    assert labels == ['contains "cancel 4711 / A-7"', 'contains "4711"', "$.order.id = 4711"]
    assert [each["value"] for each in first["turns"][1]["assertions"]][1:] == ["{{order}}", "{{order}}"]
    assert second["status"] == "error"
    assert second["warnings"] == ["turn 1: `set` nothing: found nothing at $.absent"]
    assert second["error"] == "variable {{nothing}} is not set: `set` of turn 1 found nothing at $.absent"
    assert third["turns"][0]["assertions"][0]["label"] == 'contains "{{nothing}}"'
    assert "found nothing at $.absent" in third["turns"][0]["assertions"][0]["reason"]
    assert "turn 1: `set` nothing: found nothing at $.absent" in ended.out


def test_history_is_filled_with_what_before_returns(project: Project):
    project.write("hooks.py", "def before(ctx, case):\n    return {'name': 'Ada'}\n")
    project.write("agent.py", "def agent(messages):\n    return ' | '.join(each['content'] for each in messages)\n")
    said = [
        {"role": "user", "content": "I am {{name}}"},
        {"role": "assistant", "content": r"\{{ok}}"},
        {"content": "Hi"},
    ]
    wanted = {"type": "equals", "value": r"I am {{name}} | \{{ok}} | Hi"}
    project.suite({"id": "a", "input": said, "before": "hooks:before", "assertions": wanted})
    _, (record,) = project.report(code=0)  # N21
    assert record["history"][0]["content"] == "I am Ada"


def test_one_case_for_each_row_of_for(project: Project):
    """Each row fills in `{{key}}`, numbers too; ids get a suffix unless they name a variable."""
    project.suite(
        {
            "id": "city",
            "for": [{"city": "Rome", "n": 1}, {"city": "Oslo", "n": 2}],
            "input": "{{n}} night in {{city}}",
            "assertions": [contains("{{city}}"), contains("{{n}}")],
        },
        {"id": "by-{{n}}", "for": [{"n": 7}], "input": "{{n}}", "assertions": [contains("{{n}}")]},
    )
    _, records = project.report(code=0)  # N4
    assert [record["id"] for record in records] == ["city-1", "city-2", "by-7"]
    assert records[1]["turns"][0]["input"] == "2 night in Oslo"


def test_a_script_judges_by_parameter_name(project: Project):
    """A function from the suite's folder: bool, dict, or raising."""
    project.write(
        "suites/checks.py",
        "def long_enough(output, metadata):\n"
        "    return {'passed': len(output) >= metadata['min'], 'reason': f'{len(output)} characters', 'score': 0.5}\n"
        "def same(output, input):\n    return output == input\n"
        "def raises(transcript):\n    assert False, 'not like this'\n"
        "def validate(output):\n    return 'x' in output\n"
        "def stars(output):\n    return {'passed': True, 'score': 4}\n",
    )
    use = {"type": "script"}
    project.suite(
        case("long", assertions=[use | {"use": "scripts:checks.long-enough", "options": {"metadata": {"min": 3}}}]),
        case("short", assertions=[use | {"script": "checks:long_enough", "metadata": {"min": 99}}]),
        case("same", assertions=[use | {"use": "scripts:checks.same"}]),
        case("raises", assertions=[use | {"use": "scripts:checks.raises"}]),
        case("module", assertions=[use | {"use": "scripts:checks"}]),
        case("stars", assertions=[use | {"use": "scripts:checks.stars"}, contains("zz")]),
        name="suites/s.jsonl",
    )
    _, records = project.report("-i", "suites/s.jsonl")
    assert [record["status"] for record in records] == ["passed", "failed", "passed", "failed", "failed", "failed"], (
        records
    )  # N26, N8
    assert [records[0]["score"], records[5]["score"]] == [0.5, 0.5], "4 of 5 stars is no share"
    assert "5 characters" in records[1]["assertion_errors"][0]
    assert "not like this" in records[3]["assertion_errors"][0]


def test_attachments_are_read_and_sent_as_parts(project: Project):
    """`file://` beside the suite becomes a data: address; the report keeps the source and not the bytes."""
    project.write("agent.py", "def agent(messages):\n    return {'data': messages[-1]['content']}\n")
    project.write("suites/receipt.txt", "two coffees")
    project.suite(
        {
            "id": "receipt",
            "turns": [
                {
                    "input": "see here",
                    "attachments": [{"type": "file", "source": "file://./receipt.txt"}],
                    "assertions": [{"type": "json_path", "path": "$[1].url", "matches": "^data:text/plain;base64,"}],
                }
            ],
        },
        name="suites/s.jsonl",
    )
    _, (record,) = project.report("-i", "suites/s.jsonl", code=0)  # N5
    (attached,) = record["turns"][0]["attachments"]
    assert attached["source"] == "file://./receipt.txt"
    assert "url" not in attached


def test_agents_may_change_what_they_were_given(project: Project):
    """What an agent does to its arguments and to what it returned is seen by no other turn, case or report."""
    project.write(
        "agent.py",
        "STATE = {'n': 0}\n"
        "def agent(messages, options):\n"
        "    STATE['seen'] = [m['content'] for m in messages if m['role'] == 'user']\n"
        "    STATE['given'] = {key: dict(options[key]) for key in ('skip', 'metadata')}\n"
        "    STATE['n'] += 1\n"
        "    for message in messages: message['content'] = 'spoilt'\n"
        "    for key in ('skip', 'metadata'): options[key]['spoilt'] = True\n"
        "    return {'content': 'ok', 'data': STATE}\n",
    )
    project.write(
        "viva.toml",
        '[agents.a]\nuse = "python:./agent.py:agent"\nparallel = 1\noptions = { skip = {}, metadata = { a = 1 } }\n',
    )
    ok = [contains("ok")]
    project.suite(
        {"id": "a", "turns": [{"input": "one", "assertions": ok}, {"input": "two"}]},
        {"id": "b", "input": "three", "assertions": ok},
    )
    _, (a, b) = project.report(agent=None)
    result = [turn["data"] for turn in (*a["turns"], *b["turns"])]
    assert [each["n"] for each in result] == [1, 2, 3]
    assert [each["seen"] for each in result] == [["one"], ["one", "two"], ["three"]]  # N19
    assert [each["given"] for each in result] == [{"skip": {}, "metadata": {"a": 1}}] * 3  # N20
