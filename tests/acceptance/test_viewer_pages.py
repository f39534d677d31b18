"""`viva view` in a real browser: every screen, the one-time link, live runs, and starting runs."""

import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from browser import (
    DESKTOP,
    PHONE,
    TIMEOUT_MS,
    ZOOMED,
    check_all_sizes,
    run_axe,
    screenshot,
    start_browser,
)
from project import Project, case
from running_viewer import ViewerProcess, run_viewer, start_waiting_run
from showcase import EVERYTHING, PLANTED, expense_project, many_runs, planted_runs

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with start_browser() as found:
        yield found


class Visit:
    """A browser context with the cookie of a viewer."""

    def __init__(self, browser: Any, viewer: ViewerProcess, **options: Any) -> None:
        self.viewer = viewer
        self.context = browser.new_context(**{"viewport": DESKTOP, **options})
        self.page = self.context.new_page()
        self.page.set_default_timeout(TIMEOUT_MS)
        self.troubles: list[str] = []
        self.asked: list[str] = []
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("console", lambda message: self.troubles.append(message.text))
        self.page.on("pageerror", lambda error: self.troubles.append(str(error)))
        if viewer.cookie:
            name, _, value = viewer.cookie.partition("=")
            self.context.add_cookies([{"name": name, "value": value, "url": viewer.origin}])

    def go(self, place: str, until: str) -> Any:
        self.page.goto(f"{self.viewer.origin}/{place}")
        self.page.wait_for_selector(until)
        return self.page

    def end(self) -> None:
        self.context.close()
        assert self.troubles == []
        assert not [url for url in self.asked if not url.startswith((self.viewer.origin, "data:"))]


class History:
    """A viewer of several runs, oldest first."""

    def __init__(self, viewer: ViewerProcess, runs: list[str]) -> None:
        self.viewer = viewer
        self.runs = runs


@pytest.fixture(scope="module")
def shared_history(tmp_path_factory: pytest.TempPathFactory) -> Iterator[History]:
    project = expense_project(tmp_path_factory.mktemp("expense"))
    for mood in ("careful", "hasty", "careful"):
        project.write("mood", mood)
        project.test(*EVERYTHING, "-n", "assistants.moody", "-q")
    project.write("mood", "hasty")
    project.test(*EVERYTHING, "-n", "assistants.moody", "--runs", "3", "-q")
    with run_viewer(project) as viewer:
        viewer.open_link()
        yield History(viewer, [run["id"] for run in reversed(viewer.get("/api/runs").json)])


def screens(shared_history: History) -> dict[str, tuple[str, str]]:
    """Every screen: its URL, and a selector that is present when it is complete."""
    base, head = shared_history.runs[-2:]
    flaky = "case/tests%2Fflows.yaml/yes-but"
    return {
        "runs": ("#/runs", "#runs a"),
        "run": (f"#/runs/{head}", "#cases a"),
        "case": (f"#/runs/{head}/{flaky}?trial=2&turn=2", "#turn-2"),
        "history": ("#/history", "#flaky table"),
        "compare": (f"#/compare/{base}/{head}", "#changes a"),
        "pair": (f"#/compare/{base}/{head}?suite=tests%2Fflows.yaml&case=yes-but", "#pair .turn"),
    }


def test_the_printed_link_opens_the_page_once(browser: Any, project: Project):
    """The token disappears from the URL, scripts cannot read the cookie, and another browser is refused."""
    project.suite(case("a"))
    project.test()
    with run_viewer(project, "latest") as viewer:
        first = Visit(browser, viewer)
        first.page.goto(viewer.link)
        first.page.wait_for_selector("#cases a")
        assert "token" not in first.page.url
        assert "#/runs/" in first.page.url
        assert first.page.evaluate("document.cookie") == ""
        (cookie,) = first.context.cookies()
        assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
        first.page.reload()
        first.page.wait_for_selector("#cases a")
        second = Visit(browser, viewer)
        assert second.page.goto(viewer.link).status == 403
        assert "Link already used" in second.page.content()
        assert second.page.goto(f"{viewer.origin}/").status == 401
        second.context.close()
        first.end()


