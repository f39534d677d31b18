"""Agents that are CLIs: each turn runs the CLI once and resumes the session by the id that the CLI reports.

how a turn ends                                  what is raised
with a result                                    nothing: it is the reply
with an error as result                          AgentFailed; Unreachable for an error of the provider (401, 429, 5xx …)
without a result                                 AgentFailed
with an exit code other than 0                   AgentFailed
with another session than the resumed one        AgentFailed
command missing, too old, or without login       Unreachable
cut off                                          nothing: `CallProgress` has the partial reply, the provider's error and the
                                                 end of stderr

A CLI cannot be given a history: earlier messages are put as text before the first message.
"""

import asyncio
import shlex
import shutil
import time
import uuid
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

from viva import catalog
from viva.agents.agent_config import AgentConfig, AgentSetup, AgentStatus, StringMap
from viva.agents.cli.events import CliEvent, CliTurn, CliTurnEnded, TextPrinted
from viva.agents.cli.installation import check_version, find_executable, find_login_problem, inspect_installation
from viva.agents.cli.monitor import OutputMonitor
from viva.agents.cli.output_text import to_one_line
from viva.agents.cli.spec import URL_VARIABLE, CliSpec, TurnRequest, parse_events
from viva.errors import AgentFailed, Undetermined, Unreachable
from viva.model.case import Feature, WorkspaceSpec
from viva.model.message import Message, ModelCall, Reply
from viva.model.progress import CallProgress
from viva.protocols import SessionContext, Workspace, WorkspaceFactory
from viva.text import credentials
from viva.workspace.environment import build_environment
from viva.workspace.folders import LocalWorkspaces
from viva.workspace.processes import MAX_LINE_BYTES, Process, run_command

if TYPE_CHECKING:
    from viva.agents.acp import AcpAgent

Command = Annotated[
    str | tuple[str, ...],
    Meta(
        extra_json_schema={
            "minLength": 1,
            "minItems": 1,
            "$comment": "a command: a string, or an array with one string for each word",
        }
    ),
]
_WORD_BYTES = 100_000
"""Linux limits a word of a command line to 128 KiB."""
_EXIT_S = 10.0
"""Time for a CLI to exit after its result; then it is terminated."""


class ProcessConfig(AgentConfig, frozen=True, kw_only=True):
    """The fields of agents that are processes."""

    default_parallel: ClassVar[int | None] = 2  # each may build and test things
    needs_workspace: ClassVar[bool] = True

    model: str = ""
    """The model, where a case names none."""
    env: StringMap = field(default_factory=dict[str, str])
    """More variables of its environment. A value $NAME is taken from the environment."""
    args: tuple[str, ...] = ()
    """More arguments, after its own."""
    mcp_stub: bool = False
    """Serve the `fixtures.tools` of a case to it as an MCP server. VIVA_MCP_URL of its environment has the address."""

    def build_env(self, setup: AgentSetup) -> dict[str, str]:
        env = {name: setup.expand(value, "env") for name, value in self.env.items()}
        setup.add_secrets(credentials.find_environment_credentials(env))
        return env


def find_cli_spec(name: str) -> CliSpec | None:
    """What Viva knows of a coding CLI, by its name in the catalog."""
    kind = catalog.find_component("agent", name) if name in catalog.CLI_AGENTS else None
    return None if kind is None else kind.spec


def find_acp_spec(command: str) -> CliSpec | None:
    """What Viva knows of the coding CLI for which a command speaks the Agent Client Protocol."""
    specs = map(find_cli_spec, catalog.CLI_AGENTS)
    return next((spec for spec in specs if spec is not None and command in spec.acp_commands), None)


class CliConfig(ProcessConfig, frozen=True, kw_only=True):
    """A coding CLI."""

    is_nameable: ClassVar[bool] = True
    spec: ClassVar[CliSpec]

    command: Command | UnsetType = UNSET
    """The command, if it is not the CLI's usual name."""
    approval: str = ""
    """What the CLI may do without asking, in its own words. Default: everything."""
    login: Literal["copy"] | UnsetType = UNSET
    """Copy its login files into the private HOME, instead of passing keys."""

    def build(self, setup: AgentSetup) -> "CliAgent":
        add_keys_to_secrets(self.spec, setup)
        return CliAgent(
            spec=self.spec,
            command=() if self.command is UNSET else split_command(self.command, setup.folder),
            model=self.model,
            approval=self.approval,
            args=self.args,
            host=setup.environ,
            env=self.build_env(setup),
            login=self.login or None,
        )


