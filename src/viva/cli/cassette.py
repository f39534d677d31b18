"""`viva cassette`: look at recorded replies, throw out what no longer fits, compare two recordings."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import click

from viva.errors import BadInput
from viva.model import codec
from viva.model.case import Key
from viva.model.turn import FileImage
from viva.record.cassette import (
    AgentDefinition,
    CassetteHeader,
    CassetteLine,
    RecordedReply,
    RecordedSession,
    TrialDuration,
    diff_json,
    iter_replies,
    read_cassette,
    remove_trials,
    rewrite_cassette,
    trial_key,
)
from viva.reporters.formatting import escape_controls, fit_line, format_count, format_ms

EPILOG = """\b
Examples:
  viva test -i tests/ --record talk.cassette    make one
  viva cassette show talk.cassette              its conversations
  viva cassette show talk.cassette T001         one of them, line by line
  viva cassette prune talk.cassette -k '^old'   forget cases by their id
  viva cassette diff old.cassette new.cassette  what is asked and answered otherwise
"""
SessionReply = tuple[RecordedSession, RecordedReply]
_TEXT = 20_000
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.group(epilog=EPILOG)
def command() -> None:
    """Look at cassettes, prune and compare them."""


@command.command(epilog="Example: viva cassette show talk.cassette T001")
@click.argument("file", type=_FILE)
@click.argument("case", required=False)
@click.option("--json", "as_json", is_flag=True, help="The entries as lines of JSON.")
def show(file: Path, case: str | None, as_json: bool) -> int:
    """Show what FILE holds: its conversations, or all that was said in one CASE."""
    lines = list(read_cassette(file))
    told = [each for each in iter_replies(lines) if case in (None, each[0].key.case)]
    if case is not None and not told:
        raise BadInput.of(f"has no case {case!r}", str(file))
    if as_json:
        for session, entry in told:
            entry.new_session = None
            print(codec.compact_json(codec.to_builtins(session) | codec.to_builtins(entry)))
        return 0
    if case is not None:
        print("\n".join(_said(*each) for each in told))
        return 0
    header = next(line for line in lines if isinstance(line, CassetteHeader))
    agents = [line.agent for line in lines if isinstance(line, AgentDefinition)]
    took = {line.key: line.duration_ms for line in lines if isinstance(line, TrialDuration)}
    print(f"recorded by Viva {escape_controls(header.viva)}: {len(told):,} {'reply' if len(told) == 1 else 'replies'}")
    print(f"agents: {escape_controls(', '.join(dict.fromkeys(agents)))}")
    for key, state in _by_key(told).items():
        counts = Counter(session.role for session, _ in state)
        roles = ", ".join(f"{number} {role}" for role, number in counts.items())
        cost = sum(call.cost_usd or 0.0 for _, entry in state for call in entry.model_calls)
        time = f"  {format_ms(took[key])}" if key in took else ""
        print(f"  {_name(key)}: {roles}{time}" + (f"  ${cost:.4f}" if cost else ""))
    return 0


@command.command(epilog="Example: viva cassette prune talk.cassette -k '^old-' --unfinished")
@click.argument("file", type=_FILE)
@click.option("-k", "--run", "only", metavar="REGEX", help="Forget cases whose id matches.")
@click.option("--unfinished", is_flag=True, help="Forget trials that had not ended when the recording was cut off.")
@click.option("--dry-run", is_flag=True, help="Say what would go, and change nothing.")
def prune(file: Path, only: str | None, unfinished: bool, dry_run: bool) -> int:
    """Throw recorded conversations out of FILE."""
    from viva.text.pattern import compile_pattern, search

    if only is None and not unfinished:
        raise click.UsageError("what shall go? Give -k REGEX, --unfinished, or both")
    try:
        if only is not None:
            compile_pattern(only)
    except ValueError as wrong:
        raise BadInput.of(f"-k {wrong}") from wrong
    lines = list(read_cassette(file))
    ended = {trial_key(line.key) for line in lines if isinstance(line, TrialDuration)}

    def goes(key: Key) -> bool:
        return (only is not None and search(only, key.case)) or (unfinished and trial_key(key) not in ended)

    kept = list(remove_trials(lines, goes))
    gone = set(_trials(lines)) - set(_trials(kept))
    if not dry_run and gone:
        try:
            rewrite_cassette(file, kept)
        except OSError as wrong:
            raise BadInput.of(f"cannot be written: {wrong.strerror}", str(file)) from wrong
    for key in sorted(gone):
        print(f"{'would remove' if dry_run else 'removed'} {_name(key)}")
    print(f"{format_count(len(lines) - len(kept), 'line')} of {len(lines):,}")
    return 0


@command.command("diff", epilog="Example: viva cassette diff old.cassette new.cassette")
@click.argument("old", type=_FILE)
@click.argument("new", type=_FILE)
def compare(old: Path, new: Path) -> int:
    """Compare two recordings: agents defined otherwise, and the first reply of each conversation that differs. Exit 1 if any."""
    before, after = list(read_cassette(old)), list(read_cassette(new))
    found = [*_definitions(before, after), *_conversations(before, after)]
    print("\n".join(found) if found else "nothing differs")
    return 1 if found else 0


def _definitions(before: Iterable[CassetteLine], after: Iterable[CassetteLine]) -> list[str]:
    was, now = (
        {line.agent: line.definition for line in each if isinstance(line, AgentDefinition)} for each in (before, after)
    )
    return [
        f"≠ agent {escape_controls(name)} was defined otherwise\n{_indented(diff_json(was[name], now[name], 'old', 'new'))}"
        for name in was.keys() & now.keys()
        if codec.canonical_bytes(was[name]) != codec.canonical_bytes(now[name])
    ]


def _conversations(before: Iterable[CassetteLine], after: Iterable[CassetteLine]) -> list[str]:
    was, now = (_by_key(iter_replies(each)) for each in (before, after))
    found: list[str] = []
    for key in dict.fromkeys([*was, *now]):
        if key not in was or key not in now:
            found.append(f"{'+' if key in now else '-'} {_name(key)}")
        elif (changed := _first_change(was[key], now[key])) is not None:
            found.append(f"≠ {_name(key)}, {changed}")
    return found


def _first_change(was: list[SessionReply], now: list[SessionReply]) -> str | None:
    """The first place at which two recordings of one conversation part."""
    for (_, old), (session, new) in zip(sorted(was, key=_place), sorted(now, key=_place), strict=False):
        for what, had, has in (
            ("asked of", old.sent, new.sent),
            ("said by", _answer(old), _answer(new)),
        ):
            if codec.canonical_bytes(had) != codec.canonical_bytes(has):
                who = f"turn {new.turn}: {what} the {session.role} {escape_controls(session.agent)}"
                return f"{who}\n{_indented(diff_json(had, has, 'old', 'new'))}"
    return None if len(was) == len(now) else f"{len(was)} replies became {len(now)}"


def _answer(entry: RecordedReply) -> dict[str, object]:
    """What was said or done, without what it cost."""
    files = {image.path: _shown_file(image) for image in _files(entry)}
    if (reply := entry.reply) is None:
        return {"fault": entry.fault, "said": entry.fault_message, "files": files}
    return {"content": reply.content, "data": reply.data, "tool_calls": reply.tool_calls, "files": files}


def _files(entry: RecordedReply) -> tuple[FileImage, ...]:
    return entry.turn_files.files if entry.turn_files is not None else ()


def _shown_file(image: FileImage) -> str | None:
    """What a file held; None if it was removed."""
    if image.content is None:
        return f"→ {image.link}" if image.link is not None else "a folder" if image.folder else None
    return image.content.decode(errors="replace") if len(image.content) <= _TEXT else f"{len(image.content):,} bytes"


def _place(told: SessionReply) -> tuple[int, bool, str, str, int]:
    """Parallel helpers are recorded in the order of their answers; this order is the same in each recording."""
    session, entry = told
    return entry.turn, session.role != "agent", session.role, session.agent, entry.session


def _trials(lines: list[CassetteLine]) -> Iterator[Key]:
    yield from (trial_key(session.key) for session, _ in iter_replies(lines))
    yield from (trial_key(line.key) for line in lines if isinstance(line, TrialDuration))


def _by_key(told: Iterable[SessionReply]) -> dict[Key, list[SessionReply]]:
    found: dict[Key, list[SessionReply]] = defaultdict(list)
    for session, entry in told:
        found[session.key].append((session, entry))
    return found


def _name(key: Key) -> str:
    if not key.case:
        return "before the run"
    again = f", attempt {key.attempt}" if key.attempt > 1 else ""
    return f"{escape_controls(key.case)} (trial {key.trial}{again}) of {escape_controls(key.suite)}"


def _said(session: RecordedSession, entry: RecordedReply) -> str:
    asked = entry.sent.message.get("content", "") if entry.sent is not None else ""
    heard = (
        entry.reply.content or codec.compact_json(entry.reply.data)
        if entry.reply
        else f"{entry.fault}: {entry.fault_message}"
    )
    calls = (
        "".join(f"\n      tool {escape_controls(call.name)}" for call in entry.reply.tool_calls) if entry.reply else ""
    )
    calls += "".join(f"\n      file {escape_controls(image.path)}" for image in _files(entry) if not image.folder)
    shown = asked if isinstance(asked, str) else codec.compact_json(asked)
    return (
        f"{_name(session.key)}, turn {entry.turn}: {session.role} {escape_controls(session.agent)}  {format_ms(entry.ms)}\n"
        f"    > {fit_line(shown, 200)}\n    < {fit_line(heard, 200)}{calls}"
    )


def _indented(text: str) -> str:
    return "\n".join(f"    {escape_controls(line)}" for line in text.splitlines())
