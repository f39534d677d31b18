"""The options of `viva.run`. Made from the table in session/options/run_options.py: `make reference` regenerates it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypedDict

from viva.check import AgentFunction
from viva.session.options.keyword_values import check_keyword_values
from viva.stats.sequential import SequentialTest


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The options of a run besides the keywords of `viva.run`: `viva.run(..., options=viva.RunOptions(fail_fast=True))`.

    They are the flags of `viva test`. A wrong value raises BadInput, which names it and says what would be right.
    """

    format: Literal["native", "playbook", "openwop"] | None = None
    """The format of the input: cases of Viva, a playbook (steps and a persona for a command-line agent), or an OpenWOP
    eval suite. By default the keys in the file decide.
    """

    env_file: str | Path | None = None
    """A file with NAME=value lines to add to the environment."""

    folder: str | Path = Path()
    """The folder that relative paths start from (default: the working folder)."""

    last_failed: bool = False
    """Run only cases that did not pass in the latest run."""

    shard: str | None = None
    """Run only the Nth of COUNT parts of the cases, for example 2/8; `viva merge` makes one run of all parts."""

    shard_by: Literal["hash", "time"] = "hash"
    """How `shard` divides the cases: by a hash of their ids, or by the times of earlier runs, so that all parts take
    equally long (.viva must be the same on all machines).
    """

    reporter: str | AgentFunction | None = None
    """An agent that writes the reports of `outputs`; without `outputs` its text is printed. Each report has the time
    limit of a case.
    """

    turn_timeout: str | float | None = None
    """Time limit for one reply."""

    fail_fast: bool = False
    """Stop when a case can no longer pass: it failed or ended in an error, or too many of its trials did."""

    retry_faults: int = 1
    """Run a trial again, up to N times, if its error was not the agent's fault."""

    sequential: SequentialTest | None = None
    """Run each case only until this `viva.types.SequentialTest` decides, as --until-decided does."""

    workers: int | None = None
    """Run the trials in N processes of this machine. For agents that use much CPU, or that end the process."""

    dashboard: bool = False
    """With `workers`: serve Dask's dashboard on this machine while the run goes on."""

    cluster: str | None = None
    """Run the trials on the workers of a Dask cluster: tcp://HOST:8786 or tls://HOST:8786."""

    cluster_folder: str | Path | None = None
    """The project's folder as the workers see it. Without it the project's files are sent to them."""

    skip_interactive: bool = False
    """Skip cases that need a person (interactive.enabled)."""

    on_missing_input: Literal["skip", "fail", "end"] | None = None
    """What to do if the agent still waits after the last turn, or a person does not answer."""

    before: str | Callable[..., Any] | None = None
    """A function that is called with (ctx, cases) before the run; a dict that it returns sets variables."""

    after: str | Callable[..., Any] | None = None
    """A function that is called with (ctx, results, data) after the run."""

    agent_model: str | None = None
    """The model of the agent under test, instead of a playbook's agent_model."""

    evaluator: str | AgentFunction | None = None
    """The agent that grades playbooks and plays their user, instead of their evaluator_model: an agent, a connector, a
    well-known model, or a model that `models` of a connector matches.
    """

    workspace: Literal["copy", "empty", "cwd"] | None = None
    """Where an agent that works in a folder runs: in a copy of the repository (default, unless a playbook has `tmpdir`),
    in the working folder itself, or in an empty folder.
    """

    link_mode: Literal["symlink", "copy"] | None = None
    """How a playbook's link_paths are put into its workspace (default: symlink; copy for the Gemini CLI)."""

    keep_workspace: bool = False
    """Keep every workspace, not only those of cases that did not pass."""

    sandbox: Literal["bwrap", "none"] | None = None
    """Confine agents that are processes to their workspace with bubblewrap (default: none)."""

    modes: Sequence[Literal["golden", "rubric", "adversarial", "regression", "live-shadow"]] = ()
    """Modes of an eval suite: golden, rubric, adversarial, regression, live-shadow (default: those that the suite
    declares, except those that need `baseline` or `live`).
    """

    live: bool = False
    """With `modes` live-shadow: use live tools and memory instead of the fixtures."""

    baseline: str | None = None
    """Compare the score of an eval suite with that of an earlier run, or of the file of its summary."""

    fail_on_regression: bool = False
    """Fail the run if the score is below that of `baseline`."""

    allow_agent_mismatch: bool = False
    """Run an eval suite although it names another agent as its target."""

    eval_summary: str | Path | None = None
    """Write the EvalSummary of an eval suite: scores, ids and counts, without any content."""

    update_snapshots: bool = False
    """Write the files that snapshot assertions compare with."""

    replay_missing: Literal["error", "live", "skip"] = "error"
    """What to do if the cassette has no reply to a message."""

    rerun_of: str | None = None
    """The id of the run that this one repeats: `viva view` links both."""

    def __post_init__(self) -> None:
        check_keyword_values(vars(self))


class RunKeywords(TypedDict, total=False):
    """The keywords of `viva.run`, for functions that pass them on."""

    config: str | Path | None
    """The config file (default: the nearest viva.toml)."""

    connector: str | None
    """The connector for the agent under test, instead of its own: an entry of [connectors] in viva.toml, or a well-known
    model such as gpt-4o.
    """

    simulator: str | AgentFunction | None
    """The agent that plays the user in cases that have checkpoints but no simulator."""

    only: str | None
    """Run only cases whose id matches."""

    tags: Sequence[str]
    """Run only cases with one of these tags."""

    parallel: int | Literal["auto"] | None
    """Run up to N conversations in parallel. The default is auto: 8 at first, more while calls succeed, fewer when the
    provider refuses them; 4 for agents in this process, 2 for CLIs.
    """

    runs: int
    """Run each case N times."""

    min_pass: float | None
    """With `runs`: a case passes if at least this share of its trials passes."""

    timeout: str | float | None
    """Time limit for each case; replaces the case's own (default: 5m)."""

    max_cost: float | None
    """Stop the run when its model calls have cost this much."""

    outputs: str | Path | Sequence[str | Path]
    """Write a report: .jsonl, .json, .xml (JUnit), .html or .md."""

    record: str | Path | None
    """Record every reply in this file, a cassette, for `replay`."""

    replay: str | Path | None
    """Replay the replies of a cassette, without network."""

    history: bool
    """False: write nothing to .viva."""

    options: RunOptions | None
    """The other options of the run."""