def test_all_screens_are_reached_by_links_alone(browser: Any, shared_history: History):
    visit = Visit(browser, shared_history.viewer)
    page = visit.go("", "#runs a")
    assert page.locator("#runs a").count() == len(shared_history.runs)
    page.locator("#runs input").nth(0).check()
    page.locator("#runs input").nth(1).check()
    page.click("#compare-chosen")
    page.wait_for_selector("#changes a")
    assert "suspect" in page.text_content("#changes")
    assert "pass rate" in page.text_content("#metrics")
    page.locator("#changes a[data-case='yes-but']").first.click()
    page.wait_for_selector("#pair .turn")
    assert "no turn" in page.text_content("#pair")  # the head stopped at the turn that failed
    page.get_by_role("link", name="History").click()
    page.wait_for_selector("#flaky table")
    assert "yes-but" in page.text_content("#flaky")
    assert page.locator(".charts svg").count() >= 3
    page.locator("#flaky a").first.click()
    page.wait_for_selector("#conversation")
    page.click("#back")
    page.wait_for_selector("#cases a")
    assert page.locator("#run-again").count() == 0  # the viewer is read-only
    visit.end()


def test_every_screen_has_a_url_and_passes_axe_at_every_size(browser: Any, shared_history: History):
    """Desktop and phone, light and dark; at 400 % nothing scrolls sideways."""
    visit = Visit(browser, shared_history.viewer)
    for name, (place, until) in screens(shared_history).items():
        visit.page.goto("about:blank")
        page = visit.go(place, until)
        assert check_all_sizes(page, f"view-{name}") == []
        page.set_viewport_size(ZOOMED)
        page.wait_for_function("document.documentElement.scrollWidth === document.documentElement.clientWidth")
        screenshot(page, f"view-{name}-zoomed")
        page.set_viewport_size(DESKTOP)
    visit.end()


def test_the_header_fits_in_one_line_on_a_phone(browser: Any, shared_history: History):
    visit = Visit(browser, shared_history.viewer, viewport=PHONE)
    page = visit.go("#/history", ".charts")
    middles = page.eval_on_selector_all(
        ".bar-top > a, .bar-top nav a, .bar-top button",
        "all => all.map(each => each.getBoundingClientRect()).map(at => Math.round(at.top + at.height / 2))",
    )
    assert len(middles) == 6
    assert max(middles) - min(middles) <= 2
    visit.end()


def test_names_and_choices_are_whole(browser: Any, shared_history: History):
    """Ids of cases, agents and the chosen values of selects are not cut, and no count is zero."""
    visit = Visit(browser, shared_history.viewer, viewport=PHONE)
    base, head = shared_history.runs[-2:]
    is_cut = "all => all.filter(each => each.scrollWidth > each.clientWidth + 1).map(each => each.textContent)"
    page = visit.go(f"#/compare/{base}/{head}", "#changes a")
    assert page.eval_on_selector_all("#changes .title b", is_cut) == []
    assert "that can be chance" in page.text_content("#answer")
    assert page.locator("#changes .from-to", has_text="0 of 0").count() == 0  # skipped cases and errors are named
    assert page.locator("#changes [data-case=later] .from-to").inner_text().split("\n") == ["skipped", "→", "skipped"]
    assert page.input_value("#pick-base") == base
    assert page.eval_on_selector("#pick-base", "each => each.selectedOptions[0].text").startswith(f"{base} · ")
    page = visit.go("#/runs", "#runs a")
    assert page.eval_on_selector_all("#runs .title b, #runs .mono", is_cut) == []
    page = visit.go(f"#/runs/{head}", "#cases a")
    assert not re.search(r"\b0 ", page.text_content(".counts"))
    assert "(trials: 3 judge)" in page.text_content(".counts")
    assert page.locator("#cases .repeats-text", has_text="0 of 0").count() == 0
    page.set_viewport_size(DESKTOP)
    wanted = """select => {
        const line = document.createElement("span");
        line.style.font = getComputedStyle(select).font;
        line.textContent = select.selectedOptions[0].textContent;
        document.body.append(line);
        return line.getBoundingClientRect().width + 34; // its padding and its arrow
    }"""
    assert page.eval_on_selector("#sort", wanted) <= page.eval_on_selector("#sort", "each => each.clientWidth")
    visit.end()


