"""The flags of `viva test`, in groups: each a decorator."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from viva.cli.options import DURATION

Command = Callable[..., Any]
_CHANCE = click.FloatRange(0, 1, min_open=True, max_open=True)


def _group(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """One decorator for several flags, in the order in which the help shows them."""

    def decorated(function: Command) -> Command:
        for option in reversed(options):
            function = option(function)
        return function

    return decorated


input_options = _group(
    click.option(
        "-i",
        "--input",
        "inputs",
        multiple=True,
        metavar="INPUT",
        help="A file, folder, glob, `-` for standard input, `scripts:module`, `agents:name`, or a message. Repeatable. "
        "Inputs may also stand without -i.",
    ),
    click.argument("paths", nargs=-1, metavar="[INPUT]..."),
    click.option(
        "-n",
        "--name",
        "agent",
        metavar="AGENT",
        help="The agent under test: a name from viva.toml, a command line agent (gemini, claude, codex, qwen, opencode), "
        "python:..., or http://... Playbooks are for gemini, if neither this nor the config says otherwise.",
    ),
    click.option(
        "-c",
        "--connector",
        metavar="NAME",
        help="Another connector for the agent under test, or a well-known model such as gpt-4o.",
    ),
    click.option(
        "--host",
        metavar="URL",
        help="Run the eval suite on that OpenWOP host, on its agent -n ID; OPENWOP_TOKEN holds the token.",
    ),
    click.option(
        "--format",
        "format_",
        type=click.Choice(["native", "playbook", "openwop"]),
        help="The format of the input, if its keys do not tell.",
    ),
    click.option(
        "--config",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="Another config than the nearest viva.toml.",
    ),
    click.option(
        "--env-file",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="NAME=value lines to add to the environment.",
    ),
    click.option("-k", "--run", "only", metavar="REGEX", help="Only cases whose id matches."),
    click.option("--tag", "tags", multiple=True, help="Only cases with this tag. Repeatable: any of them."),
    click.option("--last-failed", is_flag=True, help="Only cases that did not pass in the latest run."),
    click.option("--dry-run", is_flag=True, help="Check and list the cases, run nothing; -o FILE.jsonl writes them."),
)
"""What is run, and against whom."""

output_options = _group(
    click.option(
        "-o",
        "--output",
        "outputs",
        multiple=True,
        type=click.Path(path_type=Path),
        help="Write a report: .jsonl, .json, .xml (JUnit), .html or .md. Repeatable.",
    ),
    click.option("-v", "--verbose", is_flag=True, help="Show all turns."),
    click.option("-q", "--quiet", is_flag=True, help="Show only what did not pass, and one line of summary."),
    click.option("--json", "as_json", is_flag=True, help="Print each event as one line of JSON, for machines."),
    click.option(
        "-r",
        "--reporter",
        metavar="AGENT",
        help="An agent that writes the reports of -o; without -o its words are printed. It has the time of a case for each.",
    ),
)
"""What is shown and written."""

limit_options = _group(
    click.option("--timeout", type=DURATION, help="Time for a case, over what it says itself (5m)."),
    click.option("--turn-timeout", type=DURATION, help="Time for one reply."),
    click.option("--parallel", type=click.IntRange(1), metavar="N", help="So many cases at once (4)."),
    click.option(
        "--fail-fast",
        is_flag=True,
        help="Stop when a case can no longer pass: it failed or broke, or too many of its trials did.",
    ),
    click.option(
        "--max-cost",
        type=click.FloatRange(0, min_open=True),
        metavar="USD",
        help="Stop the run when its model calls have cost so much.",
    ),
    click.option(
        "--retry-faults",
        type=click.IntRange(0),
        default=1,
        show_default=True,
        metavar="N",
        help="Run a trial again, whole, if its error was not the agent's fault.",
    ),
)
"""How long, how many at once, how much it may cost, and when to stop."""

repeat_options = _group(
    click.option("--runs", type=click.IntRange(1), default=1, metavar="N", help="Run each case N times."),
    click.option(
        "--min-pass",
        type=click.FloatRange(0, 1),
        metavar="P",
        help="With --runs: a case passes if this share of its trials does.",
    ),
    click.option(
        "--until-decided",
        is_flag=True,
        help="Run each case until it is clear whether it passes in a share of --min-pass or more (a sequential test).",
    ),
    click.option(
        "--max-runs",
        type=click.IntRange(1),
        metavar="N",
        help=(
            "Maximum trials per case; a case that is still undecided then fails the run. Default: as many as leave a case "
            "that is exactly good enough undecided in at most --beta."
        ),
    ),
    click.option(
        "--alpha",
        type=_CHANCE,
        default=0.05,
        show_default=True,
        metavar="P",
        help="How often a case may pass that is worse by --margin.",
    ),
    click.option(
        "--beta",
        type=_CHANCE,
        default=0.1,
        show_default=True,
        metavar="P",
        help="How often a case may fail that is good enough.",
    ),
    click.option(
        "--margin",
        type=_CHANCE,
        metavar="P",
        help="How much worse than --min-pass is too bad (0.2; half of a --min-pass below 0.4).",
    ),
)
"""How often each case runs, and what its trials have to come to."""

participant_options = _group(
    click.option(
        "--simulator", metavar="AGENT", help="Who plays the user in cases that have checkpoints but no simulator."
    ),
    click.option(
        "--interactive",
        is_flag=True,
        help="Take part: see each line before it is said, change it, answer when the agent waits. Without -i: just talk.",
    ),
    click.option("--skip-interactive", is_flag=True, help="Skip cases that want a person (interactive.enabled)."),
    click.option(
        "--on-missing-input",
        type=click.Choice(["skip", "fail", "end"]),
        help="When the agent still waits but turns are used up, or a person does not answer.",
    ),
    click.option(
        "--before",
        metavar="MODULE:FUNCTION",
        help="Called with (ctx, cases) before the run; a dict it returns sets variables.",
    ),
    click.option("--after", metavar="MODULE:FUNCTION", help="Called with (ctx, results, data) after the run."),
)
"""Who else takes part: the one who plays the user, a person, and code around the run."""

workspace_options = _group(
    click.option(
        "--agent-model", metavar="MODEL", help="The model of the agent under test, over a playbook's agent_model."
    ),
    click.option(
        "--evaluator",
        metavar="NAME",
        help="Who grades playbooks and plays the user in them: a connector, an agent, or a model: a well-known one, or one "
        "that `models` of a connector fits. Over their evaluator_model.",
    ),
    click.option(
        "--workspace",
        type=click.Choice(["copy", "cwd", "empty"]),
        help="Where an agent works that lives in a folder: in a copy of the repository (unless a playbook has `tmpdir`), in "
        "the working folder itself, or in an empty one.",
    ),
    click.option(
        "--link-mode",
        type=click.Choice(["symlink", "copy"]),
        help="How a playbook's link_paths come into its workspace (symlink; copy for the Gemini CLI).",
    ),
    click.option(
        "--keep-workspace", is_flag=True, help="Keep every workspace, not only those of cases that did not pass."
    ),
    click.option(
        "--sandbox",
        type=click.Choice(["bwrap", "none"]),
        help="Confine agents that are processes to their workspace, with bubblewrap (none).",
    ),
)
"""For playbooks, and for agents that live in a folder."""

storage_options = _group(
    click.option("--update-snapshots", is_flag=True, help="Write what snapshot assertions compare with."),
    click.option("--record", type=click.Path(dir_okay=False, path_type=Path), help="Keep every reply on a cassette."),
    click.option(
        "--replay",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="Answer from a cassette, not from the network.",
    ),
    click.option(
        "--replay-missing",
        type=click.Choice(["error", "live", "skip"]),
        default="error",
        show_default=True,
        help="What to do where the cassette has no answer.",
    ),
    click.option(
        "--resume",
        metavar="RUN",
        help="Continue a run that stopped early (its id, or latest), or write the reports of one that did not.",
    ),
    click.option("--force", is_flag=True, help="With --resume: go on although suites, agents or Viva have changed."),
    click.option("--no-history", is_flag=True, help="Leave nothing in .viva."),
)
"""What is kept of a run, and used again."""
