// The screen of a run: its outcome, its metrics, and the list of cases with filters.
import { useMemo, useState } from "preact/hooks";
import type { CaseRow, NamedRate, Overview, SuiteSummary, Status, Summary } from "./data";
import type { ServerSource, Source } from "./source";
import { formatCount, formatTime, formatCost, formatNumber, formatPercent, formatMs, formatShort, sortByName } from "./format";
import { parseFilter, isEmpty, buildQuery, type Filter } from "./filters";
import { RunMatrix } from "./matrix";
import { BreakdownPanel, openToolRates } from "./breakdown";
import { savePicture } from "./download";
import { RateBar, SuiteCertainty } from "./sure";
import { countCases, useRows, type RowSet } from "./rows";
import { useKeys } from "./keys";
import { Filters } from "./case_filters";
import { CaseList } from "./list";
import { InFlight, LiveProgress, useLiveState, type LiveState } from "./in_flight";
import { AgreementFigures } from "./labels";
import type { Run } from "./live";
import { navigate, type RunLinks } from "./route";
import { Line } from "./text";
import { StatusIcon } from "./status";
import { RerunLinks } from "./rerun_links";
import { CaseGrid } from "./grid";

interface Props {
  run: Run;
  source: Source;
  places: RunLinks;
  query: Record<string, string>;
  theme: string;
  allowRun: boolean;
  /** The index of the case opened last: keyboard selection starts there. */
  lastOpened: number;
}

/** A live run says once a second what it does; any other run says nothing. */
export function RunScreen(props: Props) {
  return props.run.live ? <LiveRunScreen {...props} /> : <RunParts {...props} liveState={null} />;
}

function LiveRunScreen(props: Props) {
  return <RunParts {...props} liveState={useLiveState(props.source as ServerSource, props.run.overview.run)} />;
}

function RunParts({ run, source, places, query, theme, allowRun, lastOpened, liveState }: Props & { liveState: LiveState | null }) {
  const { overview, live } = run;
  const filter = parseFilter(query);
  const rows = useRows(source, overview, filter);
  const scored = useMemo(() => new Set(overview.summary?.suites?.map((each) => each.suite)), [overview.summary]);
  const [at, setAt] = useState(() => findPosition(rows, lastOpened));
  const change = (part: Partial<Filter>) => {
    setAt(-1);
    navigate(places.list(buildQuery({ ...filter, ...part })), true);
  };
  const href = (row: CaseRow) => {
    const hit = row.trials.length > 1 ? rows.hits.get(row.index)?.[0] : undefined;
    return places.case(row, { ...buildQuery(filter), ...(hit ? { trial: hit.trial } : {}) });
  };
  useKeys({
    j: () => setAt(Math.min(at + 1, rows.total - 1)),
    k: () => setAt(Math.max(at - 1, 0)),
    "/": () => document.getElementById("search")?.focus(),
  });
  return (
    <>
      <Verdict overview={overview} live={live} liveState={liveState} source={source} allowRun={allowRun} />
      <Figures overview={overview} source={source} places={places} />
      {liveState && <InFlight live={liveState} caseHref={(trial) => places.case({ suite: trial.suite, id: trial.case, ...(trial.agent ? { agent: trial.agent } : {}) })} />}
      <CaseGrid
        rows={overview.cases}
        counts={overview.counts}
        shown={rows.shown}
        planned={overview.planned_cases ?? 0}
        theme={theme}
        open={(row) => navigate(href(row))}
      />
      {overview.matrix && <RunMatrix matrix={overview.matrix} run={overview.run} places={places} served={source.served} />}
      <BreakdownPanel overview={overview} filter={filter} change={change} />
      <section aria-label="Cases">
        <Filters overview={overview} filter={filter} change={change} count={rows.total} isSearching={rows.isBusy} />
        {rows.total === 0 && (
          <p class="waiting">
            {countCases(overview) === 0 ? "No finished cases yet." : "No case matches these filters. "}
            {!isEmpty(filter) && (
              <button type="button" class="link" onClick={() => navigate(places.list(), true)}>
                Show all
              </button>
            )}
          </p>
        )}
        <CaseList rows={rows} at={at} href={href} scored={scored} />
      </section>
    </>
  );
}