def test_charts_work_with_the_keyboard(browser: Any, shared_history: History):
    visit = Visit(browser, shared_history.viewer)
    page = visit.go("#/history", ".charts")
    chart = page.get_by_role("slider", name="Pass rate").first
    chart.focus()
    page.keyboard.press("Home")
    expect(chart).to_have_attribute("aria-valuenow", "1")
    page.keyboard.press("ArrowRight")
    expect(chart).to_have_attribute(
        "aria-valuetext", re.compile(r"^0 %.*0 of 1")
    )  # the suite that is worst now comes first
    page.keyboard.press("Enter")
    page.wait_for_selector("#cases a")
    assert shared_history.runs[1] in page.url
    visit.end()


def test_flaky_cases_are_one_key_away_from_the_top_of_the_history(browser: Any, shared_history: History):
    visit = Visit(browser, shared_history.viewer, viewport=PHONE)
    page = visit.go("#/history", "#flaky table")
    page.locator("#to-flaky").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#flaky")).to_be_focused()
    expect(page.locator("#flaky h2")).to_be_in_viewport()
    assert page.locator(".history-line").count() == 4  # the others are behind a button
    visit.end()


def test_a_comparison_without_two_runs_says_what_to_do(browser: Any, project: Project):
    project.suite(case("a"))
    project.test()
    with run_viewer(project) as viewer:
        viewer.open_link()
        visit = Visit(browser, viewer)
        page = visit.go("#/compare/latest~1/latest", "[role=alert]")
        expect(page.get_by_role("alert")).to_contain_text("needs two runs; this project has one")
        visit.context.close()


def test_an_unknown_url_shows_an_error(browser: Any, shared_history: History):
    visit = Visit(browser, shared_history.viewer)
    page = visit.go("#/runs/nosuch", "[role=alert]")
    assert "there is no run 'nosuch'" in page.text_content("[role=alert]")
    visit.go("", "#runs a")
    page = visit.go(f"#/runs/{shared_history.runs[0]}/case/x/y", "[role=alert]")
    assert "no case" in page.text_content("[role=alert]")
    visit.context.close()


def test_a_run_of_another_process_streams_in(browser: Any, project: Project):
    """The page shows each case as it ends, and the outcome at the end, without a reload."""
    cases = (case("first"), case("second", said="wait for two"), case("third", said="wait for three"))
    with run_viewer(project) as viewer:
        viewer.open_link()
        running = start_waiting_run(project, *cases)
        visit = Visit(browser, viewer)
        page = visit.go("#/runs/latest", "#cases a[data-case=first]")
        expect(page.locator("#verdict")).to_have_text("Running")
        expect(page.locator("#progress")).to_contain_text("1 of 3 trials")
        expect(page.locator("#progress")).to_contain_text("1 running (limit 1)")
        expect(page.locator(".counts")).to_contain_text("2 to go")
        assert page.locator("#cases a").count() == 1
        page.locator("#in-flight button[data-case=second]").focus()
        page.keyboard.press("Enter")
        expect(page.locator("#in-flight .turn")).to_contain_text("wait for two")
        assert run_axe(page) == []
        screenshot(page, "view-live-desktop")
        listed = visit.go("#/runs", ".live-facts")
        expect(listed.locator(".live-facts")).to_contain_text("1 of 3 trials · 2 to go")
        assert run_axe(listed) == []
        visit.go("#/runs/latest", "#cases a[data-case=first]")
        page.locator("#in-flight button[data-case=second]").click()
        expect(page.locator("#in-flight .turn")).to_contain_text("wait for two")
        project.write("two", "")
        page.wait_for_selector("#cases a[data-case=second]")
        ended = page.locator(".flight-ended")  # the conversation that a person reads stays
        expect(ended).to_contain_text("second has ended")
        expect(ended.locator(".turn")).to_contain_text("wait for two")
        assert (
            ended.get_by_role("link", name="Open the case").get_attribute("href").endswith("/case/suite.jsonl/second")
        )
        project.write("three", "")
        expect(page.locator("#verdict")).to_have_text("Passed")
        assert "3 of 3 passed" in page.text_content("h1")
        running.communicate(timeout=300)
        visit.end()


