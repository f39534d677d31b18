// All runs of a project, newest first; two of them can be compared.
import { useEffect, useState } from "preact/hooks";
import type { RunLine, Status } from "./data";
import type { Server } from "./source";
import { moment, money, number, seconds } from "./figures";
import { useLoaded } from "./loading";
import { address, go } from "./route";
import { Line } from "./said";
import { Sign } from "./signs";

const LOOK_AGAIN_MS = 3000;
const MOST_ROWS = 200;

export function RunsScreen({ server }: { server: Server }) {
  const [round, setRound] = useState(0);
  const loaded = useLoaded(() => server.runs(), [round]);
  const [runs, setRuns] = useState<RunLine[] | null>(null);
  const [chosen, setChosen] = useState<string[]>([]);
  const [all, setAll] = useState(false);
  useEffect(() => {
    if (loaded !== null && "value" in loaded) setRuns(loaded.value);
  }, [loaded]);
  useEffect(() => {
    const timer = setInterval(() => document.visibilityState === "visible" && setRound((n) => n + 1), LOOK_AGAIN_MS);
    return () => clearInterval(timer);
  }, []);
  if (loaded !== null && "error" in loaded) return <p class="waiting" role="alert">{loaded.error}</p>;
  if (runs === null) return <p class="waiting">Opening…</p>;
  const choose = (id: string) =>
    setChosen((old) => (old.includes(id) ? old.filter((each) => each !== id) : [...old, id].slice(-2)));
  const pair = runs.map((run) => run.id).filter((id) => chosen.includes(id)); // newest first
  return (
    <>
      <div class="screen-head">
        <h1>Runs</h1>
        <p class="muted">{number(runs.length)} kept</p>
        <button
          type="button"
          class="button"
          id="compare-chosen"
          disabled={pair.length !== 2}
          onClick={() => go(address(["compare", pair[1] ?? "", pair[0] ?? ""]))}
        >
          {pair.length === 2 ? "Compare these two" : `Choose two to compare`}
        </button>
      </div>
      {runs.length === 0 && <p class="waiting">There are no runs yet. Start one: <code>viva test -i tests/</code></p>}
      <ul class="runs" id="runs">
        {(all ? runs : runs.slice(0, MOST_ROWS)).map((run) => (
          <li key={run.id}>
            <label class="choose">
              <input type="checkbox" checked={chosen.includes(run.id)} onChange={() => choose(run.id)} aria-label={`Compare ${run.id}`} />
            </label>
            <a class="run-row" href={address(["runs", run.id])} data-run={run.id}>
              {run.live ? <span class="pulse" role="img" aria-label="running" /> : <Sign status={statusOf(run)} />}
              <span class="what">
                <span class="title">
                  <b><Line text={run.agent} room={80} /></b>
                  <span class="name"><Line text={run.inputs.join(", ")} room={160} /></span>
                </span>
                <span class="why">
                  {moment(run.at)} <span class="mono">{run.id}</span>
                </span>
              </span>
              <Figures run={run} />
            </a>
          </li>
        ))}
      </ul>
      {!all && runs.length > MOST_ROWS && (
        <p class="waiting">
          {number(runs.length - MOST_ROWS)} older ones.{" "}
          <button type="button" class="link" onClick={() => setAll(true)}>
            Show all
          </button>
        </p>
      )}
    </>
  );
}

function Figures({ run }: { run: RunLine }) {
  const { summary } = run;
  if (!summary) return <span class="facts"><span class="fact">{run.live ? "running" : "cut off"}</span></span>;
  return (
    <span class="facts">
      <Bar run={run} />
      <span class="fact">
        {number(summary.passed)}/{number(summary.total)}
        <span class="unseen"> passed</span>
      </span>
      <span class="fact cost">{typeof summary.cost_usd === "number" ? money(summary.cost_usd) : ""}</span>
      <span class="fact time">{seconds(summary.duration_ms)}</span>
    </span>
  );
}

/** The outcome of all cases as one bar. */
function Bar({ run: { summary } }: { run: RunLine }) {
  if (!summary || !summary.total) return null;
  const parts: [string, number][] = [
    ["passed", summary.passed],
    ["failed", summary.failed],
    ["error", summary.errors + (summary.undecided ?? 0)],
    ["skipped", summary.skipped],
    ["pending", summary.not_run],
  ];
  let at = 0;
  return (
    <svg class="bar" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">
      {parts.map(([name, many]) => {
        const from = at;
        at += (many / summary.total) * 100;
        return many > 0 && <rect key={name} class={name} x={from} width={at - from} y="0" height="8" />;
      })}
    </svg>
  );
}

function statusOf(run: RunLine): Status {
  if (run.exit_code === 0) return "passed";
  if (run.exit_code === 1) return "failed";
  return run.exit_code === 5 ? "skipped" : "error";
}
