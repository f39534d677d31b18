// Two runs compared: what differs between them, changed cases, and metrics.
import type { RunDifference, RunSide, TwoRuns } from "./compare_data";
import type { CaseChange, Comparison, Metric, RunRow, Status, TrialCounts } from "./data";
import type { ServerSource } from "./source";
import { formatCount, formatCost, formatPercent, formatMs, formatTime } from "./format";
import { useLoaded } from "./loading";
import { Pair } from "./pair";
import { buildHash, navigate } from "./route";
import { Line, escapeControls } from "./text";
import { StatusIcon } from "./status";
import { WordDiff } from "./word_diff";
import "./compare.css";

const MAX_ROWS = 500;
const LONG_TEXT = 60;

interface Props {
  server: ServerSource;
  base: string;
  head: string;
  query: Record<string, string>;
}

export function CompareScreen({ server, base, head, query }: Props) {
  const agents = { base_agent: query["base_agent"] ?? "", head_agent: query["head_agent"] ?? "" };
  const loaded = useLoaded(() => server.compare(base, head, agents), [base, head, agents]);
  if (loaded === null) return <p class="waiting">Opening…</p>;
  if ("error" in loaded) {
    return <NoComparison server={server} base={base} head={head} error={loaded.error} />;
  }
  const { comparison, ...two } = loaded.value;
  const only = query["change"] ?? "";
  const shown = comparison.cases.filter((each) => (only ? each.change === only : each.change !== "still passing"));
  const to = (more: Record<string, string | number>) => buildHash(["compare", base, head], { ...agents, change: only, ...more });
  const at = shown.findIndex((each) => each.suite === query["suite"] && each.case === query["case"]);
  const chosen = shown[at] ?? comparison.cases.find((each) => each.suite === query["suite"] && each.case === query["case"]);
  const pairHref = (each: CaseChange | undefined) => each && to({ suite: each.suite, case: each.case });
  if (chosen) {
    return (
      <Pair
        server={server}
        sides={[two.base, two.head]}
        chosen={chosen}
        query={query}
        here={(more) => to({ suite: chosen.suite, case: chosen.case, ...pick(query, ["base_trial", "head_trial"]), ...more })}
        back={to({})}
        previous={pairHref(shown[at - 1])}
        next={at >= 0 ? pairHref(shown[at + 1]) : undefined}
        position={at >= 0 ? `${at + 1} of ${shown.length}` : ""}
      />
    );
  }
  return <Changes server={server} two={loaded.value} only={only} shown={shown} to={to} pairHref={(each) => pairHref(each) ?? ""} />;
}

/** Says why there is no comparison: the project may have too few runs. */
function NoComparison({ server, base, head, error }: { server: ServerSource; base: string; head: string; error: string }) {
  const runs = useLoaded(() => server.runs(), []);
  const count = runs && "value" in runs ? runs.value.length : 2;
  return (
    <>
      <div class="screen-head"><h1>Compare</h1></div>
      {count >= 2 && <RunPickers server={server} sides={[asSide(base), asSide(head)]} />}
      <p class="waiting" role="alert">
        {count >= 2 ? <>{error}</> : <>A comparison needs two runs; this project has {count === 0 ? "none" : "one"}. Start one: <code>viva test -i tests/</code></>}
      </p>
    </>
  );
}

function pick(query: Record<string, string>, names: string[]): Record<string, string> {
  return Object.fromEntries(names.flatMap((name) => (query[name] ? [[name, query[name] as string]] : [])));
}

function asSide(run: string): RunSide {
  return { run, at: "", agent: "", agents: [] };
}

/** Chooses any two runs and, in a run of several, the agent. */
function RunPickers({ server, sides }: { server: ServerSource; sides: [RunSide, RunSide] }) {
  const loaded = useLoaded(() => server.runs(), []);
  const runs: RunRow[] = loaded && "value" in loaded ? loaded.value : [];
  const go = (changed: RunSide[]) => {
    const [base, head] = changed as [RunSide, RunSide];
    navigate(buildHash(["compare", base.run, head.run], { base_agent: base.agent, head_agent: head.agent }));
  };
  const places = sides.map((side) => runs.findIndex((run) => run.id === side.run));
  const step = (by: number) => {
    const moved = places.map((place) => runs[place + by]);
    return moved.every(Boolean) && places.every((place) => place >= 0) ? moved.map((run) => asSide(run?.id ?? "")) : null;
  };
  const [earlier, later] = [step(1), step(-1)];
  return (
    <div class="pickers" id="pickers">
      {sides.map((side, at) => (
        <span class="picker" key={at}>
          <label>
            <span>{at === 0 ? "Base" : "Head"}</span>
            <select
              id={at === 0 ? "pick-base" : "pick-head"}
              value={side.run}
              onChange={(event) => go(sides.map((each, place) => (place === at ? asSide(event.currentTarget.value) : each)))}
            >
              {!runs.some((run) => run.id === side.run) && <option value={side.run}>{side.run}</option>}
              {runs.map((run) => (
                <option key={run.id} value={run.id}>
                  {escapeControls(`${run.id} · ${run.agent} · ${formatTime(run.at)}`)}
                </option>
              ))}
            </select>
          </label>
          {side.agents.length > 1 && (
            <label>
              <span class="visually-hidden">Agent</span>
              <select value={side.agent} onChange={(event) => go(sides.map((each, place) => (place === at ? { ...each, agent: event.currentTarget.value } : each)))}>
                {side.agents.map((agent) => <option key={agent} value={agent}>{escapeControls(agent)}</option>)}
              </select>
            </label>
          )}
        </span>
      ))}
      <span class="picker-buttons">
        <button type="button" class="button small" id="swap" onClick={() => go([sides[1], sides[0]])}>Swap</button>
        <button type="button" class="button small" id="earlier" disabled={earlier === null} onClick={() => earlier && go(earlier)}>Earlier runs</button>
        <button type="button" class="button small" id="later" disabled={later === null} onClick={() => later && go(later)}>Later runs</button>
      </span>
    </div>
  );
}