def add_keys_to_secrets(spec: CliSpec, setup: AgentSetup) -> None:
    setup.add_secrets(value for key in spec.key_variables if (value := setup.environ.get(key)))


def split_command(command: str | Sequence[str], folder: Path) -> tuple[str, ...]:
    """The words of a command. A program that is a path is looked for from `folder`."""
    words = shlex.split(command) if isinstance(command, str) else list(command)
    if words and "/" in words[0]:
        words[0] = str(folder / Path(words[0]).expanduser())
    return tuple(words)


class CliAgent(Struct, frozen=True, kw_only=True):
    """A CLI and how it is run.

    `command` replaces its usual name; `args` follow its own flags. It gets a few variables of the `host` environment and
    its own keys; `env` is added. With `login: copy` the login files of the host's HOME are copied, and no keys are passed.
    """

    spec: CliSpec
    command: tuple[str, ...] = ()
    model: str = ""
    approval: str = ""
    args: tuple[str, ...] = ()
    host: Mapping[str, str] = {}
    env: Mapping[str, str] = {}
    login: Literal["copy"] | None = None

    def __post_init__(self) -> None:
        modes = self.spec.approval_modes
        if self.approval and self.approval not in modes:
            raise ValueError(
                f"{self.spec.title} does not have the approval mode {self.approval!r}; there are {', '.join(modes)}"
            )

    @property
    def provides(self) -> frozenset[Feature]:
        return frozenset({"workspace"})

    @property
    def program(self) -> tuple[str, ...]:
        return self.command or (self.spec.name,)

    @property
    def approval_mode(self) -> str:
        return self.approval or self.spec.approval_modes[0]

    @property
    def auto_approves(self) -> bool:
        """Does the CLI run every tool without asking?"""
        return self.approval_mode == self.spec.approval_modes[0]

    @property
    def follows_links(self) -> bool:
        """Can the CLI work with links in its workspace?"""
        return self.spec.follows_links

    @asynccontextmanager
    async def open(self, context: SessionContext) -> AsyncGenerator["CliSession"]:
        spec = self.spec
        executable = find_executable(self.program[0], self.host, spec)
        probe_workspaces = None if self.command else choose_workspaces(context)
        if (problem := await check_version(executable, self.host, spec, probe_workspaces)) is not None:
            raise Unreachable(problem, deterministic=True)
        async with open_cli_workspace(context) as workspace:
            env = prepare_environment(spec, self.host, workspace, add_mcp_url(self.env, context), self.login)
            # Without a login some CLIs wait forever. The user's own command or flags may bring a login that is not seen here.
            checks_login = spec.needs_login and not (self.command or self.args)
            if checks_login and (problem := find_login_problem(env, spec, workspace.home)) is not None:
                raise Unreachable(f"{spec.title} has {problem}", deterministic=True)
            yield CliSession(self, context, workspace, env, [executable, *self.program[1:]])

    async def inspect(self, workspaces: WorkspaceFactory) -> AgentStatus:
        """Whether the program is installed, its version, and what is missing. A configured command is not run for that."""
        return await inspect_program(self, workspaces)


async def inspect_program(agent: "CliAgent | AcpAgent", workspaces: WorkspaceFactory) -> AgentStatus:
    environ = {**agent.host, **agent.env}
    login_home = agent.host.get("HOME") if agent.login else None
    probe_workspaces = None if agent.command else workspaces
    return await inspect_installation(agent.program[0], environ, agent.spec, login_home, probe_workspaces)


@asynccontextmanager
async def open_cli_workspace(context: SessionContext) -> AsyncGenerator[Workspace]:
    """The workspace of the case, else an empty one."""
    if context.workspace is not None:
        yield context.workspace
        return
    async with choose_workspaces(context)(WorkspaceSpec("empty"), context.key) as workspace:
        yield workspace


def choose_workspaces(context: SessionContext) -> WorkspaceFactory:
    """Empty workspaces with the run's sandbox; without a run, unconfined ones."""
    return context.empty_workspaces or _get_local_workspaces()


@cache
def _get_local_workspaces() -> LocalWorkspaces:
    """The unconfined workspaces, created once per process, so that stale ones are removed only once."""
    return LocalWorkspaces()


