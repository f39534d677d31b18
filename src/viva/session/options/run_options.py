"""The table of run options. Each field of `AllRunOptions` is an option; its `Option` describes its flag, keyword, help and rules.

It makes the flags of `viva test`, the keywords of `viva.run` (keyword_values.py), what the journal saves for a resumed run
(saved.py), and the reference pages. To add an option, add a field here and run `make reference`.
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin

from msgspec import Struct, structs

from viva.catalog import CLI_AGENTS, REPORT_FORMATS
from viva.formats.openwop.modes import Mode, parse_modes
from viva.formats.sources import Format
from viva.model.case import LinkMode, OnMissingInput, Sandbox, WorkspaceKind
from viva.protocols import CreatePersonPrompt
from viva.record.cassette import MissingPolicy
from viva.session.shards.shard import CaseName, ShardBy, normalize_shard
from viva.stats.pass_rule import PassRule
from viva.stats.sequential import SequentialTest

Parallel = int | Literal["auto"]
Action = Literal["resume", "host", "chat", "message"]
"""What `viva test` can do instead of starting a run here."""

INPUT = "Input and agent"
SELECTION = "Case selection"
OUTPUT = "Output and reports"
LIMITS = "Limits and retries"
REPEATS = "Repeated trials"
USERS = "Simulator, person and hooks"
WORKSPACES = "Playbooks and workspaces"
EVALS = "OpenWOP eval suites"
STORAGE = "Recording, replay, resume and history"
WORKERS = "Worker processes and clusters"
GROUPS = (INPUT, SELECTION, OUTPUT, LIMITS, REPEATS, WORKERS, USERS, WORKSPACES, EVALS, STORAGE)
"""The headings of `viva test --help`, in their order."""


class Range(NamedTuple):
    """The range of numbers that an option accepts. An open range excludes its ends."""

    minimum: float = -math.inf
    maximum: float = math.inf
    is_open: bool = False

    def __contains__(self, value: Any) -> bool:
        if self.is_open:
            return self.minimum < value < self.maximum
        return self.minimum <= value <= self.maximum

    def __str__(self) -> str:
        if math.isinf(self.maximum):
            return f"{'greater than' if self.is_open else 'at least'} {self.minimum:g}"
        return f"{'between' if self.is_open else 'from'} {self.minimum:g} {'and' if self.is_open else 'to'} {self.maximum:g}"


class Option(Struct, frozen=True, kw_only=True):
    """One option. `name`, `type` and `default` are those of the field."""

    flags: tuple[str, ...] = ()
    """Empty: `viva test` has no flag for it. A flag `--no-…` sets a boolean to false."""
    help: str
    group: str = ""
    metavar: str | None = None
    range: Range | None = None
    is_duration: bool = False
    parse: Callable[[str], Any] | None = None
    """Parses the text of a flag that is not a plain string, number or duration. Raises BadInput or ValueError."""
    takes_one: bool = False
    """May Python code pass one value, which may be any object, in place of a list?"""
    takes_function: bool = False
    """May Python code pass a function that replies?"""
    is_existing_file: bool = False
    keyword: str | None = ""
    """The keyword of `viva.run`: the name of the field if empty, none if None."""
    actions: tuple[Action, ...] = ()
    """Other actions of `viva test` that take the flag."""
    needs: str | None = None
    """The option without which this one has no effect."""
    excludes: tuple[str, ...] = ()
    on_resume: Literal["keep", "replace", "reference", "drop"] = "keep"
    """On resume the saved value is kept, replaced by a given flag, or (an agent with secrets) passed again; `drop`: it is not saved."""
    is_repeated: bool = False
    """Is the option part of the printed command that runs one case again?"""
    coordinator_only: bool = False
    """Do workers not get the option? True if only the process that started the run uses it."""
    may_differ: bool = False
    """May the option differ between runs that `viva merge` joins? True if it does not change how a case runs."""
    name: str = ""
    type: Any = None
    default: Any = None

    @property
    def flag(self) -> str:
        """The shortest spelling."""
        return self.flags[0]

    @property
    def is_list(self) -> bool:
        return get_origin(self.type) is tuple

    @property
    def item_type(self) -> Any:
        """The type of one value."""
        return get_args(self.type)[0] if self.is_list else self.type

    @property
    def choices(self) -> tuple[str, ...]:
        return get_args(self.item_type) if get_origin(self.item_type) is Literal else ()


def parse_parallel(value: Any) -> Parallel:
    """A number of conversations, or `auto`. Raises ValueError."""
    if value == "auto":
        return "auto"
    number = int(value) if isinstance(value, str) and value.isascii() and value.isdigit() else value
    if type(number) is not int or number < 1:
        raise ValueError(f"{value!r} is neither a number of at least 1 nor auto")
    return number


_PROBABILITY = Range(0, 1, is_open=True)
_CHAT_ACTIONS = ("chat", "message")
_ALL_ACTIONS: tuple[Action, ...] = ("resume", "host", "chat", "message")


# One entry reads best as one paragraph.
# fmt: off
class AllRunOptions(Struct, frozen=True, kw_only=True):
    """The options of a run: the flags of `viva test` and the keywords of `viva.run`."""

    inputs: Annotated[tuple[str, ...], Option(
        flags=("-i", "--input"), group=INPUT, metavar="INPUT", actions=("host", "message"), may_differ=True,
        help="A file, folder, glob, `-` for standard input, `scripts:module`, `agents:name`, or a message. Repeatable. -i may "
        "be left out.")]
    cases: Annotated[tuple[Any, ...], Option(keyword=None, may_differ=True,
        help="Cases that are not in a file, as Python values.")] = ()
    functions: Annotated[Mapping[str, Any] | None, Option(
        keyword=None, on_resume="drop", may_differ=True, help="Functions that stand in cases, by the text that stands for them.")] = None
    agents: Annotated[tuple[Any, ...], Option(
        flags=("-n", "--name"), group=INPUT, metavar="AGENT", keyword="agent", takes_one=True, actions=("host", *_CHAT_ACTIONS), on_resume="reference",
        help=f"The agent under test: a name from viva.toml, a terminal agent ({', '.join(CLI_AGENTS)}), python:..., or http://... "
        "Playbooks use gemini if neither this nor the config names an agent. Repeatable: every case runs on each agent, and a matrix compares them.")] = ()
    connector: Annotated[str | None, Option(
        flags=("-c", "--connector"), group=INPUT, metavar="NAME", actions=_CHAT_ACTIONS, is_repeated=True,
        help="The connector for the agent under test, instead of its own: an entry of [connectors] in viva.toml, or a well-known model such as gpt-4o.")] = None
    agent_fields: Annotated[Mapping[str, Any] | None, Option(
        keyword=None, on_resume="drop", help="Fields that replace those of the agent's entry in the config, such as `temperature`.")] = None
    format: Annotated[Format | None, Option(
        flags=("--format",), group=INPUT, actions=("host",), is_repeated=True,
        help="The format of the input: cases of Viva, a playbook (steps and a persona for a command-line agent), or an OpenWOP eval suite. "
        "By default the keys in the file decide.")] = None
    config: Annotated[Path | None, Option(
        flags=("--config",), group=INPUT, metavar="FILE", is_existing_file=True, actions=_ALL_ACTIONS, is_repeated=True,
        may_differ=True, help="The config file (default: the nearest viva.toml).")] = None
    env_file: Annotated[Path | None, Option(
        flags=("--env-file",), group=INPUT, metavar="FILE", is_existing_file=True, actions=("host", *_CHAT_ACTIONS),
        is_repeated=True, may_differ=True, help="A file with NAME=value lines to add to the environment.")] = None
    folder: Annotated[Path, Option(
        group=INPUT, may_differ=True,
        help="The folder that relative paths start from (default: the working folder).")] = Path()

    only: Annotated[str | None, Option(
        flags=("-k", "--run"), group=SELECTION, metavar="REGEX", may_differ=True,
        help="Run only cases whose id matches.")] = None
    tags: Annotated[tuple[str, ...], Option(
        flags=("--tag",), group=SELECTION, metavar="TAG",
        may_differ=True, help="Run only cases with one of these tags. Repeatable.")] = ()
    last_failed: Annotated[bool, Option(
        flags=("--last-failed",), group=SELECTION, may_differ=True,
        help="Run only cases that did not pass in the latest run.")] = False
    selected_cases: Annotated[tuple[CaseName, ...] | None, Option(
        keyword=None, may_differ=True,
        help="Run only these cases, by suite and id: the result of `last_failed`.")] = None
    shard: Annotated[str | None, Option(
        flags=("--shard",), group=SELECTION, metavar="N/COUNT", parse=normalize_shard, may_differ=True,
        help="Run only the Nth of COUNT parts of the cases, for example 2/8; `viva merge` makes one run of all parts.")] = None
    shard_by: Annotated[ShardBy, Option(
        flags=("--shard-by",), group=SELECTION, needs="shard",
        help="How --shard divides the cases: by a hash of their ids, or by the times of earlier runs, so that all parts take "
        "equally long (.viva must be the same on all machines).")] = "hash"
    shard_cases: Annotated[tuple[CaseName, ...] | None, Option(
        keyword=None, may_differ=True,
        help="The cases of this shard, by suite and id: the result of `shard_by` time.")] = None
    dry_run: Annotated[bool, Option(
        flags=("--dry-run",), group=SELECTION, keyword=None, actions=("message",),
        may_differ=True, help="Check and list the cases without running them; -o FILE.jsonl writes them.")] = False

    outputs: Annotated[tuple[Path, ...], Option(
        flags=("-o", "--output"), group=OUTPUT, metavar="FILE", on_resume="replace",
        may_differ=True, coordinator_only=True, help=f"Write a report: {REPORT_FORMATS}. Repeatable.")] = ()
    reporter: Annotated[str | None, Option(
        flags=("-r", "--reporter"), group=OUTPUT, metavar="AGENT", takes_function=True, on_resume="reference", may_differ=True,
        coordinator_only=True, help="An agent that writes the reports of -o; without -o its text is printed. Each report has the time limit "
        "of a case.")] = None

    timeout_s: Annotated[float | None, Option(
        flags=("--timeout",), group=LIMITS, is_duration=True, keyword="timeout", actions=("message",), is_repeated=True,
        help="Time limit for each case; replaces the case's own (default: 5m).")] = None
    turn_timeout_s: Annotated[float | None, Option(
        flags=("--turn-timeout",), group=LIMITS, is_duration=True, keyword="turn_timeout", actions=_CHAT_ACTIONS, is_repeated=True,
        help="Time limit for one reply.")] = None
    parallel: Annotated[Parallel | None, Option(
        flags=("--parallel",), group=LIMITS, metavar="N", parse=parse_parallel, on_resume="replace", may_differ=True,
        help="Run up to N conversations in parallel. The default is auto: 8 at first, more while calls succeed, fewer when "
        "the provider refuses them; 4 for agents in this process, 2 for CLIs.")] = None
    fail_fast: Annotated[bool, Option(
        flags=("--fail-fast",), group=LIMITS, may_differ=True,
        help="Stop when a case can no longer pass: it failed or ended in an error, or too many of its trials did.")] = False
    max_cost_usd: Annotated[float | None, Option(
        flags=("--max-cost",), group=LIMITS, metavar="USD", range=Range(0, is_open=True), keyword="max_cost",
        actions=_CHAT_ACTIONS, on_resume="replace", may_differ=True,
        coordinator_only=True, help="Stop the run when its model calls have cost this much.")] = None
    retry_faults: Annotated[int, Option(
        flags=("--retry-faults",), group=LIMITS, metavar="N", range=Range(0),
        help="Run a trial again, up to N times, if its error was not the agent's fault.")] = 1

    runs: Annotated[int, Option(
        flags=("--runs",), group=REPEATS, metavar="N", range=Range(1), help="Run each case N times.")] = 1
    min_pass: Annotated[float | None, Option(
        flags=("--min-pass",), group=REPEATS, metavar="P", range=Range(0, 1),
        help="With --runs: a case passes if at least this share of its trials passes.")] = None
    sequential: Annotated[SequentialTest | None, Option(
        group=REPEATS, excludes=("runs", "min_pass", "fail_fast"),
        help="Run each case only until this `viva.types.SequentialTest` decides, as --until-decided does.")] = None

    workers: Annotated[int | None, Option(
        flags=("--workers",), group=WORKERS, metavar="N", range=Range(1), on_resume="replace", excludes=("cluster",), is_repeated=True,
        may_differ=True, coordinator_only=True, help="Run the trials in N processes of this machine. For agents that use much CPU, or that end the process.")] = None
    dashboard: Annotated[bool, Option(
        flags=("--dashboard",), group=WORKERS, on_resume="replace", needs="workers", may_differ=True,
        coordinator_only=True, help="With --workers: serve Dask's dashboard on this machine while the run goes on.")] = False
    cluster: Annotated[str | None, Option(
        flags=("--cluster",), group=WORKERS, metavar="ADDRESS", on_resume="replace", may_differ=True,
        coordinator_only=True, help="Run the trials on the workers of a Dask cluster: tcp://HOST:8786 or tls://HOST:8786.")] = None
    cluster_folder: Annotated[Path | None, Option(
        flags=("--cluster-folder",), group=WORKERS, metavar="FOLDER", on_resume="replace", needs="cluster", may_differ=True,
        coordinator_only=True, help="The project's folder as the workers see it. Without it the project's files are sent to them.")] = None

    simulator: Annotated[str | None, Option(
        flags=("--simulator",), group=USERS, metavar="AGENT", takes_function=True, on_resume="reference", is_repeated=True,
        help="The agent that plays the user in cases that have checkpoints but no simulator.")] = None
    interactive: Annotated[bool, Option(
        flags=("--interactive",), group=USERS, keyword=None, actions=("chat",), on_resume="drop",
        excludes=("skip_interactive", "as_json", "quiet"), may_differ=True,
        help="Take part: see and change each message before it is sent, and answer when the agent waits. Without -i: chat "
        "with the agent.")] = False
    skip_interactive: Annotated[bool, Option(
        flags=("--skip-interactive",), group=USERS, help="Skip cases that need a person (interactive.enabled).")] = False
    create_person_prompt: Annotated[CreatePersonPrompt | None, Option(
        keyword=None, on_resume="drop", may_differ=True, help="How a person is asked.")] = None
    on_missing_input: Annotated[OnMissingInput | None, Option(
        flags=("--on-missing-input",), group=USERS, is_repeated=True,
        help="What to do if the agent still waits after the last turn, or a person does not answer.")] = None
    before: Annotated[str | Callable[..., Any] | None, Option(
        flags=("--before",), group=USERS, metavar="MODULE:FUNCTION", is_repeated=True,
        help="A function that is called with (ctx, cases) before the run; a dict that it returns sets variables.")] = None
    after: Annotated[str | Callable[..., Any] | None, Option(
        flags=("--after",), group=USERS, metavar="MODULE:FUNCTION", is_repeated=True,
        help="A function that is called with (ctx, results, data) after the run.")] = None

    agent_model: Annotated[str | None, Option(
        flags=("--agent-model",), group=WORKSPACES, metavar="MODEL", actions=_CHAT_ACTIONS, is_repeated=True,
        help="The model of the agent under test, instead of a playbook's agent_model.")] = None
    evaluator: Annotated[str | None, Option(
        flags=("--evaluator",), group=WORKSPACES, metavar="NAME", takes_function=True, on_resume="reference", is_repeated=True,
        help="The agent that grades playbooks and plays their user, instead of their evaluator_model: an agent, a connector, a "
        "well-known model, or a model that `models` of a connector matches.")] = None
    workspace: Annotated[WorkspaceKind | None, Option(
        flags=("--workspace",), group=WORKSPACES, actions=_CHAT_ACTIONS, is_repeated=True,
        help="Where an agent that works in a folder runs: in a copy of the repository (default, unless a playbook has "
        "`tmpdir`), in the working folder itself, or in an empty folder.")] = None
    link_mode: Annotated[LinkMode | None, Option(
        flags=("--link-mode",), group=WORKSPACES, is_repeated=True,
        help="How a playbook's link_paths are put into its workspace (default: symlink; copy for the Gemini CLI).")] = None
    keep_workspace: Annotated[bool, Option(
        flags=("--keep-workspace",), group=WORKSPACES, actions=_CHAT_ACTIONS,
        may_differ=True, help="Keep every workspace, not only those of cases that did not pass.")] = False
    sandbox: Annotated[Sandbox | None, Option(
        flags=("--sandbox",), group=WORKSPACES, actions=_CHAT_ACTIONS, is_repeated=True,
        help="Confine agents that are processes to their workspace with bubblewrap (default: none).")] = None

    modes: Annotated[tuple[Mode, ...], Option(
        flags=("--modes",), group=EVALS, metavar="A,B", parse=parse_modes, actions=("host",), is_repeated=True,
        help="Modes of an eval suite: golden, rubric, adversarial, regression, live-shadow (default: those that the suite "
        "declares, except those that need --baseline or --live).")] = ()
    live: Annotated[bool, Option(
        flags=("--live",), group=EVALS, actions=("host",), is_repeated=True,
        help="With --modes live-shadow: use live tools and memory instead of the fixtures.")] = False
    baseline: Annotated[str | None, Option(
        flags=("--baseline",), group=EVALS, metavar="RUN|FILE", actions=("host",),
        help="Compare the score of an eval suite with that of an earlier run, or of the file of its summary.")] = None
    fail_on_regression: Annotated[bool, Option(
        flags=("--fail-on-regression",), group=EVALS, actions=("host",),
        help="Fail the run if the score is below that of --baseline.")] = False
    allow_agent_mismatch: Annotated[bool, Option(
        flags=("--allow-agent-mismatch",), group=EVALS, actions=("host",), is_repeated=True,
        help="Run an eval suite although it names another agent as its target.")] = False
    eval_summary: Annotated[Path | None, Option(
        flags=("--eval-summary",), group=EVALS, metavar="FILE", actions=("host",), on_resume="replace", may_differ=True,
        coordinator_only=True, help="Write the EvalSummary of an eval suite: scores, ids and counts, without any content.")] = None

    update_snapshots: Annotated[bool, Option(
        flags=("--update-snapshots",), group=STORAGE, help="Write the files that snapshot assertions compare with.")] = False
    record: Annotated[Path | None, Option(
        flags=("--record",), group=STORAGE, metavar="FILE", excludes=("replay",),
        may_differ=True, help="Record every reply in this file, a cassette, for --replay.")] = None
    replay: Annotated[Path | None, Option(
        flags=("--replay",), group=STORAGE, metavar="FILE", is_existing_file=True, is_repeated=True,
        may_differ=True, help="Replay the replies of a cassette, without network.")] = None
    replay_missing: Annotated[MissingPolicy, Option(
        flags=("--replay-missing",), group=STORAGE, needs="replay", is_repeated=True,
        help="What to do if the cassette has no reply to a message.")] = "error"
    rerun_of: Annotated[str | None, Option(
        flags=("--rerun-of",), group=STORAGE, metavar="RUN", may_differ=True,
        help="The id of the run that this one repeats: `viva view` links both.")] = None
    history: Annotated[bool, Option(
        flags=("--no-history",), group=STORAGE, actions=_CHAT_ACTIONS, may_differ=True, help="Write nothing to .viva.")] = True

    @property
    def is_filtered(self) -> bool:
        """Do filters select only some of the cases? A shard is not a filter."""
        return self.only is not None or bool(self.tags) or self.selected_cases is not None

    @property
    def has_workers(self) -> bool:
        """Do trials run in other processes?"""
        return self.workers is not None or self.cluster is not None

    @property
    def pass_rule(self) -> PassRule:
        return PassRule(self.min_pass, self.sequential)


class CommandFlags(Struct, frozen=True, kw_only=True):
    """Flags of `viva test` that are not run options: what the command does, and what it prints."""

    host: Annotated[str | None, Option(
        flags=("--host",), group=INPUT, metavar="URL", actions=("host",),
        help="Run the eval suite on this OpenWOP host; -n is the id of an agent there. The token is in OPENWOP_TOKEN.")] = None
    verbose: Annotated[bool, Option(flags=("-v", "--verbose"), group=OUTPUT, actions=_ALL_ACTIONS, help="Show all turns.")] = False
    quiet: Annotated[bool, Option(
        flags=("-q", "--quiet"), group=OUTPUT, actions=("resume", "host", "message"),
        help="Show only what did not pass, and one line of summary.")] = False
    as_json: Annotated[bool, Option(
        flags=("--json",), group=OUTPUT, actions=("resume", "host", "message"),
        help="Print each event as one line of JSON.")] = False
    until_decided: Annotated[bool, Option(
        flags=("--until-decided",), group=REPEATS, needs="min_pass", excludes=("runs", "fail_fast"),
        help="Run each case until it is clear whether its pass rate is at least --min-pass (a sequential test).")] = False
    max_runs: Annotated[int | None, Option(
        flags=("--max-runs",), group=REPEATS, metavar="N", range=Range(1), needs="until_decided",
        help="Maximum trials per case; a case still undecided then fails the run (default: from --min-pass, --margin and --beta).")] = None
    alpha: Annotated[float, Option(
        flags=("--alpha",), group=REPEATS, metavar="P", range=_PROBABILITY, needs="until_decided",
        help="Chance that a case passes although its pass rate is --margin below --min-pass.")] = 0.05
    beta: Annotated[float, Option(
        flags=("--beta",), group=REPEATS, metavar="P", range=_PROBABILITY, needs="until_decided",
        help="Chance that a case fails although its pass rate is --min-pass.")] = 0.1
    margin: Annotated[float | None, Option(
        flags=("--margin",), group=REPEATS, metavar="P", range=_PROBABILITY, needs="until_decided",
        help="How far below --min-pass a pass rate is too low (default: 0.2, or half of a --min-pass below 0.4).")] = None
    resume: Annotated[str | None, Option(
        flags=("--resume",), group=STORAGE, metavar="RUN", actions=("resume",),
        help="Continue a run that stopped early (its id, or latest), or write the reports of a complete one again.")] = None
    force: Annotated[bool, Option(
        flags=("--force",), group=STORAGE, actions=("resume",), needs="resume",
        help="With --resume: continue although suites, agents or Viva have changed.")] = False
# fmt: on


def _iterate_options(struct: type[Struct]) -> Iterator[Option]:
    for field in structs.fields(struct):
        annotation, option = get_args(struct.__annotations__[field.name])
        types = [each for each in get_args(annotation) if each is not NoneType]
        is_optional = get_origin(annotation) in (UnionType, _LITERAL_UNION) and len(types) == 1
        yield structs.replace(
            option,
            name=field.name,
            type=types[0] if is_optional else annotation,
            default=None if field.required else field.default,
            keyword=None if struct is CommandFlags else field.name if option.keyword == "" else option.keyword,
        )


_LITERAL_UNION = get_origin(Literal["a"] | None)
"""`Literal[...] | None` is another kind of union than `int | None`."""
RUN_OPTIONS: Mapping[str, Option] = {option.name: option for option in _iterate_options(AllRunOptions)}
"""The options of a run, by the name of their field."""
FLAGS: Mapping[str, Option] = {
    option.name: option
    for option in sorted(
        (*RUN_OPTIONS.values(), *_iterate_options(CommandFlags)), key=lambda option: GROUPS.index(option.group or INPUT)
    )
    if option.flags
}
"""The options that `viva test` has flags for, in the order of its help."""
KEYWORDS: Mapping[str, Option] = {option.keyword: option for option in RUN_OPTIONS.values() if option.keyword}
"""The options that `viva.run` takes, by keyword."""


def find_option_conflicts(
    values: Mapping[str, Any], labels: Mapping[str, str], options: Collection[Option]
) -> Iterator[str]:
    """A message for each given option that lacks an option it needs, or excludes another given option. `labels` are their names in messages."""
    for option in options:
        if option.name not in values:
            continue
        if option.needs is not None and option.needs not in values:
            yield f"{labels[option.name]} needs {labels[option.needs]}"
        for other in option.excludes:
            if values[option.name] != option.default and other in values and values[other] != FLAGS[other].default:
                yield f"{labels[option.name]} and {labels[other]} exclude each other"
