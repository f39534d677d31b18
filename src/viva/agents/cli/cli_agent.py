"""An agent that is a CLI: each turn runs it once, and resumes its session by the id that the CLI itself gave.

how a turn ends                                           what is raised
its result says so                                        nothing: that is the reply
its result is an error                                    AgentFailed; Unreachable if it is the provider's (401, 429, 5xx …)
no result, whatever the exit code                         AgentFailed
exit code other than 0                                    AgentFailed
another session than the one that was to be resumed       AgentFailed
the command is not there, is too old, or has no login     Unreachable, in the CLI's own words
cut off                                                   nothing: `CallProgress` has the reply so far, what the provider
                                                          failed with, and the end of stderr

A CLI cannot be given a history. What was said before a case's first turn stands at the top of its first message instead,
as text that says what it is.
"""

import asyncio
import shutil
import uuid
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar, Literal

from msgspec import Struct

from viva.agents.cli.events import CliEvent, CliTurn, EndReported, TextPrinted
from viva.agents.cli.installation import check_version, find_executable, find_login_problem
from viva.agents.cli.monitor import OutputMonitor
from viva.agents.cli.output_text import to_one_line
from viva.agents.cli.place import choose_workspaces, open_cli_workspace
from viva.agents.cli.spec import CliSpec, TurnRequest, parse_events
from viva.errors import AgentFailed, Undetermined, Unreachable
from viva.model.case import Feature
from viva.model.message import Message, ModelCall, Reply
from viva.model.progress import CallProgress
from viva.protocols import SessionContext, Workspace
from viva.workspace.environment import build_environment
from viva.workspace.processes import Process, run_command

_WORD_BYTES = 100_000
"""Linux takes no word of a command line that is longer than 128 KiB."""
_LINGER_S = 10.0
"""A CLI that has given its result may take so long to go away; then it is ended."""


class CliAgent(Struct, frozen=True, kw_only=True, dict=True):
    """A CLI and how it is run here.

    `command` is how it is called if not by its usual name; `args` follow its own flags. Of the `host`'s environment it
    gets a few variables and its own keys; `env` is added. With `login: copy` the login files of the host's HOME come
    along instead of keys.
    """

    command: tuple[str, ...] = ()
    model: str = ""
    approval: str = ""
    args: tuple[str, ...] = ()
    host: Mapping[str, str] = {}
    env: Mapping[str, str] = {}
    login: Literal["copy"] | None = None

    speaks: ClassVar[CliSpec]

    def __post_init__(self) -> None:
        known = self.speaks.approval_modes
        if self.approval and self.approval not in known:
            raise ValueError(f"{self.speaks.title} knows no approval {self.approval!r}; there are {', '.join(known)}")

    @property
    def provides(self) -> frozenset[Feature]:
        return frozenset({"workspace"})

    @property
    def dialect(self) -> CliSpec:
        return self.speaks

    @property
    def called(self) -> tuple[str, ...]:
        return self.command or (self.dialect.name,)

    @property
    def approves(self) -> str:
        """How much it may do unasked, in its own words."""
        return self.approval or self.dialect.approval_modes[0]

    @property
    def is_unasked(self) -> bool:
        """Does it run every tool without asking?"""
        return self.approves == self.dialect.approval_modes[0]

    @property
    def follows_links(self) -> bool:
        """Can it work with links in its workspace?"""
        return self.dialect.follows_links

    @asynccontextmanager
    async def open(self, context: SessionContext) -> AsyncGenerator["CliSession"]:
        executable = find_executable(self.called[0], self.host, self.dialect)
        asked_in = None if self.command else choose_workspaces(context)
        if (old := await check_version(executable, self.host, self.dialect, asked_in)) is not None:
            raise Unreachable(old)
        async with open_cli_workspace(context) as workspace:
            env = prepare_environment(self.dialect, self.host, workspace, self.env, self.login)
            # Without a login some wait for ever. A command or flags of the user's own may bring one that is not seen here.
            is_plain = self.dialect.needs_login and not (self.command or self.args)
            if is_plain and (missing := find_login_problem(env, self.dialect, workspace.home)) is not None:
                raise Unreachable(f"{self.dialect.title} has {missing}")
            yield CliSession(self, context, workspace, env, [executable, *self.called[1:]])


