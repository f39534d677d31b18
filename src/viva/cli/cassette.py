"""`viva cassette`: shows, prunes and compares recorded replies."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import click
from msgspec import structs

from viva.errors import BadInput
from viva.model import codec
from viva.model.case import Key
from viva.model.turn import RecordedFile
from viva.record.cassette import (
    AgentDefinition,
    CassetteHeader,
    CassetteLine,
    RecordedReply,
    RecordedSession,
    TrialDuration,
    diff_json,
    get_trial_key,
    iterate_replies,
    read_cassette,
    remove_trials,
    rewrite_cassette,
)
from viva.reporters.formatting import escape_controls, fit_line, format_count, format_ms
from viva.session.case_selection import validate_id_filter
from viva.text.pattern import has_pattern_match

EPILOG = """\b
Examples:
  viva test -i tests/ --record chat.cassette    record a run
  viva cassette show chat.cassette              list its conversations
  viva cassette show chat.cassette T001         show the conversation of a case
  viva cassette prune chat.cassette -k '^old'   delete cases by their id
  viva cassette diff old.cassette new.cassette  show changed requests and replies
"""
SessionReply = tuple[RecordedSession, RecordedReply]
_MAX_FILE_TEXT = 20_000
_EXISTING_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.group(epilog=EPILOG)
def command() -> None:
    """Show, prune and compare cassettes (recorded replies)."""


@command.command(epilog="Example: viva cassette show chat.cassette T001")
@click.argument("file", type=_EXISTING_FILE)
@click.argument("case", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print the replies as lines of JSON.")
def show(file: Path, case: str | None, as_json: bool) -> int:
    """List the conversations in FILE, or show the one of CASE."""
    lines = list(read_cassette(file))
    replies = [(session, reply) for session, reply in iterate_replies(lines) if case in (None, session.key.case)]
    if case is not None and not replies:
        raise BadInput.of(f"has no case {case!r}; list the cases with `viva cassette show {file}`", str(file))
    if as_json:
        for session, reply in replies:
            reply.new_session = None
            print(codec.compact_json(codec.to_builtins(session) | codec.to_builtins(reply)))
        return 0
    if case is not None:
        shown = [(key, *each) for key, conversation in _group_by_key(replies).items() for each in conversation]
        print("\n".join(_format_reply(*each) for each in shown))
        return 0
    header = next(line for line in lines if isinstance(line, CassetteHeader))
    agents = [line.agent for line in lines if isinstance(line, AgentDefinition)]
    durations = {line.key: line.duration_ms for line in lines if isinstance(line, TrialDuration)}
    count = f"{len(replies):,} {'reply' if len(replies) == 1 else 'replies'}"
    print(f"recorded by Viva {escape_controls(header.viva)}: {count}")
    print(f"agents: {escape_controls(', '.join(dict.fromkeys(agents)))}")
    for key, conversation in _group_by_key(replies).items():
        counts = Counter(session.role for session, _ in conversation)
        roles = ", ".join(f"{number} {role}" for role, number in counts.items())
        cost = sum(call.cost_usd or 0.0 for _, reply in conversation for call in reply.model_calls)
        duration_ms = durations.get(conversation[0][0].key)
        time = f"  {format_ms(duration_ms)}" if duration_ms is not None else ""
        print(f"  {_format_key(key)}: {roles}{time}" + (f"  ${cost:.4f}" if cost else ""))
    return 0


@command.command(epilog="Example: viva cassette prune chat.cassette -k '^old-' --unfinished")
@click.argument("file", type=_EXISTING_FILE)
@click.option("-k", "--run", "only", metavar="REGEX", help="Delete cases whose id matches.")
@click.option("--unfinished", is_flag=True, help="Delete trials that had not ended when the recording stopped.")
@click.option("--dry-run", is_flag=True, help="Print what would be deleted, and change nothing.")
def prune(file: Path, only: str | None, unfinished: bool, dry_run: bool) -> int:
    """Delete recorded conversations from FILE."""
    if only is None and not unfinished:
        raise click.UsageError("Nothing selected. Pass -k REGEX, --unfinished, or both")
    validate_id_filter(only)
    lines = list(read_cassette(file))
    ended = {get_trial_key(line.key) for line in lines if isinstance(line, TrialDuration)}

    def should_remove(key: Key) -> bool:
        return (only is not None and has_pattern_match(only, key.case)) or (
            unfinished and get_trial_key(key) not in ended
        )

    remaining = list(remove_trials(lines, should_remove))
    removed = set(_iterate_trial_keys(lines)) - set(_iterate_trial_keys(remaining))
    if not dry_run and removed:
        try:
            rewrite_cassette(file, remaining)
        except OSError as error:
            raise BadInput.of(f"cannot be written: {error.strerror}", str(file)) from error
    for key in sorted(_remove_only_agent(removed)):
        print(f"{'would remove' if dry_run else 'removed'} {_format_key(key)}")
    print(f"{format_count(len(lines) - len(remaining), 'line')} of {len(lines):,}")
    return 0


@command.command("diff", epilog="Example: viva cassette diff old.cassette new.cassette")
@click.argument("old", type=_EXISTING_FILE)
@click.argument("new", type=_EXISTING_FILE)
def diff(old: Path, new: Path) -> int:
    """Compare two recordings. It prints changed agents, and the first difference in each conversation; exit code 1 if they differ."""
    before, after = list(read_cassette(old)), list(read_cassette(new))
    differences = [*_compare_definitions(before, after), *_compare_conversations(before, after)]
    print("\n".join(differences) if differences else "no differences")
    return 1 if differences else 0


def _compare_definitions(before: Iterable[CassetteLine], after: Iterable[CassetteLine]) -> list[str]:
    was, now = (
        {line.agent: line.definition for line in lines if isinstance(line, AgentDefinition)}
        for lines in (before, after)
    )
    return [
        f"≠ agent {escape_controls(name)} has another definition\n{_indent_text(diff_json(was[name], now[name]))}"
        for name in was.keys() & now.keys()
        if codec.encode_canonically(was[name]) != codec.encode_canonically(now[name])
    ]


def _compare_conversations(before: Iterable[CassetteLine], after: Iterable[CassetteLine]) -> list[str]:
    was, now = (_group_by_key(iterate_replies(lines)) for lines in (before, after))
    differences: list[str] = []
    for key in dict.fromkeys([*was, *now]):
        if key not in was or key not in now:
            differences.append(f"{'+' if key in now else '-'} {_format_key(key)}")
        elif (changed := _find_first_change(was[key], now[key])) is not None:
            differences.append(f"≠ {_format_key(key)}, {changed}")
    return differences


def _find_first_change(was: list[SessionReply], now: list[SessionReply]) -> str | None:
    """Return the first difference between two recordings of one conversation."""
    for (_, old), (session, new) in zip(
        sorted(was, key=_sort_reply_key), sorted(now, key=_sort_reply_key), strict=False
    ):
        for what, before, after in (
            ("request to", old.sent, new.sent),
            ("reply of", _extract_content(old), _extract_content(new)),
        ):
            if codec.encode_canonically(before) != codec.encode_canonically(after):
                place = f"turn {new.turn}: {what} the {session.role} {escape_controls(session.agent)}"
                return f"{place}\n{_indent_text(diff_json(before, after))}"
    return None if len(was) == len(now) else f"{len(was)} replies became {len(now)}"


def _extract_content(recorded: RecordedReply) -> dict[str, object]:
    """Return what the agent said and did, without cost and time."""
    files = {image.path: _format_file(image) for image in _list_turn_files(recorded)}
    if (reply := recorded.reply) is None:
        return {"fault": recorded.fault, "message": recorded.fault_message, "files": files}
    return {"content": reply.content, "data": reply.data, "tool_calls": reply.tool_calls, "files": files}


def _list_turn_files(reply: RecordedReply) -> tuple[RecordedFile, ...]:
    return reply.turn_files.files if reply.turn_files is not None else ()


def _format_file(image: RecordedFile) -> str | None:
    """Return the content of a file; None if it was removed."""
    if image.content is None:
        return f"→ {image.link}" if image.link is not None else "a folder" if image.folder else None
    return (
        image.content.decode(errors="replace")
        if len(image.content) <= _MAX_FILE_TEXT
        else f"{len(image.content):,} bytes"
    )


def _sort_reply_key(replies: SessionReply) -> tuple[int, bool, str, str, int]:
    """Return a sort key that is the same in every recording: parallel helpers are recorded in the order of their replies."""
    session, reply = replies
    return reply.turn, session.role != "agent", session.role, session.agent, reply.session


def _iterate_trial_keys(lines: list[CassetteLine]) -> Iterator[Key]:
    yield from (get_trial_key(session.key) for session, _ in iterate_replies(lines))
    yield from (get_trial_key(line.key) for line in lines if isinstance(line, TrialDuration))


def _group_by_key(replies: Iterable[SessionReply]) -> dict[Key, list[SessionReply]]:
    """The replies of each attempt by its key. With one agent under test the keys do not name it, so that recordings of
    different agents can be compared.
    """
    conversations: dict[Key, list[SessionReply]] = defaultdict(list)
    for session, reply in replies:
        conversations[session.key].append((session, reply))
    return dict(zip(_remove_only_agent(conversations), conversations.values(), strict=True))


def _remove_only_agent(keys: Iterable[Key]) -> list[Key]:
    keys = list(keys)
    if len({key.agent for key in keys if key.case}) > 1:
        return keys
    return [structs.replace(key, agent="") for key in keys]


def _format_key(key: Key) -> str:
    if not key.case:
        return "before the run"
    attempt = f", attempt {key.attempt}" if key.attempt > 1 else ""
    agent = f" on {escape_controls(key.agent)}" if key.agent else ""
    return f"{escape_controls(key.case)} (trial {key.trial}{attempt}) of {escape_controls(key.suite)}{agent}"


def _format_reply(key: Key, session: RecordedSession, reply: RecordedReply) -> str:
    message = reply.sent.message.get("content", "") if reply.sent is not None else ""
    answer = (
        reply.reply.content or codec.compact_json(reply.reply.data)
        if reply.reply
        else f"{reply.fault}: {reply.fault_message}"
    )
    calls = (
        "".join(f"\n      tool {escape_controls(call.name)}" for call in reply.reply.tool_calls) if reply.reply else ""
    )
    calls += "".join(
        f"\n      file {escape_controls(image.path)}" for image in _list_turn_files(reply) if not image.folder
    )
    text = message if isinstance(message, str) else codec.compact_json(message)
    return (
        f"{_format_key(key)}, turn {reply.turn}: {session.role} {escape_controls(session.agent)}  {format_ms(reply.ms)}\n"
        f"    > {fit_line(text, 200)}\n    < {fit_line(answer, 200)}{calls}"
    )


def _indent_text(text: str) -> str:
    return "\n".join(f"    {escape_controls(line)}" for line in text.splitlines())