def test_what_was_shown_stays_when_the_viewer_goes(browser: Any, project: Project):
    running = start_waiting_run(project, case("first"), case("second", said="wait for go"))
    try:
        with run_viewer(project) as viewer:
            viewer.open_link()
            visit = Visit(browser, viewer)
            page = visit.go("#/runs/latest", "#in-flight button[data-case=second]")
            other = visit.context.new_page()
            other.goto(f"{viewer.origin}/#/runs")
            other.wait_for_selector("#runs a")
        for shown, stays in ((page, "#in-flight button[data-case=second]"), (other, "#runs a")):
            shown.wait_for_selector("#lost")
            assert shown.locator(stays).count() == 1
        assert run_axe(page) == []
        visit.context.close()
    finally:
        project.write("go", "")
        running.communicate(timeout=300)


def test_the_page_shows_that_a_run_was_killed(browser: Any, project: Project):
    with run_viewer(project) as viewer:
        viewer.open_link()
        running = start_waiting_run(project, case("first"), case("second", said="wait for ever"))
        visit = Visit(browser, viewer)
        page = visit.go("#/runs/latest", "#cases a")
        expect(page.locator("#verdict")).to_have_text("Running")
        running.kill()
        running.communicate()
        expect(page.locator("#verdict")).to_have_text("Stopped unexpectedly")
        assert "1 of 2 passed" in page.text_content("h1")
        assert "1 not run" in page.text_content(".counts")
        assert re.search(r"viva test --resume \d+-\d+-\w+", page.text_content(".stopped"))
        visit.end()


def test_a_check_gets_a_label_with_the_keyboard_alone(browser: Any, project: Project):
    """It is shown on the run and over time, and in a report that is written later, where it can only be read."""
    judge = {"type": "judge", "use": "judge", "criteria": "it is kind"}
    project.write(
        "judge.py",
        'def agent(messages):\n    return {"passed": True, "reason": "it greets", "evidence": [{"quote": "hello there you"}]}\n',
    )
    project.write("viva.toml", '[agents.judge]\nuse = "python:./judge.py:agent"\n')
    project.suite(case("a", said="hello there you", assertions=[judge, {"type": "contains", "value": "hello"}]))
    project.test()
    with run_viewer(project) as viewer:
        viewer.open_link()
        visit = Visit(browser, viewer)
        page = visit.go("#/runs/latest/case/suite.jsonl/a", "[data-check='1-1'] button")
        page.locator("[data-check='1-1'] button.disagree").focus()
        page.keyboard.press("Enter")
        expect(page.locator("[data-check='1-1'] button.disagree")).to_have_attribute("aria-pressed", "true")
        page.locator("[data-check='1-1'] input").fill("it is <b>curt</b>")
        page.keyboard.press("Enter")
        expect(page.locator("[data-check='1-1']")).to_contain_text("it is <b>curt</b>")
        page.locator("[data-check=case] .label-open").click()
        page.locator("[data-check=case] button.agree").click()
        expect(page.locator("[data-check=case] button.agree")).to_have_attribute("aria-pressed", "true")
        assert check_all_sizes(page, "view-labels") == []
        page = visit.go("#/runs/latest", ".agreement")
        expect(page.locator(".agreement").first).to_contain_text("Judges and people agree0/1")
        assert run_axe(page) == []
        page = visit.go("#/history", ".label-history")
        expect(page.locator(".label-history tbody tr")).to_contain_text("0 %")
        assert run_axe(page) == []
        visit.end()
    project.viva("test", "--resume", "latest", "-o", "report.html", code=0)
    context = browser.new_context(viewport=DESKTOP)
    report = context.new_page()
    report.goto((project.folder / "report.html").as_uri() + "#/case/suite.jsonl/a")
    expect(report.locator("[data-check='1-1']")).to_contain_text("disagrees")
    assert report.locator("[data-check] button").count() == 0
    context.close()