def prepare_environment(
    dialect: CliSpec,
    host: Mapping[str, str],
    workspace: Workspace,
    extra_env: Mapping[str, str],
    login: Literal["copy"] | None = None,
) -> dict[str, str]:
    """The environment of a CLI in a workspace, whose private HOME then holds its settings and, if wanted, its login."""
    passed = dialect.passed_variables if login == "copy" else (*dialect.keys, *dialect.passed_variables)
    env = build_environment(host, workspace, passed, extra_env)
    home = Path(workspace.home)
    try:
        for name in dialect.login_files if login == "copy" else ():
            source, target = Path(host.get("HOME", "/")) / name, home / name
            if source.is_file():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, target)
                target.chmod(0o600)
        for name, text in dialect.build_home_files(env).items():
            (home / name).parent.mkdir(parents=True, exist_ok=True)
            (home / name).write_text(text, encoding="utf-8")
    except OSError as wrong:  # a full disk; a login that only others may read
        raise Undetermined(f"its HOME cannot be set up: {wrong.filename or home}: {wrong.strerror}") from wrong
    return env


class CliSession:
    """One conversation: the first turn opens a session of the CLI, the others resume it."""

    def __init__(
        self,
        agent: CliAgent,
        context: SessionContext,
        workspace: Workspace,
        env: Mapping[str, str],
        command: Sequence[str],
    ) -> None:
        self._agent, self._context, self._workspace = agent, context, workspace
        self._env, self._command = env, command
        self._dialect = agent.dialect
        self._fresh = str(uuid.uuid4())
        self._session: str | None = None
        self._used: tuple[ModelCall, ...] = ()
        self._said = list(context.history)
        self._turns = 0

    async def send(self, message: Message, options: Mapping[str, Any]) -> Reply:
        prompt, dialect = self._prompt(message), self._dialect
        asked = TurnRequest(
            prompt=prompt,
            on_stdin=dialect.prompt_on_stdin or (dialect.long_prompt_on_stdin and len(prompt.encode()) > _WORD_BYTES),
            session=self._resumed(),
            new_session=self._fresh,
            workspace=self._workspace.path,
            model=str(options.get("model") or self._agent.model),
            approval=self._agent.approves,
            # A CLI takes no single file for a place that it may use; the Gemini CLI would not even start.
            linked_folders=[place for place in self._workspace.link_targets if Path(place).is_dir()],  # noqa: ASYNC240 -- a quick look
            env=self._env,
        )
        argv = self._workspace.sandbox_command([*self._command, *dialect.build_argv(asked), *self._agent.args])
        turn = CliTurn(self._used, asked.model)
        work = _Running(OutputMonitor(dialect, turn, self._workspace.home))
        self._turns += 1
        env = {**dialect.build_variables(asked), **self._env}
        try:
            code = await work.run(argv, self._workspace.path, env, prompt if asked.on_stdin else None)
        finally:  # what a turn used was used, and what it did was done, however it ended
            for call in turn.usage:
                self._context.meter(call)
            self._used = turn.session_usage
            work.report(self._context.progress)
        work.judge(code, asked.session if dialect.reports_session else None)
        self._session = turn.session or self._session
        reply = turn.build_reply()
        if not dialect.can_resume:
            self._said += [message, Message("assistant", reply.content)]
        return reply

    def _prompt(self, message: Message) -> str:
        if message.attachments:
            names = ", ".join(each.name or each.source for each in message.attachments)
            raise Undetermined(f"{self._dialect.title} is given text only, and this message comes with {names}")
        new = self._turns == 0 or not self._dialect.can_resume
        return prepend_history(self._said, message.text) if new else message.text

    def _resumed(self) -> str | None:
        if self._turns == 0 or not self._dialect.can_resume:
            return None
        if self._session is None and self._dialect.reports_session:
            raise AgentFailed("its first turn named no session, so that nobody can go on with it")
        return self._session or self._fresh