function findPosition(rows: RowSet, index: number): number {
  for (let at = 0; index >= 0 && at < rows.ids.length; at++) if (rows.get(at)?.index === index) return at;
  return -1;
}

const OUTCOMES: Record<number, [Status, string]> = {
  0: ["passed", "Passed"],
  1: ["failed", "Failed"],
  2: ["error", "Interrupted"],
  5: ["skipped", "No checks ran"],
};

const STOPPED = "Stopped unexpectedly";

interface VerdictProps {
  overview: Overview;
  live: Run["live"];
  liveState: LiveState | null;
  source: Source;
  allowRun: boolean;
}

function Verdict({ overview, live, liveState, source, allowRun }: VerdictProps) {
  const { summary } = overview;
  const [status, label] =
    live !== null
      ? (["skipped", "Running"] as const)
      : overview.exit_code === null || overview.exit_code === undefined
        ? (["error", STOPPED] as const)
        : (OUTCOMES[overview.exit_code] ?? (["error", `Exit code ${overview.exit_code}`] as const));
  return (
    <section class={`verdict ${live ? "running" : status}`} aria-label="Verdict">
      <h1>
        {live ? <span class="pulse" aria-hidden="true" /> : <StatusIcon status={status} label={false} size={30} />}
        <span id="verdict">{label}</span>
        <span class="score">{summary ? formatPassed(summary, live !== null) : formatCount(overview.cases.length, "case")}</span>
      </h1>
      {summary && <Counts summary={summary} live={live !== null} />}
      {(summary?.suites ?? []).map((suite) => (
        <SuiteResult key={suite.suite} suite={suite} />
      ))}
      {label === STOPPED && (
        <p class="stopped">
          Finished trials are saved. Continue with <code>viva test --resume {overview.run}</code>
        </p>
      )}
      {(overview.stopped || overview.stop_message) && (
        <p class="stopped">
          Stopped: <Line text={[overview.stopped?.replace("_", "-"), overview.stop_message].filter(Boolean).join(", ")} />
          {overview.stopped && (
            <>
              . Continue with <code>viva test --resume {overview.run}</code>
            </>
          )}
        </p>
      )}
      {live && liveState && <LiveParts live={live} state={liveState} overview={overview} />}
      <p class="about">
        {overview.agent && (
          <span>
            {overview.matrix ? "Agents" : "Agent"} <b><Line text={overview.agent} /></b>
          </span>
        )}
        {(overview.inputs ?? []).length > 0 && (
          <span>
            Input <b><Line text={(overview.inputs ?? []).join(", ")} /></b>
          </span>
        )}
        <span>{formatTime(overview.started)}</span>
        <span class="mono">{overview.run}</span>
        {overview.viva_version && (
          <span>
            Viva <Line text={overview.viva_version} />
          </span>
        )}
        {!live && (
          <span>
            <button type="button" class="link" id="download-run" onClick={() => void source.saveRecords(overview.run)}>
              Download records
            </button>{" "}
            <button
              type="button"
              class="link"
              id="download-strip"
              onClick={() => {
                const strip = document.getElementById("strip");
                if (strip instanceof HTMLCanvasElement) savePicture(strip, `${overview.run}-cases.png`);
              }}
            >
              Save picture
            </button>
          </span>
        )}
        {source.served && <RerunLinks server={source as ServerSource} run={overview.run} />}
        {allowRun && !live && <RerunButton overview={overview} server={source as ServerSource} />}
      </p>
    </section>
  );
}

function RerunButton({ overview, server }: { overview: Overview; server: ServerSource }) {
  const [message, setMessage] = useState("");
  const start = () => {
    setMessage("Starting…");
    server.rerun(overview.run).then(
      ({ run }) => navigate(`#/runs/${encodeURIComponent(run)}`),
      (error: Error) => setMessage(error.message),
    );
  };
  return (
    <span>
      <button type="button" id="run-again" class="button small" onClick={start}>
        Run again
      </button>{" "}
      <span role="status">{message}</span>
    </span>
  );
}

