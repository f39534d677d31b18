// The first screen of a run: what came of it, all cases at a glance, and the list to find one in.
import { useEffect, useMemo, useState } from "preact/hooks";
import type { CaseRow, Overview, Standing, Status, Summary } from "./data";
import type { Server, Source } from "./source";
import { counted, moment, money, number, percent, seconds, short } from "./figures";
import { filterIn, isEmpty, queryOf, selected, SORTS, type Filter, type Sort } from "./filters";
import { useKeys } from "./keys";
import { CaseList } from "./list";
import type { Run } from "./live";
import { go, type Places } from "./route";
import { Line, visible } from "./said";
import { Sign, STATUSES } from "./signs";
import { Strip } from "./strip";

interface Props {
  run: Run;
  source: Source;
  places: Places;
  query: Record<string, string>;
  theme: string;
  allowRun: boolean;
  /** The index of the case that was opened last: the keyboard goes on from there. */
  opened: number;
}

export function RunScreen({ run, source, places, query, theme, allowRun, opened }: Props) {
  const { overview, live } = run;
  const filter = filterIn(query);
  const key = JSON.stringify(queryOf(filter));
  const rows = useMemo(() => selected(overview.cases, filter), [overview.cases, key]);
  const shown = useMemo(() => new Set(rows.map((row) => row.index)), [rows]);
  const scored = useMemo(() => new Set(overview.summary?.suites?.map((each) => each.suite)), [overview.summary]);
  const [at, setAt] = useState(() => rows.findIndex((row) => row.index === opened));
  const change = (part: Partial<Filter>) => {
    setAt(-1);
    go(places.list(queryOf({ ...filter, ...part })), true);
  };
  const href = (row: CaseRow) => places.case(row.suite, row.id, queryOf(filter));
  useKeys({
    j: () => setAt(Math.min(at + 1, rows.length - 1)),
    k: () => setAt(Math.max(at - 1, 0)),
    "/": () => document.getElementById("search")?.focus(),
  });
  return (
    <>
      <Verdict overview={overview} live={live} source={source} allowRun={allowRun} />
      <Figures overview={overview} />
      <Strip
        rows={overview.cases}
        shown={shown}
        planned={overview.planned ?? 0}
        theme={theme}
        open={(row) => go(href(row))}
      />
      <section aria-label="Cases">
        <Filters overview={overview} filter={filter} change={change} found={rows.length} />
        {rows.length === 0 && (
          <p class="waiting">
            {overview.cases.length === 0 ? "No case has ended yet." : "No case fits these filters. "}
            {!isEmpty(filter) && (
              <button type="button" class="link" onClick={() => go(places.list(), true)}>
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

const ENDINGS: Record<number, [Status, string]> = {
  0: ["passed", "Passed"],
  1: ["failed", "Failed"],
  2: ["error", "Interrupted"],
  5: ["skipped", "Nothing was checked"],
};

const CUT_OFF = "Cut off";

function Verdict({ overview, live, source, allowRun }: { overview: Overview; live: Run["live"]; source: Source; allowRun: boolean }) {
  const { summary } = overview;
  const [status, word] =
    live !== null
      ? (["skipped", "Running"] as const)
      : overview.exit_code === null || overview.exit_code === undefined
        ? (["error", CUT_OFF] as const)
        : (ENDINGS[overview.exit_code] ?? (["error", `Exit code ${overview.exit_code}`] as const));
  return (
    <section class={`verdict ${live ? "running" : status}`} aria-label="Verdict">
      <h1>
        {live ? <span class="pulse" aria-hidden="true" /> : <Sign status={status} label={false} size={30} />}
        <span id="verdict">{word}</span>
        <span class="score">{summary ? passedText(summary, live !== null) : counted(overview.cases.length, "case")}</span>
      </h1>
      {summary && <Apart summary={summary} />}
      {(summary?.suites ?? []).map((standing) => (
        <Stands key={standing.suite} standing={standing} />
      ))}
      {word === CUT_OFF && (
        <p class="stopped">
          Nobody writes to its journal any more. What has ended is kept; <code>viva test --resume {overview.run}</code> goes on with the rest.
        </p>
      )}
      {(overview.stopped || overview.why) && (
        <p class="stopped">
          Stopped: <Line text={[overview.stopped?.replace("_", "-"), overview.why].filter(Boolean).join(", ")} />
        </p>
      )}
      {live && <Progress live={live} overview={overview} />}
      <p class="about">
        {overview.agent && (
          <span>
            Agent <b><Line text={overview.agent} /></b>
          </span>
        )}
        {(overview.inputs ?? []).length > 0 && (
          <span>
            Cases from <b><Line text={(overview.inputs ?? []).join(", ")} /></b>
          </span>
        )}
        <span>{moment(overview.started)}</span>
        <span class="mono">{overview.run}</span>
        {overview.viva && (
          <span>
            Viva <Line text={overview.viva} />
          </span>
        )}
        {allowRun && !live && <Again overview={overview} server={source as Server} />}
      </p>
    </section>
  );
}

function Again({ overview, server }: { overview: Overview; server: Server }) {
  const [said, setSaid] = useState("");
  const start = () => {
    setSaid("Starting…");
    server.again(overview.run).then(
      ({ run }) => go(`#/runs/${encodeURIComponent(run)}`),
      (broken: Error) => setSaid(broken.message),
    );
  };
  return (
    <span>
      <button type="button" id="run-again" class="button small" onClick={start}>
        Run again
      </button>{" "}
      <span role="status">{said}</span>
    </span>
  );
}

function passedText(summary: Summary, live: boolean): string {
  const ended = summary.total - summary.not_run;
  return live ? `${number(summary.passed)} of ${number(ended)} passed so far` : `${number(summary.passed)} of ${number(summary.total)} passed`;
}

/** What is missing from the pass count, each with its number: no silent denominators. */
function Apart({ summary }: { summary: Summary }) {
  const faults = Object.entries(summary.faults ?? {}).filter(([fault, many]) => fault !== "agent" && many);
  const trials = Object.entries(summary.trials ?? {});
  const many = trials.reduce((total, [, each]) => total + each, 0);
  const repeated = many > summary.total - summary.not_run;
  const blamed = faults.map(([fault, each]) => `${each} ${fault}`).join(", ");
  const blame = blamed ? ` (${repeated ? "trials: " : ""}${blamed})` : "";
  const parts = [
    `${number(summary.failed)} failed`,
    `${counted(summary.errors, "error")}${blame}`,
    ...(summary.undecided ? [`${number(summary.undecided)} undecided`] : []),
    `${number(summary.skipped)} skipped${summary.unchecked ? ` (${number(summary.unchecked)} with nothing checked)` : ""}`,
    `${number(summary.not_run)} not run`,
  ];
  if (repeated) {
    parts.push(`${number(many)} trials: ${trials.map(([status, each]) => `${number(each)} ${status}`).join(", ")}`);
  }
  return <p class="apart">{parts.map((part, at) => <span key={at}>{part}</span>)}</p>;
}

/** A suite that has a bar, and what it came to. */
function Stands({ standing }: { standing: Standing }) {
  const { bar, score, worse = [], uncompared = [] } = standing;
  const before = bar.baseline;
  const limits = [
    typeof bar.pass_score === "number" ? `needs ${bar.pass_score}` : "",
    typeof bar.max_cost_usd === "number" ? `cost ${typeof standing.cost_usd === "number" ? money(standing.cost_usd) : "unknown"} of at most ${money(bar.max_cost_usd)}` : "",
    typeof bar.max_p95_ms === "number" ? `p95 ${typeof standing.p95_ms === "number" ? seconds(standing.p95_ms) : "unknown"} of at most ${seconds(bar.max_p95_ms)}` : "",
  ].filter(Boolean);
  return (
    <p class="standing">
      <Sign status={standing.passed ? "passed" : "failed"} /> Suite <b><Line text={standing.suite} /></b>: score{" "}
      {Number(score.toPrecision(4))} over {counted(standing.cases, "case")}
      {limits.map((text) => `, ${text}`).join("")}
      {(standing.missed ?? []).map((text) => (
        <span key={text}>
          {" · "}
          <Line text={text} />
        </span>
      ))}
      {before && (
        <span>
          {" · "}
          {Number(before.score.toPrecision(4))} in <Line text={before.name} />
          {standing.regressed ? ", a regression" : ""}
          {uncompared.length > 0 && (
            <>
              , not compared for want of a verdict in both: <Line text={uncompared.join(", ")} room={600} />
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

function Progress({ live, overview }: { live: NonNullable<Run["live"]>; overview: Overview }) {
  const [, tick] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => tick((n) => n + 1), 1000);
    return () => clearInterval(timer);
  }, []);
  const elapsed = Math.max(1, Date.now() - new Date(overview.started ?? "").getTime());
  const rate = (live.done / elapsed) * 1000;
  const left = rate > 0 ? seconds(((live.trials - live.done) / rate) * 1000) : "unknown";
  return (
    <div class="progress">
      <progress max={live.trials} value={live.done} aria-label="Trials done" />
      <span role="status" id="progress">
        {number(live.done)} of {number(live.trials)} trials · {rate.toFixed(1)}/s · {left} left
        {live.lost && " · the viewer does not answer"}
      </span>
    </div>
  );
}

function Figures({ overview }: { overview: Overview }) {
  const { summary, rate, reply_ms } = overview;
  if (!summary) return null;
  const tokens = (summary.input_tokens ?? 0) + (summary.output_tokens ?? 0);
  const unpriced = summary.unpriced_calls ?? 0;
  return (
    <dl class="figures" id="figures">
      {rate && (
        <div class="rate">
          <dt>Pass rate</dt>
          <dd>
            {percent(rate.rate)}
            <Interval low={rate.interval.low} high={rate.interval.high} at={rate.rate} />
          </dd>
          <dd class="note">
            {percent(rate.interval.low, 0)} to {percent(rate.interval.high, 0)} · 95 % interval over{" "}
            {counted(rate.cases, "judged case")}
          </dd>
        </div>
      )}
      <Figure name="Checks" value={`${short(summary.checks_passed)}/${short(summary.checks)}`} note={summary.checks ? `${percent(summary.checks_passed / summary.checks)} held` : "none"} />
      <Figure name="Turns" value={number(summary.total_turns)} note={`${summary.avg_turns.toFixed(1)} a trial`} />
      {(summary.retried ?? 0) > 0 && <Figure name="Retried" value={counted(summary.retried ?? 0, "trial")} note="their earlier attempts are in the totals" />}
      <Figure name="Time" value={summary.duration_ms ? seconds(summary.duration_ms) : "unknown"} note={overview.case_ms ? `p95 ${seconds(overview.case_ms.p95)} a case` : ""} />
      {reply_ms && <Figure name="Reply p95" value={seconds(reply_ms.p95)} note={`p50 ${seconds(reply_ms.p50)}`} />}
      {tokens > 0 && <Figure name="Tokens" value={short(tokens)} note={`${short(summary.input_tokens ?? 0)} in, ${short(summary.output_tokens ?? 0)} out`} />}
      {(typeof summary.cost_usd === "number" || unpriced > 0) && (
        <Figure
          name="Cost"
          value={typeof summary.cost_usd === "number" ? money(summary.cost_usd) : "unknown"}
          note={unpriced ? `+ ${counted(unpriced, "call")} of unknown price` : `${money((summary.cost_usd ?? 0) / Math.max(1, summary.total - summary.not_run))} a case`}
        />
      )}
    </dl>
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

function Interval({ low, high, at }: { low: number; high: number; at: number }) {
  return (
    <svg class="interval" viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">
      <line class="scale" x1="0" x2="100" y1="5" y2="5" />
      <rect x={low * 100} width={Math.max(1.5, (high - low) * 100)} y="2.5" height="5" rx="1" />
      <line class="point" x1={at * 100} x2={at * 100} y1="0" y2="10" />
    </svg>
  );
}

interface FiltersProps {
  overview: Overview;
  filter: Filter;
  change: (part: Partial<Filter>) => void;
  found: number;
}

function Filters({ overview, filter, change, found }: FiltersProps) {
  const counts = useMemo(() => tally(overview.cases), [overview.cases]);
  const toggle = (status: Status) => {
    const statuses = new Set(filter.statuses);
    if (!statuses.delete(status)) statuses.add(status);
    change({ statuses });
  };
  return (
    <div class="filters" role="search" aria-label="Filter cases">
      <div class="chips" role="group" aria-label="Outcome">
        {STATUSES.filter((status) => counts.statuses[status] || filter.statuses.has(status)).map((status) => (
          <button
            key={status}
            type="button"
            class={`chip ${status}`}
            id={`filter-${status}`}
            aria-pressed={filter.statuses.has(status)}
            onClick={() => toggle(status)}
          >
            <Sign status={status} label={false} size={14} />
            {status} <b>{number(counts.statuses[status] ?? 0)}</b>
          </button>
        ))}
      </div>
      <Choice id="filter-fault" label="Fault" value={filter.fault} options={counts.faults} change={(fault) => change({ fault })} />
      <Choice id="filter-tag" label="Tag" value={filter.tag} options={counts.tags} change={(tag) => change({ tag })} />
      <input
        type="search"
        id="search"
        placeholder="Search id, name, tag, error  ( / )"
        aria-label="Search cases"
        value={filter.text}
        onInput={(event) => change({ text: event.currentTarget.value })}
        onKeyDown={(event) => {
          if (event.key === "Escape") event.currentTarget.blur();
        }}
      />
      <label class="sort">
        <span class="unseen">Sort</span>
        <select id="sort" value={filter.sort} onChange={(event) => change({ sort: event.currentTarget.value as Sort })}>
          {Object.entries(SORTS).map(([value, label]) => (
            <option key={value} value={value}>
              {label}
            </option>
          ))}
        </select>
      </label>
      <span class="found" role="status" id="found">
        {found === overview.cases.length ? counted(found, "case") : `${number(found)} of ${counted(overview.cases.length, "case")}`}
      </span>
    </div>
  );
}

function Choice(props: { id: string; label: string; value: string; options: [string, number][]; change: (value: string) => void }) {
  if (props.options.length === 0 && !props.value) return null;
  return (
    <label>
      <span class="unseen">{props.label}</span>
      <select id={props.id} value={props.value} onChange={(event) => props.change(event.currentTarget.value)}>
        <option value="">Any {props.label.toLowerCase()}</option>
        {props.options.map(([value, many]) => (
          <option key={value} value={value}>
            {visible(value)} ({many})
          </option>
        ))}
      </select>
    </label>
  );
}

function tally(rows: CaseRow[]) {
  const statuses: Partial<Record<Status, number>> = {};
  const faults = new Map<string, number>();
  const tags = new Map<string, number>();
  for (const row of rows) {
    statuses[row.status] = (statuses[row.status] ?? 0) + 1;
    if (row.fault) faults.set(row.fault, (faults.get(row.fault) ?? 0) + 1);
    for (const tag of row.tags ?? []) tags.set(tag, (tags.get(tag) ?? 0) + 1);
  }
  const ranked = (found: Map<string, number>) => [...found].sort((a, b) => b[1] - a[1]).slice(0, 200);
  return { statuses, faults: ranked(faults), tags: ranked(tags) };
}
