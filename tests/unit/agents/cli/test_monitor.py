"""What a CLI says beside its stream."""

import base64
import os
from pathlib import Path

import pytest
from msgspec import structs

from viva.agents.cli.events import CliTurn, SessionStarted, TextPrinted
from viva.agents.cli.monitor import OutputMonitor
from viva.agents.cli.opencode import OPENCODE
from viva.agents.cli.output_text import format_tail
from viva.agents.cli.qwen import QWEN
from viva.model.progress import CallProgress

BUSY = "2026-01-01T00:00:00Z [ERROR] [RETRY] Attempt 1 failed with status 503. Retrying with backoff in 2s...\n"


class Silent:
    stderr_tail = ""


def watching(home: Path, *, log: str = "") -> tuple[OutputMonitor, Path]:
    """A turn of the session `s1` has begun, whose log held this already."""
    file = home / ".qwen" / "debug" / "s1.txt"
    file.parent.mkdir(parents=True)
    file.write_text(log, encoding="utf-8")
    turn = CliTurn((), "m")
    watch = OutputMonitor(QWEN, turn, str(home))
    opened = SessionStarted("s1")
    turn.add_event(opened)
    watch.add_event(opened, Silent())
    return watch, file


def told(watch: OutputMonitor, stderr: str = "") -> tuple[str | None, str]:
    watch.stderr, progress = stderr, CallProgress()
    watch.report_progress(progress)
    return progress.provider_trouble, progress.stderr_tail


def append(file: Path, text: str) -> None:
    file.write_text(file.read_text(encoding="utf-8") + text, encoding="utf-8")


def test_provider_errors_are_found_in_the_log_of_the_cli(tmp_path: Path):
    watch, file = watching(tmp_path)
    assert told(watch) == (None, "")
    append(file, BUSY)
    assert "status 503" in str(told(watch)[0])  # P11


def test_what_the_log_told_before_this_turn_or_before_it_got_on_is_over(tmp_path: Path):
    watch, file = watching(tmp_path, log=BUSY)
    assert told(watch, "bye") == (None, "bye")
    append(file, BUSY)
    watch.add_event(TextPrinted("So then"), Silent())
    assert told(watch, "bye") == (None, "bye")
    assert watch.find_fault(None) is None


def test_a_link_in_place_of_the_log_is_not_followed(tmp_path: Path):
    watch, file = watching(tmp_path)
    (tmp_path / "else.txt").write_text(BUSY, encoding="utf-8")
    file.unlink()
    file.symlink_to(tmp_path / "else.txt")
    assert told(watch) == (None, "")


def test_a_cli_without_such_a_log_has_none_to_be_read(tmp_path: Path):
    watch, file = watching(tmp_path)
    append(file, BUSY)
    watch.spec = structs.replace(QWEN, log_file="")
    assert told(watch) == (None, "")


STREAM_ERROR = (
    'timestamp=2026-01-01T00:00:00.000Z level=ERROR run=1 message="stream error" providerID=x modelID=m session.id=s '
    'small={small} agent={agent} mode=primary error.error="AI_APICallError: {said}"\n'
)


@pytest.mark.parametrize(
    ("small", "agent", "expected"),
    [("false", "build", "AI_APICallError: Overloaded"), ("true", "title", None)],
)
def test_provider_errors_of_opencode_are_found_in_its_log(tmp_path: Path, small: str, agent: str, expected: str | None):
    """P11: also before it has named a session, and after faults of earlier turns. A missing title is not a fault."""
    file = tmp_path / ".local" / "share" / "opencode" / "log" / "opencode.log"
    file.parent.mkdir(parents=True)
    file.write_text(STREAM_ERROR.format(small="false", agent="build", said="before"), encoding="utf-8")
    watch = OutputMonitor(OPENCODE, CliTurn((), "m"), str(tmp_path))
    assert watch.find_fault(None) is None
    append(file, STREAM_ERROR.format(small=small, agent=agent, said="Overloaded"))
    fault = watch.find_fault(None)
    assert (fault.message if fault else None) == expected
    watch.add_event(TextPrinted("So then"), Silent())
    assert watch.find_fault(None) is None


def test_start_up_lines_are_not_part_of_the_last_lines():
    printed = "YOLO mode is enabled. All tool calls will be automatically approved.\nRipgrep is not available.\n"
    assert format_tail(printed + "    at run (x.js:1)\n\x1b[31mboom\x1b[0m\n") == "boom"


@pytest.mark.parametrize("trick", ["pipe", "folder that is a link", "link", "session that is a path", "no name at all"])
def test_a_log_that_is_something_else_is_neither_waited_for_nor_followed(trick: str, tmp_path: Path):
    """The agent owns its HOME; what it puts there leads nowhere else."""
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    (secrets / "s1.txt").write_text(BUSY, encoding="utf-8")
    watch, file = watching(tmp_path / "home")
    session = "s1"
    file.unlink()
    if trick == "pipe":
        os.mkfifo(file)
    elif trick == "link":
        file.symlink_to(secrets / "s1.txt")
    elif trick == "folder that is a link":
        file.parent.rmdir()
        file.parent.symlink_to(secrets)
    else:
        session = "../../../secrets/s1" if trick == "session that is a path" else "s\0"
    watch.turn.add_event(SessionStarted(session))
    watch.add_event(SessionStarted(session), Silent())
    assert told(watch) == (None, "")


BASE64 = base64.b64encode(bytes(range(256)) * 36).decode()


@pytest.mark.parametrize(
    ("expected", "shown"),
    [
        (f'{{"data": "{BASE64}", "error": 1}}', '{"data": "[12 kB of base64 data]", "error": 1}'),
        (f"before\n{base64.encodebytes(bytes(range(256))).decode()}after", "before\n[348 bytes of base64 data]\nafter"),
        (bytes(range(150, 160)).hex() * 20, "[400 bytes of base64 data]"),
        ("a\n\x00\x01\x02\ufffd\ufffd\n\x7f\x80\n\x1b[31mred\x1b[0m", "a\n[7 bytes of binary data]\nred"),
        ("-" * 150, "-" * 150),
        ("[" * 20_000 + " end", "[[ 20,000 times] end"),
        ("größe, naïve, 数据", "größe, naïve, 数据"),
    ],
)
def test_data_is_not_shown_in_a_message(expected: str, shown: str):
    assert format_tail(expected) == shown


def test_lines_outside_the_stream_are_shown_without_their_data(tmp_path: Path):
    watch, _ = watching(tmp_path)
    watch.add_unparsed_line(f'{{"parts": [{{"inlineData": "{BASE64}'.encode())
    watch.stderr = BASE64
    assert watch.output_tail() == '{"parts": [{"inlineData": "[12 kB of base64 data]\n[12 kB of base64 data]'


def test_of_a_flood_only_the_end_is_searched():
    """What a CLI prints is cut before data is looked for in it, since that takes time."""
    flood = (BASE64 * 10)[:100_000]
    assert format_tail(f"before {flood}") == "…[32 kB of base64 data]"
    watch = OutputMonitor(QWEN, CliTurn((), "m"))
    for _ in range(3):
        watch.add_unparsed_line(flood.encode())
    watch.stderr = "boom"
    assert watch.output_tail() == "…[32 kB of base64 data]…\nboom"