def add_mcp_url(env: Mapping[str, str], context: SessionContext) -> Mapping[str, str]:
    """The variables of an agent, with the address of the MCP server that has the tools of the case."""
    return {**env, URL_VARIABLE: context.mcp_url} if context.mcp_url else env


def prepare_environment(
    spec: CliSpec,
    host: Mapping[str, str],
    workspace: Workspace,
    extra_env: Mapping[str, str],
    login: Literal["copy"] | None,
) -> dict[str, str]:
    """The environment of a CLI in a workspace. Its settings and, if wanted, its login are written to the private HOME."""
    passed = spec.passed_variables if login == "copy" else (*spec.key_variables, *spec.passed_variables)
    env = build_environment(host, workspace, passed, extra_env)
    home = Path(workspace.home)
    try:
        for name in spec.login_files if login == "copy" else ():
            source, target = Path(host.get("HOME", "/")) / name, home / name
            if source.is_file():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, target)
                target.chmod(0o600)
        for name, text in spec.build_home_files(env).items():
            (home / name).parent.mkdir(parents=True, exist_ok=True)
            (home / name).write_text(text, encoding="utf-8")
    except OSError as error:  # a full disk, an unreadable login file
        raise Undetermined(f"its HOME cannot be prepared: {error.filename or home}: {error.strerror}") from error
    return env


class CliSession:
    """One conversation: the first turn starts a session of the CLI, the others resume it."""

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
        self._spec = agent.spec
        self._new_session = str(uuid.uuid4())
        self._session: str | None = None
        self._session_usage: tuple[ModelCall, ...] = ()
        self._messages = list(context.history)
        self._turns = 0

    async def send(self, message: Message, options: Mapping[str, Any]) -> Reply:
        spec = self._spec
        prompt = self._build_prompt(message)
        request = TurnRequest(
            prompt=prompt,
            on_stdin=spec.prompt_on_stdin or (spec.long_prompt_on_stdin and len(prompt.encode()) > _WORD_BYTES),
            session=self._find_session_id(),
            new_session=self._new_session,
            workspace=self._workspace.path,
            model=str(options.get("model") or self._agent.model),
            approval=self._agent.approval_mode,
            # CLIs accept folders only; with a file the Gemini CLI does not start.
            linked_folders=[target for target in self._workspace.link_targets if Path(target).is_dir()],  # noqa: ASYNC240 -- a quick look
            env=self._env,
        )
        argv = self._workspace.sandbox_command([*self._command, *spec.build_argv(request), *self._agent.args])
        turn = CliTurn(self._session_usage, request.model, time.perf_counter())
        process = _TurnProcess(OutputMonitor(spec, turn, self._workspace.home))
        self._turns += 1
        env = {**spec.build_variables(request), **self._env}
        try:
            code = await process.run(argv, self._workspace.path, env, prompt if request.on_stdin else None)
        finally:  # usage and partial reply count, however the turn ended
            for call in turn.usage:
                self._context.meter(call)
            self._session_usage = turn.session_usage
            process.report(self._context.progress)
        process.check_result(code, request.session if spec.reports_session else None)
        self._session = turn.session or self._session
        reply = turn.build_reply()
        if not spec.can_resume:
            self._messages += [message, Message("assistant", reply.content)]
        return reply

    def _build_prompt(self, message: Message) -> str:
        if message.attachments:
            names = ", ".join(each.name or each.source for each in message.attachments)
            raise Undetermined(f"{self._spec.title} takes text only, but this message has attachments: {names}")
        new = self._turns == 0 or not self._spec.can_resume
        return prepend_history(self._messages, message.text) if new else message.text

    def _find_session_id(self) -> str | None:
        if self._turns == 0 or not self._spec.can_resume:
            return None
        if self._session is None and self._spec.reports_session:
            raise AgentFailed("its first turn reported no session, so it cannot be resumed")
        return self._session or self._new_session


def prepend_history(history: Iterable[Message], text: str) -> str:
    """A message with the earlier ones before it, for agents that take no history."""
    earlier = "\n\n".join(f"{message.role}: {message.text}" for message in history)
    return f"This is the conversation so far.\n\n{earlier}\n\nNow the user says:\n\n{text}" if earlier else text


async def _write_stdin(process: Process, text: str) -> None:
    with suppress(OSError):  # it has closed its input
        await process.send(text.encode())
    process.close_stdin()