def test_a_case_and_a_run_are_rerun_from_the_page(browser: Any, project: Project):
    project.suite(case("a"), case("b"))
    project.write(".git/HEAD", "ref: refs/heads/trunk\n")
    project.write(".git/refs/heads/trunk", "0123456789abcdef0123456789abcdef01234567\n")
    project.test()
    with run_viewer(project, "--allow-run") as viewer:
        viewer.open_link()
        visit = Visit(browser, viewer)
        page = visit.go("#/runs/latest/case/suite.jsonl/b", "#rerun")
        page.click("#rerun")
        page.wait_for_selector("#cases a")
        expect(page.locator("#verdict")).to_have_text("Passed")
        assert "1 of 1 passed" in page.text_content("h1")
        page = visit.go("#/runs/latest~1", "#run-again")
        page.click("#run-again")
        page.wait_for_url(lambda url: "latest" not in url)
        expect(page.locator("h1")).to_contain_text("2 of 2 passed")
        newest, _, oldest = viewer.get("/api/runs").json
        assert (newest["rerun_of"], newest["branch"]) == (oldest["id"], "trunk")
        page.click(".rerun-link a[href*=runs]")
        expect(page.locator("#verdict + .score")).to_contain_text("2 of 2 passed")
        expect(page.locator(".rerun-link")).to_have_count(2)  # the run, and a case of it
        assert page.locator(f".rerun-link a[href='#/compare/{oldest['id']}/{newest['id']}']").count() == 1
        page = visit.go("#/runs?text=trunk", "#runs a")
        assert page.locator("#runs a").count() == 3
        page.locator("main").press("/")
        page.keyboard.type(f" {newest['id']}")
        expect(page.locator("#found")).to_have_text("1 of 3 runs")
        assert run_axe(page) == []
        visit.end()


def test_without_allow_run_nothing_can_be_started(browser: Any, shared_history: History):
    visit = Visit(browser, shared_history.viewer)
    page = visit.go(f"#/runs/{shared_history.runs[0]}/case/tests%2Fflows.yaml/yes-but", "#conversation")
    assert page.locator("#rerun").count() == 0
    asked = f"fetch('api/runs/{shared_history.runs[0]}/cases/0/rerun', {{method: 'POST'}}).then(response => response.status)"
    assert page.evaluate(asked) == 403
    visit.context.close()


def test_the_rows_of_a_large_run_come_in_pieces(browser: Any, tmp_path: Path):
    """Filters and search are the server's; a case has the same neighbours as in the list."""
    project = many_runs(tmp_path, 6000)
    assert project.viva("runs", "reindex").code == 0
    with run_viewer(project) as viewer:
        viewer.open_link()
        visit = Visit(browser, viewer)
        page = visit.go("#/runs/latest?sort=input", "#cases a[data-case=case-00000]")
        expect(page.locator("#found")).to_have_text("6,000 cases")
        assert "600 failed" in page.get_attribute("#strip", "aria-label")
        page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
        page.wait_for_selector("#cases a[data-case=case-05999]")
        assert page.locator("#cases a").count() < 100
        page.click("#filter-failed")
        expect(page.locator("#found")).to_have_text("600 of 6,000 cases")
        page.fill("#search", '"question 5553"')
        expect(page.locator("#found")).to_have_text("1 of 6,000 cases")
        expect(page.locator("#cases .hit")).to_contain_text("turn 1 · user")
        page.fill("#search", "policy")
        expect(page.locator("#found")).to_have_text("600 of 6,000 cases")
        page.locator("#cases a[data-case=case-00003]").click()
        page.wait_for_selector("#conversation")
        expect(page.locator(".steps")).to_contain_text("1 of 600")
        expect(page.locator("#find-count")).to_contain_text("1 of")
        page.keyboard.press("j")
        expect(page.locator("#case-title")).to_contain_text("case-00013")
        page = visit.go("#/runs/latest/case/suite.jsonl/nosuch", "[role=alert]")
        visit.context.close()


