// The runs of a project, newest first; two of them can be compared.
import { useEffect, useState } from "preact/hooks";
import type { RunRow, Status } from "./data";
import type { Progress } from "./live_data";
import type { ServerSource } from "./source";
import { formatCount, formatTime, formatCost, formatNumber, formatMs } from "./format";
import { describeProgress, LostNote } from "./in_flight";
import { useKeys } from "./keys";
import { useLoaded } from "./loading";
import { buildHash, navigate } from "./route";
import { Line } from "./text";
import { parseRunFilter, RunFilters, selectRuns } from "./run_filters";
import { StatusIcon } from "./status";

const REFRESH_MS = 3000;
const MAX_ROWS = 200;

export function RunsScreen({ server, query }: { server: ServerSource; query: Record<string, string> }) {
  const [round, setRound] = useState(0);
  const loaded = useLoaded(() => server.runs(), [round]);
  const [runs, setRuns] = useState<RunRow[] | null>(null);
  const [chosen, setChosen] = useState<string[]>([]);
  const [all, setAll] = useState(false);
  const [answered, setAnswered] = useState(() => new Date());
  useEffect(() => {
    if (loaded === null || !("value" in loaded)) return;
    setRuns(loaded.value);
    setAnswered(new Date());
  }, [loaded]);
  useEffect(() => {
    const timer = setInterval(() => document.visibilityState === "visible" && setRound((n) => n + 1), REFRESH_MS);
    return () => clearInterval(timer);
  }, []);
  useKeys({ "/": () => document.getElementById("search")?.focus() });
  const failure = loaded !== null && "error" in loaded ? loaded.error : null;
  if (runs === null) return <p class="waiting" role={failure ? "alert" : undefined}>{failure ?? "Opening…"}</p>;
  const choose = (id: string) =>
    setChosen((old) => (old.includes(id) ? old.filter((each) => each !== id) : [...old, id].slice(-2)));
  const filter = parseRunFilter(query);
  const found = selectRuns(runs, filter);
  const hasOrigin = found.some((run) => run.model || run.commit || run.tags);
  const pair = runs.map((run) => run.id).filter((id) => chosen.includes(id)); // newest first
  return (
    <>
      <div class="screen-head">
        <h1>Runs</h1>
        <p class="muted">{formatCount(runs.length, "run")}</p>
        <button
          type="button"
          class="button"
          id="compare-chosen"
          disabled={pair.length !== 2}
          onClick={() => navigate(buildHash(["compare", pair[1] ?? "", pair[0] ?? ""]))}
        >
          {pair.length === 2 ? "Compare selected runs" : "Select two runs to compare"}
        </button>
      </div>
      {failure && <LostNote since={answered} />}
      {runs.length === 0 && <p class="waiting">No runs yet. Start one: <code>viva test -i tests/</code></p>}
      {runs.length > 1 && <RunFilters runs={runs} filter={filter} count={found.length} />}
      {runs.length > 0 && found.length === 0 && (
        <p class="waiting">
          No run matches these filters. <a href="#/runs">Show all</a>
        </p>
      )}
      {hasOrigin && (
        <div class="run-columns" aria-hidden="true">
          <span class="first">Agent and input</span>
          <span class="model">Model</span>
          <span class="commit">Commit</span>
          <span class="tags">Tag</span>
          <span class="bar" />
          <span class="passed">Passed</span>
          <span class="cost">Cost</span>
          <span class="time">Time</span>
        </div>
      )}
      <ul class="runs" id="runs">
        {(all ? found : found.slice(0, MAX_ROWS)).map((run) => (
          <li key={run.id}>
            <label class="choose">
              <input type="checkbox" checked={chosen.includes(run.id)} onChange={() => choose(run.id)} aria-label={`Compare ${run.id}`} />
            </label>
            <a class="run-row" href={buildHash(["runs", run.id])} data-run={run.id}>
              {run.live ? <span class="pulse" role="img" aria-label="running" /> : <StatusIcon status={statusOf(run)} />}
              <span class="what">
                <span class="title">
                  <b><Line text={run.agent} room={80} /></b>
                  <span class="name"><Line text={run.inputs.join(", ")} room={160} /></span>
                </span>
                <span class="why">
                  {formatTime(run.at)} <span class="mono">{run.id}</span>
                  {[run.model ?? "", formatCommit(run), ...(run.tags ?? [])].filter(Boolean).map((text) => (
                    <span class="origin" key={text}><Line text={text} room={60} /></span>
                  ))}
                  {run.rerun_of && <span>run again</span>}
                </span>
              </span>
              <Figures run={run} hasOrigin={hasOrigin} />
            </a>
          </li>
        ))}
      </ul>
      {!all && found.length > MAX_ROWS && (
        <p class="waiting">
          {formatNumber(found.length - MAX_ROWS)} older runs.{" "}
          <button type="button" class="link" onClick={() => setAll(true)}>
            Show all
          </button>
        </p>
      )}
    </>
  );
}