/** What differs between the two runs beside their results. */
function Differences({ differences }: { differences: RunDifference[] }) {
  if (differences.length === 0) return <p class="muted" id="differences">Agent, settings and suites are the same in both runs.</p>;
  return (
    <section id="differences" aria-label="What differs between the runs">
      <h2>What differs</h2>
      <dl class="differences">
        {differences.map((each) => (
          <div key={each.name}>
            <dt><Line text={each.name} room={80} /></dt>
            <dd><OneDifference difference={each} /></dd>
          </div>
        ))}
      </dl>
    </section>
  );
}

function OneDifference({ difference: { base, head } }: { difference: RunDifference }) {
  if (base !== null && head !== null && base.length + head.length > LONG_TEXT) {
    return (
      <details open={base.length + head.length < 2000}>
        <summary>{formatCount(base.length, "character")} → {formatCount(head.length, "character")}</summary>
        <WordDiff before={base} after={head} />
      </details>
    );
  }
  return (
    <>
      {base === null ? <span class="muted">none</span> : <del><Line text={base} room={200} /></del>}
      <span aria-hidden="true"> → </span>
      {head === null ? <span class="muted">none</span> : <ins><Line text={head} room={200} /></ins>}
    </>
  );
}

interface ChangesProps {
  server: ServerSource;
  two: TwoRuns;
  only: string;
  shown: CaseChange[];
  to: (more: Record<string, string | number>) => string;
  pairHref: (each: CaseChange) => string;
}

function Changes({ server, two, only, shown, to, pairHref }: ChangesProps) {
  const { comparison, base, head, differences } = two;
  const counts = new Map<string, number>();
  for (const each of comparison.cases) counts.set(each.change, (counts.get(each.change) ?? 0) + 1);
  return (
    <>
      <div class="screen-head">
        <h1>Compare</h1>
        <p class="muted mono">
          <a href={buildHash(["runs", base.run])}>{base.run}</a> → <a href={buildHash(["runs", head.run])}>{head.run}</a>
        </p>
      </div>
      <Answer comparison={comparison} />
      <RunPickers server={server} sides={[base, head]} />
      <Differences differences={differences} />
      <Metrics metrics={comparison.metrics} />
      {comparison.notes.length > 0 && (
        <details class="notes" id="notes">
          <summary>How sure these figures are</summary>
          <ul class="muted">
            {comparison.notes.map((note) => <li key={note}>{note}</li>)}
          </ul>
        </details>
      )}
      <section aria-label="Changes">
        <div class="chips" role="group" aria-label="Kind of change">
          {[...counts].map(([change, many]) => (
            <a
              key={change}
              class={`chip change-${change.replace(" ", "-")}`}
              aria-current={only === change ? "true" : undefined}
              href={to({ change: only === change ? "" : change })}
            >
              {change} <b>{many}</b>
            </a>
          ))}
        </div>
        {shown.length === 0 && <p class="waiting">No changes.</p>}
        <ul class="changes" id="changes">
          {shown.slice(0, MAX_ROWS).map((each) => (
            <li key={`${each.suite}\n${each.case}`}>
              <a class="change-row" href={pairHref(each)} data-case={each.case}>
                <span class={`kind change-${each.change.replace(" ", "-")}`}>{each.change}</span>
                <span class="what">
                  <span class="title">
                    <b><Line text={each.case} room={120} /></b>
                    <span class="name"><Line text={each.suite} room={120} /></span>
                  </span>
                  <Reasons change={each} />
                </span>
                <span class="from-to">
                  <Outcome status={each.base} trials={each.base_trials} />
                  <span aria-hidden="true">→</span>
                  <Outcome status={each.head} trials={each.head_trials} />
                  {typeof each.p === "number" && <span class="muted p-value">p {formatP(each.p)}</span>}
                </span>
              </a>
            </li>
          ))}
        </ul>
        {shown.length > MAX_ROWS && <p class="muted">{formatCount(shown.length - MAX_ROWS, "more case")}: filter by kind of change.</p>}
      </section>
    </>
  );
}