class _Evil(BaseHTTPRequestHandler):
    """Another site on this machine, with an empty page."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(b"<title>evil</title>")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


def test_another_site_can_neither_read_nor_start_runs(browser: Any, project: Project):
    """With the cookie in the same browser, from another port of this machine: no data, no run, no frame."""
    project.suite(case("a"))
    project.test()
    evil = ThreadingHTTPServer(("127.0.0.1", 0), _Evil)
    threading.Thread(target=evil.serve_forever, daemon=True).start()
    with run_viewer(project, "--allow-run") as viewer:
        viewer.open_link()
        visit = Visit(browser, viewer)
        visit.go("", "#runs a")
        page = visit.context.new_page()
        page.goto(f"http://127.0.0.1:{evil.server_port}/")
        read = f"fetch('{viewer.origin}/api/runs', {{credentials: 'include'}}).then(a => a.text(), e => 'refused')"
        assert page.evaluate(read) == "refused"
        blind = "{method: 'POST', mode: 'no-cors', credentials: 'include'}"
        page.evaluate(f"fetch('{viewer.origin}/api/runs/latest/cases/0/rerun', {blind}).catch(() => 0)")
        framed = page.evaluate(
            f"""() => new Promise(done => {{
                const frame = document.createElement('iframe');
                frame.onload = () => done(frame.contentDocument === null);
                frame.src = '{viewer.origin}/';
                document.body.append(frame);
            }})"""
        )
        assert framed
        assert "runs" not in [frame.title() for frame in page.frames]
        streamed = f"""() => new Promise(done => {{
            const source = new EventSource('{viewer.origin}/api/runs/latest/events', {{withCredentials: true}});
            source.onmessage = () => done('data');
            source.onerror = () => done('refused');
        }})"""
        assert page.evaluate(streamed) == "refused"
        assert len(viewer.get("/api/runs").json) == 1
        visit.context.close()
    evil.shutdown()
    evil.server_close()


def test_hostile_texts_never_run_on_any_screen(browser: Any, project: Project):
    """In every field of lists, cases, comparison and history, with the content security policy of the server."""
    planted = planted_runs(project.folder)
    assert planted.viva("runs", "reindex").code == 0
    with run_viewer(planted) as viewer:
        viewer.open_link()
        newest, oldest = (run["id"] for run in viewer.get("/api/runs").json)
        visit = Visit(browser, viewer)
        page = visit.go(f"#/runs/{newest}?sort=input", "#cases a")
        page.keyboard.press("j")
        page.keyboard.press("Enter")
        for at in range(len(PLANTED)):
            expect(page.locator(".steps")).to_contain_text(f"{at + 1} of {len(PLANTED)}")
            page.wait_for_selector("#conversation")
            page.keyboard.press("j")
        pair = f"#/compare/{oldest}/{newest}"
        for place, until in ((pair, "#changes a"), ("#/history", ".charts"), ("", "#runs a")):
            page = visit.go(place, until)
            if place == pair:
                page.locator("#changes a").first.click()
                page.wait_for_selector("#pair .turn")
            assert page.evaluate("window.pwned") is None
            assert page.locator("#app iframe, #app img, #app base, #app a[href^='javascript']").count() == 0
        assert re.search(r"script-src 'sha256-[^']+';", viewer.get("/").headers["content-security-policy"])
        visit.end()


TWO_AGENTS = """
def same(messages):
    return {"content": "I say: " + messages[-1]["content"], "usage": {"cost_usd": 0.002}}

def deaf(messages):
    return {"content": "I say: what was that?", "usage": {"cost_usd": 0.001}}
