"""`report.html` in a real browser: from disk, offline, with hostile texts."""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from browser import DESKTOP, PHONE, TIMEOUT_MS, ZOOMED, check_all_sizes, run_axe, screenshot, start_browser
from project import Project
from showcase import EVERYTHING, PLANTED, detailed_project, expense_project, many_report, planted_project, planted_runs

MANY = 10_000


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with start_browser() as found:
        yield found


@pytest.fixture(scope="module")
def expense(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A run with all statuses, three trials per case."""
    project = expense_project(tmp_path_factory.mktemp("expense"))
    project.test(*EVERYTHING, "-n", "assistants.hasty", "--runs", "3", "-o", "report.html", code=1)
    return project


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Project:
    project = planted_project(tmp_path_factory.mktemp("planted"))
    assert project.test("-o", "report.html", "-q").code == 1
    return project


@pytest.fixture(scope="module")
def detailed(tmp_path_factory: pytest.TempPathFactory) -> Project:
    project = detailed_project(tmp_path_factory.mktemp("detailed"))
    agent = ("-n", "python:./agent.py:agent", "-q")
    project.test("-i", "suite.jsonl", *agent, "-o", "report.html", code=1)
    project.test("-i", "flaky.yaml", *agent, "--runs", "8", "--parallel", "1", "-o", "flaky.html", code=1)
    return project


class Opened:
    """An open report, with its requests and console messages."""

    def __init__(self, browser: Any, report: Path, **options: Any) -> None:
        self.address = report.as_uri()
        self.context = browser.new_context(**{"viewport": DESKTOP, **options})
        self.context.set_offline(True)
        self.page = self.context.new_page()
        self.page.set_default_timeout(TIMEOUT_MS)
        self.troubles: list[str] = []
        self.asked: list[str] = []
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("console", lambda message: self.troubles.append(message.text))
        self.page.on("pageerror", lambda error: self.troubles.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.troubles.append("a dialog"), dialog.dismiss()))

    def go(self, place: str = "") -> Any:
        self.page.goto(f"{self.address}{place}")
        self.page.wait_for_selector("#cases, #conversation, .waiting[role=alert]")
        return self.page

    def ids(self) -> list[str]:
        """The cases of the list that are in view."""
        rows = self.page.eval_on_selector_all(
            "#cases a", "all => all.map(each => [Number(each.dataset.at), each.dataset.case])"
        )
        return [name for _, name in sorted(rows)]

    def open_case(self, name: str) -> None:
        self.page.locator(f"#cases a[data-case={json.dumps(name)}]").first.click()
        self.page.wait_for_selector("#conversation")


@pytest.fixture
def opened(browser: Any, expense: Project) -> Iterator[Opened]:
    found = Opened(browser, expense.folder / "report.html")
    found.go()
    yield found
    found.context.close()
    assert found.troubles == []
    assert not [url for url in found.asked if not url.startswith(("file:", "data:"))]


def test_a_report_opens_offline(opened: Opened):
    page = opened.page
    assert page.text_content("#verdict") == "Failed"
    assert "23 of 29 passed" in page.text_content("h1")
    assert "3 failed" in page.text_content(".counts")
    assert "1 error (trials: 3 judge)" in page.text_content(".counts")
    figures = page.text_content("#figures")
    assert re.search(r"95 % interval over 26 decided cases", figures)
    assert all(name in figures for name in ("Pass rate", "Cost", "Tokens", "Time", "Reply p95"))
    assert "23 passed" in page.get_attribute("#strip", "aria-label")
    assert opened.asked == [opened.address]


def test_filters_search_and_order_are_in_the_url(opened: Opened):
    page = opened.page
    page.click("#filter-error")
    expect(page.locator("#found")).to_have_text("1 of 29 cases")
    assert opened.ids() == ["judged-by-nobody"]
    page.click("#filter-error")
    page.select_option("#filter-tag", "money")
    expect(page.locator("#found")).to_have_text("1 of 29 cases")
    assert opened.ids() == ["later"]
    page.select_option("#filter-tag", "")
    page.fill("#search", "yes but")
    expect(page.locator("#found")).to_have_text("2 of 29 cases")
    assert set(opened.ids()) == {"yes-but"}
    page.select_option("#sort", "name")
    address = page.url
    assert "q=yes" in address
    assert "sort=name" in address
    page.goto("about:blank")
    page.goto(address)
    page.wait_for_selector("#cases a")
    assert page.input_value("#search") == "yes but"
    assert set(opened.ids()) == {"yes-but"}
    page.fill("#search", "nothing fits this")
    page.get_by_role("button", name="Show all").click()
    expect(page.locator("#found")).to_have_text("29 cases")


def test_a_case_shows_its_conversation_checks_tools_and_repeats(opened: Opened):
    page = opened.page
    page.locator("#cases a[data-case=yes-but]").nth(1).click()
    page.wait_for_selector("#conversation")
    assert page.get_by_role("tab").count() == 3
    why = page.text_content("#why")
    assert "failed" in why
    assert "fault: agent" in why
    turn = page.locator("#turn-2")
    assert "Yes, but make it $420" in turn.text_content()
    assert "script" in turn.locator(".message.user .who").text_content()
    assert "submit_expense" in turn.text_content()
    assert "expected" in turn.text_content()
    assert "actual" in turn.text_content()
    turn.locator("details").first.click()  # a tool call, unfolded
    assert "EXP-0001" in turn.text_content()
    assert "not run" in page.locator(".turn.not-run").text_content()
    page.get_by_role("tab").nth(1).click()
    expect(page).to_have_url(re.compile("trial=2"))
    page.reload()
    page.wait_for_selector("#conversation")
    assert page.get_by_role("tab").nth(1).get_attribute("aria-selected") == "true"
    screenshot(page, "report-case-desktop")


def test_checks_have_urls_and_reasons_link_to_them(opened: Opened):
    """A reason links to its check by keyboard, by URL, and by a second click."""
    page = opened.page
    opened.go("#/?q=yes-but")
    opened.open_case("yes-but")
    link = page.locator("#why li a").first
    place = link.get_attribute("href").partition("check=")[2]
    link.click()
    card = page.locator(f"#check-{place}")
    expect(card).to_be_focused()
    expect(card).to_be_in_viewport()
    page.evaluate("scrollTo(0, 0)")
    link.click()
    expect(card).to_be_in_viewport()
    address = page.url
    page.goto("about:blank")
    page.goto(address)
    expect(page.locator(f"#check-{place}.here")).to_be_in_viewport()
    page.go_back()


def test_printing_shows_every_case_unfolded(opened: Opened):
    page = opened.page
    page.set_viewport_size({"width": 1280, "height": 300})
    expect(page.locator("#cases a[data-at='28']")).to_have_count(0)
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    expect(page.locator("#cases a")).to_have_count(29)
    tops = page.eval_on_selector_all("#cases a", "all => all.map(each => each.getBoundingClientRect().top)")
    assert tops == sorted(set(tops))
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    page.emulate_media(media="screen")
    expect(page.locator("#cases a[data-at='28']")).to_have_count(0)
    opened.go("#/?q=yes-but")
    opened.open_case("yes-but")
    tool = page.locator(".tool .part").first
    expect(tool).not_to_be_visible()
    page.emulate_media(media="print")
    expect(tool).to_be_visible()


def test_quotes_of_judges_are_highlighted(opened: Opened):
    opened.open_case("polite")
    assert opened.page.text_content("#turn-1 .message:not(.user) mark") == "How much was it, in US dollars?"
    assert opened.page.text_content("#turn-0 mark") == "Good morning! What can I do for you?"  # history before turn 1
    assert "Thank the user first" in opened.page.text_content("#conversation")
    screenshot(opened.page, "report-judge-desktop")


def test_checkpoints_and_attached_images_are_shown(opened: Opened):
    """A dynamic case shows the source of its messages; attachments are embedded."""
    page = opened.page
    ids = [row["id"] for row in json.loads(page.text_content("#viva-overview"))["cases"]]
    assert ids
    all_cases = page.text_content("#found")
    page.fill("#search", "dynamic")
    expect(page.locator("#found")).not_to_have_text(all_cases)  # the search waits until nobody types
    page.locator("#cases a").first.click()
    page.wait_for_selector("#checkpoints")
    assert re.search(r"\d of \d reached", page.text_content("#checkpoints"))
    assert "simulator" in page.text_content("#conversation")
    screenshot(page, "report-checkpoints-desktop")
    opened.go("#/?q=receipt-first")
    page.wait_for_selector("#cases a")
    opened.open_case("receipt-first")
    picture = page.locator("#conversation img").first
    assert picture.get_attribute("src").startswith("data:image/png;base64,")
    assert picture.evaluate("image => image.decode().then(() => image.naturalWidth)") > 0


def test_the_report_works_with_the_keyboard(opened: Opened):
    page = opened.page
    first, second, *_ = opened.ids()
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("k")
    expect(page.locator("#cases a[data-at='0']")).to_be_focused()
    page.keyboard.press("Enter")
    page.wait_for_selector("#conversation")
    assert first in page.text_content("#case-title")
    page.keyboard.press("j")
    expect(page.locator(".steps")).to_contain_text("2 of 29")
    assert second in page.text_content("#case-title")
    page.keyboard.press("n")
    page.keyboard.press("p")
    page.keyboard.press("u")
    page.wait_for_selector("#cases a")
    page.keyboard.press("/")
    page.keyboard.type("judged-by")
    expect(page.locator("#found")).to_contain_text("1 of")
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    assert page.locator("dialog#keys").is_visible()
    page.keyboard.press("Escape")
    assert not page.locator("dialog#keys").is_visible()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement !== document.body")


def test_copied_cases_and_commands_run(browser: Any, expense: Project):
    """ "Copy as case" is a case that loads; the command to rerun runs exactly this case."""
    found = Opened(browser, expense.folder / "report.html", permissions=["clipboard-read", "clipboard-write"])
    page = found.go()
    found.open_case("polite")
    page.click("#copy-case")
    expect(page.locator("#copy-case")).to_have_text("Copied")
    polite = json.loads(page.evaluate("navigator.clipboard.readText()"))
    assert (polite["options"], polite["metadata"]) == ({"locale": "en-GB"}, {"owner": "service desk"})
    assert polite["turns"][0]["options"] == {"draft": True}
    assert [said["role"] for said in polite["turns"][0]["input"]] == ["user", "assistant", "user"]
    found.go()
    found.open_case("yes-but")
    page.click("#copy-case")
    expect(page.locator("#copy-case")).to_have_text("Copied")
    copied = json.loads(page.evaluate("navigator.clipboard.readText()"))
    assert len(copied["turns"]) == 3  # with the turns that did not run
    expense.write("copied.jsonl", f"{json.dumps(polite)}\n{json.dumps(copied)}\n")
    page.click("#copy-command")
    expect(page.locator("#copy-command")).to_have_text("Copied")
    command = shlex.split(page.evaluate("navigator.clipboard.readText()"))
    found.context.close()
    expense.viva("check", "copied.jsonl", code=0)
    expense.viva(*command[1:], "-o", "again.jsonl", code=1)
    assert [record["id"] for record in expense.records("again.jsonl")] == ["yes-but"]


def test_equal_failures_are_one_group_that_opens_its_cases(browser: Any, detailed: Project):
    found = Opened(browser, detailed.folder / "report.html")
    page = found.go()
    group = page.locator("#groups button").first
    assert "16 ×" in group.text_content()
    assert "ConnectionError: refused by …" in group.text_content()
    group.click()
    expect(page.locator("#found")).to_have_text("16 of 19 cases")
    assert "group=" in page.url
    group.click()
    expect(page.locator("#found")).to_have_text("19 cases")
    page.click("#breakdown-types")
    row = page.locator("#rates button", has_text="rubric")
    assert "0 of 1 check" in row.text_content()
    row.click()
    expect(page.locator("#found")).to_have_text("1 of 19 cases")
    found.open_case("rubric")
    found.context.close()
    assert found.troubles == []


def test_a_crash_shows_file_line_source_and_output(browser: Any, detailed: Project):  # N38
    found = Opened(browser, detailed.folder / "report.html", viewport=PHONE)
    page = found.go("#/?q=crash")
    first = page.locator("#cases a").first
    expect(first).to_be_in_viewport()  # above the fold of a phone
    found.open_case("crash")
    why = page.locator("#why")
    expect(why).to_be_in_viewport()
    assert re.search(r"agent\.py:\d+ in look_up", why.text_content())
    for text in ("KeyError: 'W9'", 'return {"W1": 40}[order]', "looking up W9", "slow path"):
        assert text in why.text_content()
    assert why.text_content().count("KeyError") == 1
    found.context.close()


def test_the_most_expensive_turn_is_one_click_away(browser: Any, detailed: Project):
    found = Opened(browser, detailed.folder / "report.html")
    page = found.go("")
    expect(page.locator("#costliest-turn")).to_contain_text("turn 2 of rubric")
    page.locator("#costliest-turn a").click()
    expect(page.locator("#turn-2")).to_be_in_viewport()
    expect(page.locator("#turn-2")).to_contain_text("$0.2500")
    assert found.troubles == []


def test_the_tool_that_failed_most_is_named_and_leads_to_all_tools(browser: Any, detailed: Project):
    """It is named beside the other figures; a click unfolds the rates of failed calls."""
    found = Opened(browser, detailed.folder / "report.html")
    page = found.go("")
    expect(page.locator("#failed-tool")).to_contain_text("load_order")
    expect(page.locator("#failed-tool")).to_contain_text("1 of 1 call failed")
    page.locator("#failed-tool button").click()
    rows = page.locator("#rates li")
    expect(rows.first).to_contain_text(re.compile(r"load_order *100 % *1 of 1 call failed, \d+–100 %"))
    expect(rows.filter(has_text="look_up_order")).to_contain_text("0 of 1 call failed")
    page.set_viewport_size(PHONE)
    left = [page.locator(f"#{name}").bounding_box()["x"] for name in ("costliest-turn", "failed-tool")]
    assert max(left) < 2 * PHONE["width"], "one swipe away on a phone"
    found.context.close()
    assert found.troubles == []


def test_a_judge_has_rows_quotes_and_its_words(browser: Any, detailed: Project):
    """Criteria with verdict, score, reason and quotes; a click shows what the judge was sent and answered."""
    found = Opened(browser, detailed.folder / "report.html")
    page = found.go("#/case/suite.jsonl/rubric")
    rows = page.locator(".criteria > li")
    assert [row.get_attribute("class") for row in rows.all()] == ["passed", "failed"]
    assert "It is polite score 0.90 · weight 2" in rows.first.text_content()
    assert "no time is named" in rows.nth(1).text_content()
    rows.first.get_by_role("button", name="turn 2").click()
    expect(page.locator("#turn-2 mark.found.passed")).to_be_in_viewport()
    page.locator(".exchange summary").click()
    expect(page.locator(".exchange")).to_contain_text("Call 1")  # it is rendered when it is opened
    exchange = page.locator(".exchange").text_content()
    assert "Criteria: It is polite" in exchange
    assert '"it says sorry"' in exchange
    reply = page.locator("#turn-2 .message.agent")
    expect(reply.locator("strong")).to_have_text("refunded")
    assert reply.locator("td").all_text_contents() == ["boot", "40 EUR"]
    assert reply.locator("pre code").text_content() == "total = 40"
    assert reply.locator("a, img").count() == 0
    reply.get_by_role("button", name="plain text").click()
    assert "**refunded**" in reply.text_content()
    tree = page.locator("#turn-1 .message .json")
    assert 'state: "sent"' in tree.text_content()
    tree.get_by_text("order:").first.click()
    expect(page.locator("#turn-1 .message .json .string")).to_have_count(0)
    page.locator("#waterfall summary").click()
    assert run_axe(page) == []
    bars = page.locator(".bars li").all_text_contents()
    assert [bar.startswith(name) for bar, name in zip(bars, ("Turn 1", "Turn 2", "look_up_order"), strict=False)] == [
        True
    ] * 3
    assert "Judge: It is polite" in "".join(bars)
    assert "$0.2500" in bars[1]
    page.select_option("#waterfall-order", "costly")
    assert page.locator(".bars li").first.text_content().startswith("Turn 2")
    found.context.close()
    assert found.troubles == []
    assert {url for url in found.asked if not url.startswith("data:")} == {found.address}


def test_repeats_show_how_sure_they_are_and_open_on_the_trial_that_failed(browser: Any, detailed: Project):  # N33
    found = Opened(browser, detailed.folder / "flaky.html")
    page = found.go()
    assert "6 of 8, 41–93 %, unstable" in page.text_content("#cases")
    figures = page.text_content("#figures")
    assert "pass@8" in figures
    assert "pass^8" in figures
    assert "1 unstable" in figures
    page.set_viewport_size(PHONE)
    expect(page.locator("#cases .repeats-text")).to_be_in_viewport()
    page.set_viewport_size(DESKTOP)
    found.open_case("flaky")
    assert "6 of 8, 41–93 %, unstable" in page.text_content("#certainty")
    assert page.locator("#certainty .interval rect").count() == 1
    assert page.locator(".pass-k tbody tr").nth(1).locator("td").first.text_content() == "75 %"
    assert page.locator("[role=tab][aria-selected=true]").text_content().endswith("Trial 4")
    found.context.close()


def test_five_hundred_turns_fold_and_are_reached_by_keys_and_words(browser: Any, detailed: Project):
    """Passed turns are folded; `f` goes to a failure, `t` to a tool; the search finds words in a folded turn."""
    found = Opened(browser, detailed.folder / "report.html")
    page = found.go("#/?q=kumquat")
    expect(page.locator("#found")).to_have_text("1 of 19 cases")
    expect(page.locator("#cases .hit")).to_contain_text("turn 333 · reply")
    name = "a-long-conversation-of-five-hundred-turns"
    assert page.locator("#cases a b").first.text_content() == name
    found.open_case(name)
    expect(page.locator("#find-count")).to_contain_text("1 of 1")
    expect(page.locator("#turn-333")).to_be_in_viewport()
    assert page.locator(".turn.folded").count() == 498
    page.fill("#find", "")
    page.locator("#find").blur()
    page.evaluate("scrollTo(0, 0)")
    page.keyboard.press("t")
    expect(page.locator("#turn-5")).to_be_focused()
    page.keyboard.press("t")
    expect(page.locator("#turn-15")).to_be_focused()
    page.keyboard.press("f")
    expect(page.locator("#turn-500")).to_be_focused()
    expect(page.locator("#turn-500")).to_be_in_viewport()
    page.locator("#turn-499 button").click()
    expect(page.locator("#turn-499.folded")).to_have_count(0)
    assert page.locator(".minimap rect.failed").count() == 1
    page.locator("#waterfall summary").click()
    page.wait_for_selector("#waterfall > .link")  # not all of its bars are shown
    assert run_axe(page) == []
    page.click("#fold-passed")
    expect(page.locator(".turn.folded")).to_have_count(0)
    found.context.close()
    assert found.troubles == []


def test_a_case_a_run_and_a_plot_are_saved_as_files(browser: Any, detailed: Project):
    found = Opened(browser, detailed.folder / "flaky.html", accept_downloads=True)
    page = found.go()
    with page.expect_download() as run:
        page.click("#download-run")
    assert [json.loads(line)["trial"] for line in run.value.path().read_text().splitlines()] == list(range(1, 9))
    with page.expect_download() as picture:
        page.click("#download-strip")
    assert picture.value.path().read_bytes().startswith(b"\x89PNG")
    found.open_case("flaky")
    with page.expect_download() as case:
        page.click("#download-case")
    assert (case.value.suggested_filename, len(case.value.path().read_text().splitlines())) == ("flaky.jsonl", 8)
    found.context.close()


@pytest.mark.parametrize("case", ["", "yes-but", "polite", "left-alone"])
def test_axe_finds_no_wcag_aa_violations(opened: Opened, case: str):
    if case:
        opened.go(f"#/?q={case}")
        expect(opened.page.locator("#found")).to_contain_text(" of ")
        opened.open_case(case)
        unfold(opened.page)
    assert check_all_sizes(opened.page, f"report-{case or 'run'}") == []


def test_at_400_percent_nothing_scrolls_sideways(browser: Any, expense: Project, planted: Project):
    """1280 pixels at 400 % are 320. Hostile texts are the worst case: long words without a break."""
    for kind, project, cases in (("expense", expense, ["yes-but", "polite"]), ("planted", planted, [])):
        found = Opened(browser, project.folder / "report.html", viewport=ZOOMED)
        page = found.go()
        names = cases or found.ids()[:6]
        assert sideways(page) == 0
        for name in names:
            found.go()
            found.open_case(name)
            assert sideways(page) == 0, name
        screenshot(page, f"report-{kind}-zoomed")
        found.context.close()


def unfold(page: Any) -> None:
    """Unfolds everything."""
    page.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")


def sideways(page: Any) -> int:
    """By how many pixels the page is wider than its window."""
    return page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")


def test_hostile_texts_are_shown_and_never_run(browser: Any, planted: Project):
    """Ids, names, tags, inputs, replies, tool calls, messages and reasons."""
    found = Opened(browser, planted.folder / "report.html")
    page = found.go("#/?sort=input")
    page.wait_for_selector("#cases a")
    names = found.ids()
    assert len(names) == len(PLANTED) + 1
    for at in range(len(PLANTED)):
        page.locator(f'#cases a[data-at="{at}"]').click()
        page.wait_for_selector("#conversation")
        unfold(page)
        shown = page.text_content("#turn-1")
        if names[at].startswith(("script", "closing", "image", "link", "frame", "template")):
            assert PLANTED[names[at].partition(" ")[0]] in shown
        if names[at].startswith("ansi"):
            assert "␛[31mred" in shown
        if names[at].startswith("right-to-left"):
            assert "⟦RLO⟧gnp.exe" in shown
        page.go_back()
        page.wait_for_selector("#cases a")
    assert page.evaluate("window.pwned") is None
    assert page.locator("#app iframe, #app img, #app base, #app a[href^='javascript']").count() == 0
    assert not set("\x1b\u202e\u2066\x9b") & set(page.locator("body").inner_text())
    screenshot(page, "report-planted-desktop")
    found.context.close()
    assert found.troubles == []
    assert {url for url in found.asked if not url.startswith("data:")} == {found.address}


def test_a_long_reply_is_cut_until_expanded(browser: Any, planted: Project):
    found = Opened(browser, planted.folder / "report.html")
    page = found.go("#/?q=five-megabytes")
    page.wait_for_selector("#cases a")
    found.open_case("five-megabytes")
    before = len(page.text_content("#turn-1"))
    assert before < 200_000
    assert page.locator("#turn-1 b:has-text('lorem')").count() == 0
    page.locator("#turn-1 .message:not(.user) .more button").click()
    expect(page.locator("#turn-1 .more")).to_have_count(0)
    assert len(page.text_content("#turn-1")) > 5_000_000
    assert page.evaluate("window.pwned") is None
    found.context.close()
    assert found.troubles == []


def test_hostile_texts_in_every_field_never_run(browser: Any, tmp_path: Path):
    """File names, diffs, reasons, quotes, comments, hints, thresholds, options, agents and attachments."""
    found = Opened(browser, planted_runs(tmp_path).folder / "report.html")
    page = found.go("#/?sort=input")
    page.wait_for_selector("#cases a")
    assert not set("\x1b\u202e\u2066\x9b") & set(page.locator("body").inner_text())
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    for at in range(len(PLANTED)):
        expect(page.locator(".steps")).to_contain_text(f"{at + 1} of {len(PLANTED)}")
        page.wait_for_selector("#conversation")
        unfold(page)
        assert not set("\x1b\u202e\u2066\x9b") & set(page.locator("body").inner_text())
        page.keyboard.press("j")
    assert page.evaluate("window.pwned") is None
    assert page.locator("#app iframe, #app img, #app base, #app a[href^='javascript']").count() == 0
    found.context.close()
    assert found.troubles == []
    assert {url for url in found.asked if not url.startswith("data:")} == {found.address}


def test_ten_thousand_cases_open_and_scroll(browser: Any, tmp_path: Path):
    """Only the rows in view are in the page."""
    found = Opened(browser, many_report(tmp_path, MANY))
    page = found.go("#/?sort=input")
    page.wait_for_selector("#cases a")
    opened_ms = page.evaluate("performance.now()")
    assert page.text_content("#found") == "10,000 cases"
    assert page.locator("#cases a").count() < 100
    page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
    page.wait_for_selector("#cases a[data-case='case-09999']")
    assert page.locator("#cases a").count() < 100
    page.fill("#search", "case-07777")
    expect(page.locator("#found")).to_contain_text("1 of")
    found.open_case("case-07777")
    assert "Question 7777" in page.text_content("#conversation")
    found.go("#/")
    screenshot(page, "report-10000-desktop")
    found.context.close()
    assert opened_ms < 20_000  # generous, for a loaded machine
