"""Checks for OpenWOP eval suites before a run: modes, baseline, intended agent and needed features."""

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path

from msgspec import structs

from viva.config import Settings
from viva.engine.thresholds import score_case, score_trial
from viva.errors import BadInput, Problem
from viva.formats.openwop.modes import EvalOptions
from viva.history.index import History
from viva.model.case import Baseline, Case, Feature, Suite, Threshold
from viva.model.record import TrialRecord
from viva.session.agents import ConfiguredAgent
from viva.session.options.run_options import EVALS, RUN_OPTIONS, AllRunOptions
from viva.session.resume import load_previous_run
from viva.stats.pass_rule import PassRule

_EVAL_FLAGS = {option.name: option.flag for option in RUN_OPTIONS.values() if option.group == EVALS}
_FEATURE_NAMES: dict[Feature, str] = {"tool_stubs": "stubbed tools", "memory": "memory", "workspace": "workspace"}


def build_eval_options(
    options: AllRunOptions,
    settings: Settings,
    *,
    is_check_only: bool = False,
    get_prompts: Callable[[], Sequence[str]] = tuple,
) -> EvalOptions:
    """The options for eval suites, from the flags and the config."""
    openwop = settings.openwop
    return EvalOptions(
        validate_only=is_check_only,
        modes=options.modes,
        is_live=options.live,
        has_baseline=options.baseline is not None,
        pass_score=openwop.pass_score,
        fail_at=openwop.fail_at,
        judge=openwop.judge,
        safety_judge=openwop.safety_judge,
        agent_names={agent["agent_id"]: name for name, agent in settings.agents.items() if "agent_id" in agent},
        trusted_keys=openwop.trusted_keys,
        require_signature=openwop.require_signature,
        secrets=settings.redactor.secrets,
        get_prompts=get_prompts,
    )


def resolve_latest_baseline(options: AllRunOptions, settings: Settings) -> AllRunOptions:
    """The options with the id of a run in place of `--baseline latest`: when this run is resumed, `latest` means another run."""
    text = options.baseline
    if text is None or (options.folder / text).is_file():
        return options
    if "/" in text or text.endswith(".json"):
        raise BadInput.of(f"--baseline: there is no file {text!r}")
    try:
        return structs.replace(options, baseline=History(settings.data_folder).find_run(text).id)
    except BadInput as error:
        raise BadInput.of(f"--baseline: {error}") from error


def add_baselines(
    suites: Sequence[Suite], options: AllRunOptions, settings: Settings, agents: Sequence[str]
) -> list[Suite]:
    """The suites with their baselines for the agents under test. Raises BadInput for flags of eval suites if the input has none."""
    evals = [suite for suite in suites if suite.kind == "eval_suite"]
    flags = [flag for name, flag in _EVAL_FLAGS.items() if getattr(options, name)]
    if flags and not evals:
        raise BadInput.of(f"{', '.join(flags)}: only for OpenWOP eval suites, and the input has none")
    if options.fail_on_regression and options.baseline is None:
        raise BadInput.of("--fail-on-regression needs --baseline")
    _refuse_partial_suites(options, [suite.id for suite in evals])
    if options.baseline is None:
        return list(suites)
    if len(agents) > 1:
        raise BadInput.of(f"--baseline is compared with one agent, and there are {len(agents)}; run the suite on each")
    text = options.baseline
    file = options.folder / text
    history = History(settings.data_folder)

    def add_baseline(suite: Suite) -> Suite:
        is_file = file.is_file()
        baseline = _read_baseline(file, text, suite) if is_file else _load_baseline(history, text, suite, agents[0])
        threshold = suite.threshold or Threshold()
        threshold = structs.replace(threshold, baseline=baseline, fail_on_regression=options.fail_on_regression)
        return structs.replace(suite, threshold=threshold)

    return [add_baseline(suite) if suite.kind == "eval_suite" else suite for suite in suites]


def _refuse_partial_suites(options: AllRunOptions, evals: Sequence[str]) -> None:
    """Raises BadInput if --eval-summary or --baseline is used with filters, shards, several suites or several agents."""
    if options.eval_summary is not None and len(evals) > 1:
        raise BadInput.of(f"--eval-summary is for one suite, but there are {len(evals)}: {', '.join(evals)}")
    if options.eval_summary is not None and len(options.agents) > 1:
        raise BadInput.of(
            f"--eval-summary is for one agent, but there are {len(options.agents)}; run the suite on each"
        )
    if options.eval_summary is not None and options.shard is not None:
        raise BadInput.of("--eval-summary: a shard has only a part of the suite; pass it to `viva merge`")
    whole_suite_flags = {"--eval-summary": options.eval_summary, "--baseline": options.baseline}
    filters = {"-k": options.only, "--tag": options.tags, "--last-failed": options.last_failed}
    flags = [flag for flag, value in whole_suite_flags.items() if value]
    if flags and (active := [flag for flag, value in filters.items() if value]):
        raise BadInput.of(f"{' and '.join(flags)}: needs the whole suite; remove {', '.join(active)}")


def _read_baseline(file: Path, name: str, suite: Suite) -> Baseline:
    """The baseline from the file of an eval summary."""
    from viva.formats.openwop.summary import parse_eval_summary  # most runs have no baseline

    summary = parse_eval_summary(file.read_bytes(), f"--baseline {name}")
    _check_same_suite_version(suite, {summary.suite_id: summary.suite_version}, name)
    _check_same_case_count(suite, summary.task_count, name)
    return Baseline(file.name, summary.aggregate_score, {task.task_id: task.score for task in summary.tasks})