/** Which run is worse, and whether that can be chance. */
function Answer({ comparison: { metrics, cases } }: { comparison: Comparison }) {
  const rate = metrics.find((metric) => metric.name === "pass rate");
  if (!rate) return null;
  const sure = rate.verdict === "better" || rate.verdict === "worse";
  const rates = `${formatPercent(rate.head)} pass, before ${formatPercent(rate.base)}`;
  const chance = rate.p === null ? "this was not tested" : `p ${formatP(rate.p)}`;
  const broken = cases.filter((each) => each.change === "broken");
  const tested = broken.filter((each) => typeof each.p === "number").length;
  return (
    <p id="answer" class={`answer ${sure ? rate.verdict : ""}`}>
      <b>{sure ? `Head is ${rate.verdict}` : rate.delta === 0 ? "No difference" : `Head passes ${rate.delta < 0 ? "less" : "more"} often, but that can be chance`}</b>
      {`: ${rates} (${sure ? "more than chance, " : ""}${chance}).`}
      {tested > 0 && ` ${formatCount(tested, "case")} ${tested === 1 ? "is" : "are"} broken, more than chance explains.`}
      {broken.length > tested && ` ${formatCount(broken.length - tested, "case")} passed before and ${broken.length - tested === 1 ? "fails" : "fail"} now, in one trial each: repeat ${broken.length - tested === 1 ? "it" : "them"} with --runs to rule out chance.`}
    </p>
  );
}

function formatP(p: number): string {
  return p < 0.001 ? "< 0.001" : p.toFixed(3);
}

/** Why the case did not pass, in the head or else in the base. */
function Reasons({ change }: { change: CaseChange }) {
  if (change.error) return <span class="why"><Line text={change.error} /></span>;
  if (change.base_error) return <span class="why"><span class="muted">before: </span><Line text={change.base_error} /></span>;
  return null;
}

/** The status, and how many trials passed. */
function Outcome({ status, trials }: { status?: Status | null | undefined; trials?: TrialCounts | null | undefined }) {
  if (!status) return <span class="muted">–</span>;
  const errors = trials?.errors ? formatCount(trials.errors, "error") : "";
  const passed = trials?.decided ? `${trials.passed} of ${trials.decided}${errors && ` (${errors})`}` : errors || status;
  return (
    <>
      <StatusIcon status={status} label={passed !== status} />
      {trials && <span class="muted">{passed}</span>}
    </>
  );
}

function Metrics({ metrics }: { metrics: Metric[] }) {
  if (metrics.length === 0) return <p class="muted">No case is in both runs.</p>;
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label="Metrics of both runs">
      <table class="table" id="metrics">
        <thead>
          <tr>
            <th scope="col">Cases in both runs</th>
            <th scope="col" class="right">Base</th>
            <th scope="col" class="right">Head</th>
            <th scope="col" class="right">Change</th>
            <th scope="col" class="right">Interval</th>
            <th scope="col" class="right">p</th>
            <th scope="col" class="right">Pairs</th>
          </tr>
        </thead>
        <tbody>
          {metrics.map((metric) => {
            const show = pickFormat(metric.name);
            const showChange = metric.name === "pass rate" ? formatPoints : show;
            const shown = metric.verdict === "worse" || metric.verdict === "better";
            return (
              <tr key={metric.name} class={shown ? metric.verdict : ""}>
                <th scope="row">{METRIC_NAMES[metric.name] ?? metric.name}</th>
                <td class="right" data-name="Base">{show(metric.base)}</td>
                <td class="right" data-name="Head">{show(metric.head)}</td>
                <td class="right delta" data-name="Change">
                  {signed(metric.delta, showChange)}
                  {shown ? ` ${metric.verdict}` : ""}
                </td>
                <td class="right" data-name="Interval">
                  {metric.low === null || metric.high === null ? "–" : `${signed(metric.low, showChange).replace(" points", "")} to ${signed(metric.high, showChange)} (${formatPercent(metric.confidence)})`}
                </td>
                <td class="right" data-name="p">{metric.p === null ? metric.verdict : formatP(metric.p)}</td>
                <td class="right" data-name="Pairs">
                  {metric.pairs}
                  {metric.base_trials + metric.head_trials > 2 * metric.pairs ? ` (${metric.base_trials} and ${metric.head_trials} trials)` : ""}
                </td>
              </tr>
            );
          })}
        </tbody>
      </table>
    </div>
  );
}

const METRIC_NAMES: Record<string, string> = { "time ms": "time", "cost USD": "cost" };

function pickFormat(name: string): (value: number) => string {
  if (name === "pass rate") return (value) => formatPercent(value);
  if (name === "cost USD") return formatCost;
  if (name === "time ms") return formatMs;
  return (value) => value.toFixed(3);
}

function formatPoints(share: number): string {
  return `${(share * 100).toFixed(1)} points`;
}

/** The value with its sign, which a rounded zero does not have. */
function signed(value: number, show: (value: number) => string): string {
  const text = show(Math.abs(value));
  return /[1-9]/.test(text) ? `${value < 0 ? "−" : "+"}${text}` : text;
}