def prepend_history(history: Iterable[Message], text: str) -> str:
    """A message with what was said before it, for those who cannot be given a history."""
    said = "\n\n".join(f"{message.role}: {message.text}" for message in history)
    return f"This conversation went on before, as follows.\n\n{said}\n\nNow the user says:\n\n{text}" if said else text


async def _type(process: Process, text: str) -> None:
    with suppress(OSError):  # it does not want to hear it
        await process.send(text.encode())
    process.close_stdin()


class _Running:
    """One turn: the process, what it prints, and what that means in the end."""

    def __init__(self, watch: OutputMonitor) -> None:
        self._watch = watch
        self._dialect, self._turn = watch.dialect, watch.turn
        self._overflowed = False

    async def run(self, argv: Sequence[str], cwd: str, env: Mapping[str, str], typed: str | None) -> int | None:
        """Its exit code; None if we had to end it after its result, or while it waited for a login. `typed` it is told on
        its standard input.
        """
        process: Process | None = None
        try:
            to_file = self._dialect.stdout_to_file
            async with run_command(argv, cwd=cwd, env=env, stdin=typed is not None, to_file=to_file) as process:
                return await self._heard_out(process, typed)
        except asyncio.CancelledError:
            if process is not None:  # it has ended by now; some of what it printed nobody has read yet
                async for line in process.lines():
                    for event in self._events(line) or ():
                        self._turn.add_event(event)
            raise
        finally:
            if process is not None:
                self._watch.stderr, self._overflowed = process.stderr_tail, process.has_overflowed

    def report(self, progress: CallProgress) -> None:
        """What is known of the turn, for a turn that ends without a usable reply."""
        progress.partial = self._turn.build_reply()
        progress.warnings += [f"{self._dialect.title}: {to_one_line(warning)}" for warning in self._turn.warnings]
        self._watch.report_progress(progress)

    async def _heard_out(self, process: Process, typed: str | None) -> int | None:
        patience = asyncio.timeout(None)
        beside = [asyncio.ensure_future(_type(process, typed))] if typed is not None else []
        try:
            async with patience:
                beside.append(asyncio.ensure_future(self._watch.watch_for_login(process, patience)))
                async for line in process.lines():
                    self._take(line, process, patience)
                code = await process.wait()
        except TimeoutError:
            if not patience.expired():
                raise
            return None
        finally:
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)
        if self._dialect.is_plain_text and code == 0 and not process.has_overflowed:
            self._turn.add_event(EndReported())
        return code

    def _events(self, line: bytes) -> list[CliEvent] | None:
        if self._dialect.is_plain_text:
            return [TextPrinted(line.decode(errors="replace"), is_new_message=True)]
        return parse_events(self._dialect, line)

    def _take(self, line: bytes, process: Process, patience: asyncio.Timeout) -> None:
        events = self._events(line)
        if events is None:
            self._watch.add_other_line(line)
            return
        for event in events:
            self._turn.add_event(event)
            if not self._dialect.is_plain_text:  # of a plain text nobody knows whether it is a reply or a complaint
                self._watch.add_event(event, process)
            if isinstance(event, EndReported):
                patience.reschedule(asyncio.get_running_loop().time() + _LINGER_S)

    def judge(self, code: int | None, asked_for: str | None) -> None:
        """Nothing, if the turn is a reply; else the fault that it is."""
        turn, ended, watch = self._turn, self._turn.end, self._watch
        if asked_for is not None and turn.session is not None and turn.session != asked_for:
            raise AgentFailed(f"session {asked_for} was to go on, but {turn.session} answered")
        if ended is not None and ended.error is None:
            if not code:
                return
        elif (fault := watch.find_fault(ended.error if ended else None)) is not None:
            raise fault
        words = watch.output_tail()
        raise AgentFailed(f"{self._how(code)}: {words}" if words else self._how(code))

    def _how(self, code: int | None) -> str:
        if self._overflowed and self._turn.end is None:
            return "it printed too much, and its result was not among what could be kept"
        if code:
            exit_ = f"exit code {code}" if code > 0 else f"ended by signal {-code}"
            return f"{exit_}, after its result" if self._turn.end is not None else f"{exit_}, without a result"
        return "it ended without a result"