class _TurnProcess:
    """One turn: the process, its output, and its outcome."""

    def __init__(self, monitor: OutputMonitor) -> None:
        self._monitor = monitor
        self._spec, self._turn = monitor.spec, monitor.turn
        self._has_overflowed = False
        self._overlong_lines = 0
        self._separator = ""  # before the next line of plain text

    async def run(self, argv: Sequence[str], cwd: str, env: Mapping[str, str], stdin_text: str | None) -> int | None:
        """The exit code; None if it was terminated after its result or while it waited for a login. `stdin_text` is written
        to its standard input.
        """
        process: Process | None = None
        try:
            to_file = self._spec.stdout_to_file
            async with run_command(argv, cwd=cwd, env=env, stdin=stdin_text is not None, to_file=to_file) as process:
                return await self._read_output(process, stdin_text)
        except asyncio.CancelledError:
            if process is not None:  # it has ended; its last output is not parsed yet
                async for line in process.lines():
                    for event in self._parse_events(line) or ():
                        self._turn.add_event(event)
            raise
        finally:
            if process is not None:
                self._monitor.stderr, self._overlong_lines = process.stderr_tail, process.overlong_lines
                # All lines of plain text are the reply, so a lost one counts like too many.
                self._has_overflowed = process.has_overflowed or (
                    self._spec.is_plain_text and process.overlong_lines > 0
                )

    def report(self, progress: CallProgress) -> None:
        """Stores what is known of the turn, in case it ends without a reply."""
        progress.partial = self._turn.build_reply()
        progress.warnings += [f"{self._spec.title}: {to_one_line(warning)}" for warning in self._turn.warnings]
        if self._overlong_lines:
            lines = "1 line" if self._overlong_lines == 1 else f"{self._overlong_lines} lines"
            progress.warnings.append(f"{self._spec.title}: left out {lines} of more than {MAX_LINE_BYTES // 2**20} MB")
        self._monitor.report_progress(progress)

    async def _read_output(self, process: Process, stdin_text: str | None) -> int | None:
        deadline = asyncio.timeout(None)
        tasks = [asyncio.ensure_future(_write_stdin(process, stdin_text))] if stdin_text is not None else []
        try:
            async with deadline:
                tasks.append(asyncio.ensure_future(self._monitor.watch_for_login(process, deadline)))
                async for line in process.lines():
                    self._handle_line(line, process, deadline)
                code = await process.wait()
        except TimeoutError:
            if not deadline.expired():
                raise
            return None
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if self._spec.is_plain_text and code == 0 and not process.has_overflowed and not process.overlong_lines:
            self._turn.add_event(CliTurnEnded())
        return code

    def _parse_events(self, line: bytes) -> list[CliEvent] | None:
        if self._spec.is_plain_text:
            separator, self._separator = self._separator, "\n"
            return [TextPrinted(separator + line.decode(errors="replace"))]
        return parse_events(self._spec, line)

    def _handle_line(self, line: bytes, process: Process, deadline: asyncio.Timeout) -> None:
        events = self._parse_events(line)
        if events is None:
            self._monitor.add_unparsed_line(line)
            return
        for event in events:
            self._turn.add_event(event)
            if not self._spec.is_plain_text:  # plain text may be a reply or an error
                self._monitor.add_event(event, process)
            if isinstance(event, CliTurnEnded):
                deadline.reschedule(asyncio.get_running_loop().time() + _EXIT_S)

    def check_result(self, code: int | None, expected_session: str | None) -> None:
        """Check that the turn ended with a reply; otherwise raise its fault."""
        turn, end, monitor = self._turn, self._turn.end, self._monitor
        if expected_session is not None and turn.session is not None and turn.session != expected_session:
            raise AgentFailed(
                f"the CLI did not resume session {expected_session}: it answered in session {turn.session}"
            )
        if end is not None and end.error is None:
            if not code:
                return
        elif (fault := monitor.find_fault(end.error if end else None)) is not None:
            raise fault
        output = monitor.output_tail()
        raise AgentFailed(f"{self._describe_exit(code)}: {output}" if output else self._describe_exit(code))

    def _describe_exit(self, code: int | None) -> str:
        if self._has_overflowed and self._turn.end is None:
            return "it printed too much, and its result was lost"
        if code:
            exit_text = f"exit code {code}" if code > 0 else f"ended by signal {-code}"
            return f"{exit_text}, after its result" if self._turn.end is not None else f"{exit_text}, without a result"
        return "it ended without a result"
