"""Keywords of `viva.run`. Made from the table in session/run_options.py: `make reference` writes it anew."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict

from viva.stats.sequential import SequentialTest


class RunKeywords(TypedDict, total=False):
    """The keywords of `viva.run` beside those that its signature names."""

    format: Literal["native", "playbook", "openwop"] | None
    """The format of the input. By default its keys decide."""

    env_file: str | Path | None
    """A file with NAME=value lines to add to the environment."""

    folder: str | Path
    """The folder that relative paths start from (default: the working folder)."""

    last_failed: bool
    """Run only cases that did not pass in the latest run."""

    shard: str | None
    """Run only the Nth of COUNT parts of the cases, for example 2/8; `viva merge` makes one run of all parts."""

    shard_by: Literal["hash", "time"]
    """How `shard` shares out the cases: by a hash of their ids, or so that all parts take equally long, by the times of
    earlier runs in .viva, which must be the same on all machines.
    """

    reporter: str | None
    """An agent that writes the reports of `outputs`; without `outputs` its text is printed. It has the time limit of a
    case for each.
    """

    turn_timeout: str | float | None
    """Time limit for one reply."""

    fail_fast: bool
    """Stop when a case can no longer pass: it failed or broke, or too many of its trials did."""

    retry_faults: int
    """Run a trial again, up to N times, if its error was not the agent's fault."""

    sequential: SequentialTest | None
    """Run each case only until this `viva.SequentialTest` decides, as --until-decided does."""

    workers: int | None
    """Run the trials in N processes of this machine. For agents that use much CPU, or that end the process."""

    cluster: str | None
    """Run the trials on the workers of a Dask cluster: tcp://HOST:8786 or tls://HOST:8786."""

    cluster_folder: str | Path | None
    """The project's folder as the workers see it. Without it the project's files are sent to them."""

    skip_interactive: bool
    """Skip cases that need a person (interactive.enabled)."""

    on_missing_input: Literal["skip", "fail", "end"] | None
    """What to do if the agent still waits after the last turn, or a person does not answer."""

    before: str | Callable[..., Any] | None
    """A function that is called with (ctx, cases) before the run; a dict that it returns sets variables."""

    after: str | Callable[..., Any] | None
    """A function that is called with (ctx, results, data) after the run."""

    agent_model: str | None
    """The model of the agent under test, instead of a playbook's agent_model."""

    evaluator: str | None
    """The agent that grades playbooks and plays their user, instead of their evaluator_model: an agent, a connector, a
    well-known model, or a model that `models` of a connector matches.
    """

    workspace: Literal["copy", "empty", "cwd"] | None
    """Where an agent that works in a folder runs: in a copy of the repository (default, unless a playbook has `tmpdir`),
    in the working folder itself, or in an empty folder.
    """

    link_mode: Literal["symlink", "copy"] | None
    """How a playbook's link_paths are put into its workspace (default: symlink; copy for the Gemini CLI)."""

    keep_workspace: bool
    """Keep every workspace, not only those of cases that did not pass."""

    sandbox: Literal["bwrap", "none"] | None
    """Confine agents that are processes to their workspace with bubblewrap (default: none)."""

    modes: Sequence[Literal["golden", "rubric", "adversarial", "regression", "live-shadow"]]
    """Modes of an eval suite: golden, rubric, adversarial, regression, live-shadow (default: those that the suite
    declares, except those that need `baseline` or `live`).
    """

    live: bool
    """With `modes` live-shadow: use live tools and memory instead of the fixtures."""

    baseline: str | None
    """Compare the score of an eval suite with that of an earlier run, or of the file of its summary."""

    fail_on_regression: bool
    """Fail the run if the score is below that of `baseline`."""

    allow_agent_mismatch: bool
    """Run an eval suite although it names another agent as its target."""

    eval_summary: str | Path | None
    """Write the EvalSummary of an eval suite: scores, ids and counts, without any content."""

    update_snapshots: bool
    """Write the files that snapshot assertions compare with."""

    replay_missing: Literal["error", "live", "skip"]
    """What to do if the cassette has no reply."""

    history: bool
    """False: write nothing to .viva."""