/** `1a2b3c4 main` */
export function formatCommit(run: RunRow): string {
  return [run.commit?.slice(0, 7) ?? "", run.branch ?? ""].filter(Boolean).join(" ");
}

function Figures({ run, hasOrigin }: { run: RunRow; hasOrigin: boolean }) {
  const { summary } = run;
  if (run.progress) return <LiveFigures progress={run.progress} />;
  if (!summary) return <span class="facts"><span class="fact">{run.live ? "running" : "stopped unexpectedly"}</span></span>;
  return (
    <span class="facts">
      {hasOrigin && (
        <>
          <span class="fact model" title={run.model}><Line text={run.model ?? ""} room={60} /></span>
          <span class="fact commit" title={run.commit}><Line text={formatCommit(run)} room={60} /></span>
          <span class="fact tags"><Line text={(run.tags ?? []).join(", ")} room={60} /></span>
        </>
      )}
      <Bar parts={{ passed: summary.passed, failed: summary.failed, error: summary.errors + (summary.undecided ?? 0), skipped: summary.skipped, pending: summary.not_run }} />
      <span class="fact passed">
        {formatNumber(summary.passed)}/{formatNumber(summary.total)}
        <span class="visually-hidden"> passed</span>
      </span>
      <span class="fact cost">{typeof summary.cost_usd === "number" ? formatCost(summary.cost_usd) : ""}</span>
      <span class="fact time">{formatMs(summary.duration_ms)}</span>
    </span>
  );
}

function LiveFigures({ progress }: { progress: Progress }) {
  const { trials, done = 0, passed = 0, failed = 0, errors = 0, skipped = 0 } = progress;
  const bad = [failed ? `${formatNumber(failed)} failed` : "", errors ? formatCount(errors, "error") : ""].filter(Boolean);
  return (
    <span class="facts live-facts">
      <Bar parts={{ passed, failed, error: errors, skipped, pending: trials - done }} />
      <span class="fact">{[...bad, ...describeProgress(progress)].join(" · ")}</span>
    </span>
  );
}

/** The statuses of all cases as one bar. */
function Bar({ parts }: { parts: Record<string, number> }) {
  const total = Object.values(parts).reduce((sum, many) => sum + many, 0);
  if (total <= 0) return null;
  let at = 0;
  return (
    <svg class="bar" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">
      {Object.entries(parts).map(([name, many]) => {
        const from = at;
        at += (many / total) * 100;
        return many > 0 && <rect key={name} class={name} x={from} width={at - from} y="0" height="8" />;
      })}
    </svg>
  );
}

function statusOf(run: RunRow): Status {
  if (run.exit_code === 0) return "passed";
  if (run.exit_code === 1) return "failed";
  return run.exit_code === 5 ? "skipped" : "error";
}
