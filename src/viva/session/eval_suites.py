"""What a run needs to know for eval suites before it starts: modes, baseline, whom a suite is for, what it takes."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import structs

from viva.config import Settings
from viva.engine.thresholds import case_score, trial_score
from viva.errors import BadInput, Problem
from viva.formats.openwop.modes import EvalOptions
from viva.formats.openwop.summary import parse_eval_summary
from viva.history.index import History
from viva.model.case import Baseline, Case, Feature, Suite, Threshold
from viva.model.record import TrialRecord
from viva.session.agents import ConfiguredAgent
from viva.session.options import RunOptions
from viva.session.resume import load_previous_run
from viva.stats.pass_rule import PassRule

_FLAGS = {
    "modes": "--modes",
    "live": "--live",
    "baseline": "--baseline",
    "fail_on_regression": "--fail-on-regression",
    "allow_agent_mismatch": "--allow-agent-mismatch",
    "eval_summary": "--eval-summary",
}
_TAKES: dict[Feature, str] = {"tool_stubs": "stubbed tools", "memory": "a memory", "workspace": "a workspace"}


def build_eval_options(options: RunOptions, settings: Settings, *, is_check_only: bool = False) -> EvalOptions:
    """What the flags and the config say of eval suites."""
    said = settings.openwop
    return EvalOptions(
        validate_only=is_check_only,
        modes=options.modes,
        is_live=options.live,
        has_baseline=options.baseline is not None,
        pass_score=said.pass_score,
        fail_at=said.fail_at,
        judge=said.judge,
        safety_judge=said.safety_judge,
        agent_names={agent["agent_id"]: name for name, agent in settings.agents.items() if "agent_id" in agent},
        trusted_keys=said.trusted_keys,
        require_signature=said.require_signature,
        secrets=settings.redactor.secrets,
        prompts=[],
    )


def pin_baseline(options: RunOptions, settings: Settings) -> RunOptions:
    """With the run that `latest` means now: when the run goes on one day, that will be another."""
    text = options.baseline
    if text is None or (options.folder / text).is_file():
        return options
    if "/" in text or text.endswith(".json"):
        raise BadInput.of(f"--baseline: there is no file {text!r}")
    try:
        return structs.replace(options, baseline=History(settings.data_folder).find_run(text).id)
    except BadInput as wrong:
        raise BadInput.of(f"--baseline: {wrong}") from wrong


def add_baselines(suites: Sequence[Suite], options: RunOptions, settings: Settings) -> list[Suite]:
    """The suites with what they are compared with. Flags that only eval suites have are refused where there is none."""
    evals = [suite for suite in suites if suite.kind == "eval_suite"]
    given = [flag for name, flag in _FLAGS.items() if getattr(options, name)]
    if given and not evals:
        raise BadInput.of(f"{', '.join(given)}: only OpenWOP eval suites have that, and there is none in the input")
    if options.fail_on_regression and options.baseline is None:
        raise BadInput.of("--fail-on-regression needs --baseline: worse than what?")
    _check_wholeness(options, [suite.id for suite in evals])
    if options.baseline is None:
        return list(suites)
    compare = _comparison(options, settings)
    return [_compared(suite, compare(suite), options) if suite.kind == "eval_suite" else suite for suite in suites]


def _check_wholeness(options: RunOptions, evals: Sequence[str]) -> None:
    """A summary, and a score to compare, are those of one whole suite."""
    if options.eval_summary is not None and len(evals) > 1:
        raise BadInput.of(f"--eval-summary holds one suite, and there are {len(evals)}: {', '.join(evals)}")
    whole = [
        flag for flag, said in (("--eval-summary", options.eval_summary), ("--baseline", options.baseline)) if said
    ]
    partly = {"-k": options.only, "--tag": options.tags, "--last-failed": options.last_failed}
    if whole and (said := [flag for flag, value in partly.items() if value]):
        raise BadInput.of(f"{' and '.join(whole)}: means a whole suite; leave out {', '.join(said)}")


def _compared(suite: Suite, baseline: Baseline, options: RunOptions) -> Suite:
    threshold = structs.replace(
        suite.threshold or Threshold(), baseline=baseline, fail_on_regression=options.fail_on_regression
    )
    return structs.replace(suite, threshold=threshold)


def _comparison(options: RunOptions, settings: Settings) -> Callable[[Suite], Baseline]:
    """Finds what a suite scored before, in the file of a summary or in an earlier run."""
    text = str(options.baseline)
    file = options.folder / text
    if file.is_file():
        return lambda suite: _from_file(file, text, suite)
    return lambda suite: _from_run(History(settings.data_folder), text, suite)


def _from_file(file: Path, shown: str, suite: Suite) -> Baseline:
    summary = parse_eval_summary(file.read_bytes(), f"--baseline {shown}")
    _check_same(suite, {summary.suite_id: summary.suite_version}, shown)
    _check_whole(suite, summary.task_count, shown)
    return Baseline(file.name, summary.aggregate_score, {task.task_id: task.score for task in summary.tasks})


def _from_run(history: History, name: str, suite: Suite) -> Baseline:
    past = load_previous_run(history, name)
    if past.run_ended is None:
        raise BadInput.of(f"--baseline: the run {past.run_id} has not come to its end; nothing can be compared with it")
    known = {standing.suite: standing for standing in past.run_ended.summary.suites}
    shown = f"the run {past.run_id}"
    _check_same(suite, {each.suite: each.version for each in known.values() if each.kind == "eval_suite"}, shown)
    _check_whole(suite, known[suite.id].cases, shown)
    if past.settings["options"].get("live"):
        raise BadInput.of(f"--baseline: {shown} was live-shadow: its scores are not those of the fixtures")
    scores = _scores([event.record for event in past.ended_trials], suite.id, PassRule.from_settings(past.settings))
    return Baseline(past.run_id, known[suite.id].score, scores)


def _scores(records: Sequence[TrialRecord], suite: str, rule: PassRule) -> dict[str, float]:
    """What each case scored, if it came to a verdict."""
    trials: dict[str, list[TrialRecord]] = {}
    for record in records:
        if record.suite == suite:
            trials.setdefault(record.id, []).append(record)
    found = [case_score(case, [*map(trial_score, each)], rule) for case, each in trials.items()]
    return {each.case: each.score for each in found if each.status in ("passed", "failed")}


def _check_same(suite: Suite, known: Mapping[str, str], where: str) -> None:
    """Scores are compared between like versions only."""
    if suite.id not in known:
        raise BadInput.of(f"--baseline: {where} tells of {', '.join(known) or 'no eval suite'}, not of {suite.id}")
    if known[suite.id] != suite.version:
        what = f"{where} tells of version {known[suite.id]} of {suite.id}, and this is {suite.version}"
        raise BadInput.of(f"--baseline: {what}")


def _check_whole(suite: Suite, cases: int, where: str) -> None:
    """The score of some of its cases is another score."""
    if cases != suite.count:
        raise BadInput.of(f"--baseline: {where} scored not the same cases of {suite.id}: {cases}, of {suite.count}")


def check_audience(suites: Sequence[Suite], agent: ConfiguredAgent, *, allow_mismatch: bool) -> list[str]:
    """Is the agent the one that the suites are for? What cannot be known is said in a note."""
    problems: list[Problem] = []
    notes: list[str] = []
    for suite in suites:
        wanted, origin = suite.intended_agent, suite.origin
        place = (origin.file, origin.line) if origin else ("", 0)
        if wanted.agent_id and agent.agent_id and agent.agent_id != wanted.agent_id and not allow_mismatch:
            what = f"is meant for {wanted.agent_id}, and the agent {agent.name} is {agent.agent_id}"
            problems.append(Problem(*place, "$.targetAgentId", f"{what}; --allow-agent-mismatch runs it all the same"))
        elif wanted.agent_id and agent.agent_id != wanted.agent_id:
            known = f"is {agent.agent_id}" if agent.agent_id else "has no agent_id in the config"
            notes.append(f"{suite.id} is meant for {wanted.agent_id}; the agent {agent.name} {known}")
        if wanted.model_classes and agent.model_class not in (None, *wanted.model_classes):
            what = f"is meant for models of the class {', '.join(wanted.model_classes)}, and {agent.name} has {agent.model_class}"
            problems.append(Problem(*place, "$.allowedModels", what))
        elif wanted.model_classes and agent.model_class is None:
            notes.append(
                f"{suite.id} is meant for models of the class {', '.join(wanted.model_classes)}; {agent.name} names none"
            )
    if problems:
        raise BadInput(*problems)
    return notes


async def check_needs(suites: Sequence[Suite], agent: ConfiguredAgent, wanted: Callable[[Case], Case | None]) -> None:
    """Nothing runs if the agent would not take what cases put in place of its tools or memory."""
    provided: set[Feature] = {"workspace", *agent.agent.provides}  # an agent that lives in no folder is told of it
    problems: list[Problem] = []
    for suite in suites:
        if not suite.needs.keys() - provided:
            continue
        lacking: dict[Feature, list[str]] = {}
        async for case in suite.cases():
            if wanted(case) is not None:
                for feature in case.needs - provided:
                    lacking.setdefault(feature, []).append(case.id)
        for feature, cases in sorted(lacking.items()):
            origin = suite.origin
            what = f"the agent {agent.name!r} takes no {_TAKES[feature].removeprefix('a ')}, but these need it: {', '.join(cases)}"
            problems.append(Problem(origin.file if origin else "", 0, "", f"{what}; {_way_out(feature, agent.kind)}"))
    if problems:
        raise BadInput(*problems)


def _way_out(feature: Feature, kind: str) -> str:
    name = "tools" if feature == "tool_stubs" else "memory"
    ways = {
        "python": f"give its function a parameter `{name}`, or say takes_fixtures = true",
        "given": f"its `provides` has to name {feature!r}",
        "http": 'say fixtures = "forward", and they are sent along',
    }
    return ways.get(kind, 'chat, prompt and Python agents can, and http agents by fixtures = "forward"')


def extract_prompts(definition: Mapping[str, Any]) -> list[str]:
    """The instructions of an agent, as far as the config knows them."""
    found = [definition.get(key) for key in ("system", "system_file text", "prompt text")]
    return [text for text in found if isinstance(text, str) and text]