function formatPassed(summary: Summary, live: boolean): string {
  const ended = summary.total - summary.not_run;
  return live ? `${formatNumber(summary.passed)} of ${formatNumber(ended)} passed so far` : `${formatNumber(summary.passed)} of ${formatNumber(summary.total)} passed`;
}

/** The counts of all cases that did not pass. */
function Counts({ summary, live }: { summary: Summary; live: boolean }) {
  const faults = Object.entries(summary.faults ?? {}).filter(([fault, many]) => fault !== "agent" && many);
  const trials = sortByName(summary.trials ?? {}, ["passed", "failed", "error", "undecided", "skipped"]);
  const many = trials.reduce((total, [, each]) => total + each, 0);
  const repeated = many > summary.total - summary.not_run;
  const [first, ...others] = faults;
  const isOne = !repeated && others.length === 0 && first?.[1] === summary.errors; // its number stands before it
  const faultText = isOne ? (first?.[0] ?? "") : faults.map(([fault, each]) => `${each} ${fault}`).join(", ");
  const blame = faultText ? ` (${repeated ? "trials: " : ""}${faultText})` : "";
  const parts = [
    summary.failed ? `${formatNumber(summary.failed)} failed` : "",
    summary.errors ? `${formatCount(summary.errors, "error")}${blame}` : "",
    summary.undecided ? `${formatNumber(summary.undecided)} undecided` : "",
    summary.skipped ? `${formatNumber(summary.skipped)} skipped${summary.unchecked ? ` (${formatNumber(summary.unchecked)} without checks)` : ""}` : "",
    summary.not_run ? `${formatNumber(summary.not_run)} ${live ? "to go" : "not run"}` : "",
  ].filter(Boolean);
  if (repeated) {
    parts.push(`${formatNumber(many)} trials: ${trials.map(([status, each]) => (status === "error" ? formatCount(each, "error") : `${formatNumber(each)} ${status}`)).join(", ")}`);
  }
  return parts.length > 0 && <p class="counts">{parts.map((part, at) => <span key={at}>{part}</span>)}</p>;
}

/** The result of a suite with a threshold. */
function SuiteResult({ suite }: { suite: SuiteSummary }) {
  const { threshold, score, worse_cases: worse = [], uncompared_cases: uncompared = [] } = suite;
  const baseline = threshold.baseline;
  const limits = [
    typeof threshold.pass_score === "number" ? `needs ${threshold.pass_score}` : "",
    typeof threshold.max_cost_usd === "number" ? `cost ${typeof suite.cost_usd === "number" ? formatCost(suite.cost_usd) : "unknown"} of at most ${formatCost(threshold.max_cost_usd)}` : "",
    typeof threshold.max_p95_ms === "number" ? `p95 ${typeof suite.p95_ms === "number" ? formatMs(suite.p95_ms) : "unknown"} of at most ${formatMs(threshold.max_p95_ms)}` : "",
  ].filter(Boolean);
  return (
    <p class="suite-result">
      <StatusIcon status={suite.passed ? "passed" : "failed"} /> Suite <b><Line text={suite.suite} /></b>: score{" "}
      {Number(score.toPrecision(4))} over {formatCount(suite.cases, "case")}
      {limits.map((text) => `, ${text}`).join("")}
      {(suite.unmet ?? []).map((text) => (
        <span key={text}>
          {" · "}
          <Line text={text} />
        </span>
      ))}
      {baseline && (
        <span>
          {" · "}
          {Number(baseline.score.toPrecision(4))} in <Line text={baseline.name} />
          {suite.regression ? ", a regression" : ""}
          {uncompared.length > 0 && (
            <>
              , not compared (no verdict in both runs): <Line text={uncompared.join(", ")} room={600} />
            </>
          )}
          {worse.length > 0 && (
            <>
              ; worse: <Line text={worse.join("; ")} room={600} />
            </>
          )}
        </span>
      )}
    </p>
  );
}

/** A live run: its progress below the counts. What is not known yet comes from the stream of events. */
function LiveParts({ live, state, overview }: { live: NonNullable<Run["live"]>; state: LiveState; overview: Overview }) {
  const known = state.state?.progress ?? { trials: 0, since: overview.started ?? "" };
  return <LiveProgress live={state} progress={{ ...known, trials: live.trials, done: live.done }} />;
}