def _load_baseline(history: History, name: str, suite: Suite, agent: str) -> Baseline:
    """The baseline from an earlier run; of a run of several agents, the results of `agent`."""
    run = load_previous_run(history, name)
    shown = f"the run {run.run_id}"
    if run.run_ended is None:
        raise BadInput.of(f"--baseline: {shown} is not complete, so nothing can be compared with it")
    has_several = len(run.started.agents) > 1
    if has_several and agent not in run.started.agents:
        agents = ", ".join(run.started.agents)
        raise BadInput.of(f"--baseline: {shown} has several agents ({agents}), and none of them is {agent!r}")
    summaries = {
        summary.suite: summary for summary in run.run_ended.summary.suites if not has_several or summary.agent == agent
    }
    versions = {summary.suite: summary.version for summary in summaries.values() if summary.kind == "eval_suite"}
    _check_same_suite_version(suite, versions, shown)
    _check_same_case_count(suite, summaries[suite.id].cases, shown)
    if run.settings["options"].get("live"):
        raise BadInput.of(f"--baseline: {shown} was live-shadow: its scores are not those of the fixtures")
    ended = (event.record for event in run.ended_trials)
    records = [each for each in ended if each.suite == suite.id and (not has_several or each.agent == agent)]
    return Baseline(run.run_id, summaries[suite.id].score, _score_cases(records, PassRule.from_settings(run.settings)))


def _score_cases(records: Sequence[TrialRecord], rule: PassRule) -> dict[str, float]:
    """The score of each case that has a verdict."""
    trials: dict[str, list[TrialRecord]] = {}
    for record in records:
        trials.setdefault(record.id, []).append(record)
    scores = [score_case(case, [*map(score_trial, case_records)], rule) for case, case_records in trials.items()]
    return {score.case: score.score for score in scores if score.status in ("passed", "failed")}


def _check_same_suite_version(suite: Suite, versions: Mapping[str, str], source: str) -> None:
    if suite.id not in versions:
        suites = ", ".join(versions) or "no eval suite"
        raise BadInput.of(f"--baseline: {source} is about {suites}, not about {suite.id}")
    if versions[suite.id] != suite.version:
        what = f"{source} is about version {versions[suite.id]} of {suite.id}, and this is {suite.version}"
        raise BadInput.of(f"--baseline: {what}")


def _check_same_case_count(suite: Suite, cases: int, source: str) -> None:
    if cases != suite.count:
        raise BadInput.of(f"--baseline: {source} scored other cases of {suite.id}: {cases}, of {suite.count}")


def check_intended_agents(
    suites: Sequence[Suite], agents: Sequence[ConfiguredAgent], *, allow_mismatch: bool
) -> list[str]:
    """Raises BadInput if a suite is for another agent. Returns notes on agents whose id or model class is not in the config."""
    problems: list[Problem] = []
    notes: list[str] = []
    for suite, agent in product(suites, agents):
        agent_id, model_classes = suite.intended_agent.agent_id, suite.intended_agent.model_classes
        place = (suite.origin.file, suite.origin.line) if suite.origin else ("", 0)
        if agent_id and agent.agent_id and agent.agent_id != agent_id and not allow_mismatch:
            what = f"is meant for {agent_id}, and the agent {agent.name} is {agent.agent_id}"
            problems.append(Problem(*place, "$.targetAgentId", f"{what}; --allow-agent-mismatch runs it anyway"))
        elif agent_id and agent.agent_id != agent_id:
            actual = f"is {agent.agent_id}" if agent.agent_id else "has no agent_id in the config"
            notes.append(f"{suite.id} is meant for {agent_id}; the agent {agent.name} {actual}")
        classes = f"is meant for models of the class {', '.join(model_classes)}"
        if model_classes and agent.model_class is None:
            notes.append(f"{suite.id} {classes}; {agent.name} has no model class in the config")
        elif model_classes and agent.model_class not in model_classes:
            what = f"{classes}, and {agent.name} has {agent.model_class}"
            problems.append(Problem(*place, "$.allowedModels", what))
    if problems:
        raise BadInput(*problems)
    return notes


async def check_needed_features(
    suites: Sequence[Suite], agents: Sequence[ConfiguredAgent], select_case: Callable[[Case], Case | None]
) -> None:
    """Raises BadInput if selected cases need stubbed tools, memory or a workspace that an agent does not support."""
    problems: list[Problem] = []
    for agent, suite in product(agents, suites):
        provided: set[Feature] = {"workspace", *agent.agent.provides}  # every agent gets the path of its workspace
        if not suite.needs.keys() - provided:
            continue
        missing: dict[Feature, list[str]] = {}
        async for case in suite.cases():
            if select_case(case) is not None:
                for feature in case.needs - provided:
                    missing.setdefault(feature, []).append(case.id)
        for feature, cases in sorted(missing.items()):
            file = suite.origin.file if suite.origin else ""
            what = f"the agent {agent.name!r} does not support {_FEATURE_NAMES[feature]}, but these need it: {', '.join(cases)}"
            problems.append(Problem(file, 0, "", f"{what}; {_suggest_solution(feature, agent.kind)}"))
    if problems:
        raise BadInput(*problems)


def _suggest_solution(feature: Feature, kind: str) -> str:
    name = "tools" if feature == "tool_stubs" else "memory"
    solutions = {
        "python": f"give its function a parameter `{name}`, or set takes_fixtures = true",
        "given": f"its `provides` must contain {feature!r}",
        "http": 'set fixtures = "forward" to send them along',
    }
    return solutions.get(kind, 'chat, prompt and Python agents do, and http agents with fixtures = "forward"')