"""


def test_several_agents_have_a_matrix_that_leads_to_both_conversations(browser: Any, project: Project):
    """The matrix, what differs between two agents, the words that differ between their replies, and the trials."""
    project.write("pair.py", TWO_AGENTS)
    project.write("viva.toml", "".join(f'[agents.{name}]\nuse = "python:pair:{name}"\n' for name in ("same", "deaf")))
    project.suite(*(case(f"c{number}", f"hello {number}") for number in range(7)))
    project.test("-n", "same", "-n", "deaf", "--runs", "2", "-q")
    project.test("-n", "deaf", "-q", "-k", "c1")
    with run_viewer(project) as viewer:
        viewer.open_link()
        visit = Visit(browser, viewer)
        page = visit.go("#/runs/latest~1", "#matrix")
        expect(page.locator("#matrix .agents tbody tr")).to_have_count(2)
        expect(page.locator("#matrix tr.worse")).to_contain_text("worse")
        expect(page.locator(".quality-plot circle")).to_have_count(2)
        assert check_all_sizes(page, "matrix") == []
        for size in (PHONE, {"width": 1024, "height": 768}):
            page.set_viewport_size(size)
            expect(page.locator(".matrix-cell.failed").first).to_be_in_viewport(ratio=1)
        page.set_viewport_size(PHONE)
        row = page.locator(".cells tbody tr").first
        name, *cells = [each.bounding_box() for each in (row.locator("th"), *row.locator("td").all())]
        assert all(cell["y"] >= name["y"] + name["height"] - 1 for cell in cells), "the name stands above its cells"
        assert all(cell["x"] + cell["width"] <= PHONE["width"] for cell in cells)
        page.set_viewport_size(DESKTOP)
        page.locator(".cells tbody tr").first.locator("a").nth(1).click()
        page.wait_for_selector("#case-title")
        assert "on=deaf" in page.url
        expect(page.locator("#trial").first).to_contain_text("what was that?")
        page.go_back()
        page.locator("#matrix .difference a").click()
        page.wait_for_selector("#changes a")
        expect(page.locator("#answer")).to_have_text(
            re.compile(r"Head is worse: 0\.0 % pass, before 100\.0 % \(more than chance, p 0\.\d+\)")
        )
        expect(page.locator("#differences")).to_contain_text("python:pair:same")
        expect(page.locator("#changes a").first).to_contain_text("2 of 2")
        expect(page.locator("#changes a").first).to_contain_text("is not in")
        page.set_viewport_size(PHONE)
        hidden = page.locator("#metrics").evaluate("table => table.scrollWidth - table.parentElement.clientWidth")
        assert hidden <= 0, "the intervals are in sight on a phone"
        page.set_viewport_size(DESKTOP)
        page.locator("#changes a").first.click()
        page.wait_for_selector(".reply-diff")
        assert page.locator(".reply-diff del").all_inner_texts()
        assert page.locator(".reply-diff ins").all_inner_texts()
        page.locator(".trial-switch a").nth(3).click()
        page.wait_for_url(re.compile("head_trial=2"))
        page.keyboard.press("j")
        page.wait_for_url(re.compile("case=c1"))
        page = visit.go("#/compare/latest~1/latest", "#pickers select")
        page.select_option("#pick-head", index=1)
        page.wait_for_url(re.compile("compare/([^/]+)/\\1"))
        project.test("-n", "same", "-q")
        page = visit.go("#/compare/latest~2/latest~1/latest", "#matrix .agents")
        page.set_viewport_size({"width": 1440, "height": 900})
        hidden = page.locator(".agents").evaluate("table => table.scrollWidth - table.parentElement.clientWidth")
        assert hidden <= 0, "names of runs leave room for the intervals"
        page.set_viewport_size(DESKTOP)
        page = visit.go("#/history", ".history-line")
        expect(page.locator(".history-line")).to_have_count(2)
        expect(page.locator("#history-all")).not_to_be_checked()
        page.check("#history-all")
        expect(page.locator(".chart circle.left-out").first).to_be_visible()
        visit.end()