function Figures({ overview, source, places }: { overview: Overview; source: Source; places: RunLinks }) {
  const { summary, pass_rate: rate, reply_ms, costliest_turn: costliest } = overview;
  if (!summary) return null;
  const tokens = (summary.input_tokens ?? 0) + (summary.output_tokens ?? 0);
  const unpriced = summary.unpriced_calls ?? 0;
  return (
    <div class="figures-frame" tabIndex={0} role="group" aria-label="Figures">
      <dl class="figures" id="figures">
        {rate && (
          <div class="rate">
            <dt>Pass rate</dt>
            <dd>
              {formatPercent(rate.rate)}
              <RateBar rate={rate.rate} interval={rate.interval} />
            </dd>
            <dd class="note">
              {formatPercent(rate.interval.low, 0)} to {formatPercent(rate.interval.high, 0)} · 95 % interval over{" "}
              {formatCount(rate.cases, "decided case")}
            </dd>
          </div>
        )}
        <SuiteCertainty overview={overview} />
        <Figure name="Checks" value={`${formatShort(summary.checks_passed)}/${formatShort(summary.checks)}`} note={summary.checks ? `${formatPercent(summary.checks_passed / summary.checks)} passed` : "none"} />
        {(typeof summary.cost_usd === "number" || unpriced > 0) && (
          <Figure
            name="Cost"
            value={typeof summary.cost_usd === "number" ? formatCost(summary.cost_usd) : "unknown"}
            note={unpriced ? `+ ${formatCount(unpriced, "call")} without a price` : `${formatCost((summary.cost_usd ?? 0) / Math.max(1, summary.total - summary.not_run))} per case`}
          />
        )}
        {costliest && (
          <div id="costliest-turn">
            <dt>Most expensive turn</dt>
            <dd>
              <a href={places.case(costliest, { trial: costliest.trial, turn: costliest.turn })}>{formatCost(costliest.cost_usd)}</a>
            </dd>
            <dd class="note">
              turn {costliest.turn} of <Line text={costliest.id} room={40} />
            </dd>
          </div>
        )}
        <FailedTool overview={overview} />
        <Figure name="Turns" value={formatNumber(summary.total_turns)} note={`${summary.avg_turns.toFixed(1)} per trial`} />
        {(summary.retried ?? 0) > 0 && <Figure name="Retried" value={formatCount(summary.retried ?? 0, "trial")} note="totals include earlier attempts" />}
        {summary.duration_ms > 0 && <Figure name="Time" value={formatMs(summary.duration_ms)} note={overview.case_ms ? `p95 ${formatMs(overview.case_ms.p95)} per case` : ""} />}
        {reply_ms && <Figure name="Reply p95" value={formatMs(reply_ms.p95)} note={`p50 ${formatMs(reply_ms.p50)}`} />}
        {tokens > 0 && <Figure name="Tokens" value={formatShort(tokens)} note={`${formatShort(summary.input_tokens ?? 0)} in, ${formatShort(summary.output_tokens ?? 0)} out`} />}
        <AgreementFigures source={source} run={overview.run} />
      </dl>
    </div>
  );
}

/** The tool with the most failed calls. It opens the rates of all tools. */
function FailedTool({ overview }: { overview: Overview }) {
  const countFailed = (rate: NamedRate) => rate.decided - rate.passed;
  const [worst] = [...(overview.breakdown?.tools ?? [])].sort((a, b) => countFailed(b) - countFailed(a));
  if (!worst || countFailed(worst) === 0) return null;
  return (
    <div id="failed-tool">
      <dt>Tool that failed most</dt>
      <dd>
        <button type="button" class="link" onClick={openToolRates}>
          <Line text={worst.name} room={30} />
        </button>
      </dd>
      <dd class="note">
        {formatNumber(countFailed(worst))} of {formatCount(worst.decided, "call")} failed
      </dd>
    </div>
  );
}

function Figure({ name, value, note }: { name: string; value: string; note: string }) {
  return (
    <div>
      <dt>{name}</dt>
      <dd>{value}</dd>
      <dd class="note">{note}</dd>
    </div>
  );
}
