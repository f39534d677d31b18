// Two runs compared: changed cases, metrics, and two transcripts aligned by turn.
import { useMemo } from "preact/hooks";
import type { CaseChange, Comparison, Metric, Overview, Trial, TrialCounts } from "./data";
import type { ServerSource } from "./source";
import { CheckCard, collectQuotes } from "./check";
import { formatCount, formatCost, formatPercent, formatMs } from "./format";
import { listReached } from "./case";
import { useLoaded } from "./loading";
import { buildHash } from "./route";
import { Line } from "./text";
import { StatusIcon } from "./status";
import { TurnView } from "./turn";

const MAX_ROWS = 500;

interface Props {
  server: ServerSource;
  base: string;
  head: string;
  query: Record<string, string>;
}

export function CompareScreen({ server, base, head, query }: Props) {
  const loaded = useLoaded(() => server.compare(base, head), [base, head]);
  if (loaded === null) return <p class="waiting">Opening…</p>;
  if ("error" in loaded) return <p class="waiting" role="alert">{loaded.error}</p>;
  const comparison = loaded.value;
  const chosen = comparison.cases.find((each) => each.suite === query["suite"] && each.case === query["case"]);
  return chosen ? (
    <Pair server={server} comparison={comparison} chosen={chosen} back={buildHash(["compare", base, head], { change: query["change"] })} />
  ) : (
    <Changes comparison={comparison} base={base} head={head} only={query["change"] ?? ""} />
  );
}

function Changes({ comparison, base, head, only }: { comparison: Comparison; base: string; head: string; only: string }) {
  const counts = new Map<string, number>();
  for (const each of comparison.cases) counts.set(each.change, (counts.get(each.change) ?? 0) + 1);
  const shown = comparison.cases.filter((each) => (only ? each.change === only : each.change !== "still passing"));
  return (
    <>
      <div class="screen-head">
        <h1>Compare</h1>
        <p class="muted mono">
          <a href={buildHash(["runs", comparison.base])}>{comparison.base}</a> → <a href={buildHash(["runs", comparison.head])}>{comparison.head}</a>
        </p>
        <a class="button" id="swap" href={buildHash(["compare", head, base])}>
          Swap
        </a>
      </div>
      <Metrics metrics={comparison.metrics} />
      {comparison.notes.length > 0 && (
        <ul class="muted" id="notes">
          {comparison.notes.map((note) => <li key={note}>{note}</li>)}
        </ul>
      )}
      <section aria-label="Changes">
        <div class="chips" role="group" aria-label="Kind of change">
          {[...counts].map(([change, many]) => (
            <a
              key={change}
              class={`chip change-${change.replace(" ", "-")}`}
              aria-current={only === change ? "true" : undefined}
              href={buildHash(["compare", base, head], { change: only === change ? "" : change })}
            >
              {change} <b>{many}</b>
            </a>
          ))}
        </div>
        {shown.length === 0 && <p class="waiting">No changes.</p>}
        <ul class="changes" id="changes">
          {shown.slice(0, MAX_ROWS).map((each) => (
            <li key={`${each.suite}\n${each.case}`}>
              <a
                class="change-row"
                href={buildHash(["compare", base, head], { change: only, suite: each.suite, case: each.case })}
                data-case={each.case}
              >
                <span class={`kind change-${each.change.replace(" ", "-")}`}>{each.change}</span>
                <span class="what">
                  <span class="title">
                    <b><Line text={each.case} room={120} /></b>
                    <span class="name"><Line text={each.suite} room={120} /></span>
                  </span>
                  {each.why && <span class="why"><Line text={each.why} /></span>}
                </span>
                <span class="from-to">
                  {each.base ? <StatusIcon status={each.base} /> : <span class="muted">–</span>}
                  <Passed trials={each.base_trials} />
                  <span aria-hidden="true">→</span>
                  {each.head ? <StatusIcon status={each.head} /> : <span class="muted">–</span>}
                  <Passed trials={each.head_trials} />
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

/** How many trials passed, for a case with several trials. */
function Passed({ trials }: { trials?: TrialCounts | null }) {
  if (!trials || trials.judged + trials.errors < 2) return null;
  const errors = trials.errors ? ` (${formatCount(trials.errors, "error")})` : "";
  return <span class="muted">{`${trials.passed}/${trials.judged}${errors}`}</span>;
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
            const shown = metric.verdict === "worse" || metric.verdict === "better";
            return (
              <tr key={metric.name} class={shown ? metric.verdict : ""}>
                <th scope="row">{metric.name}</th>
                <td class="right">{show(metric.base)}</td>
                <td class="right">{show(metric.head)}</td>
                <td class="right delta">
                  {metric.delta > 0 ? "+" : metric.delta < 0 ? "−" : ""}
                  {show(Math.abs(metric.delta))}
                  {shown ? ` ${metric.verdict}` : ""}
                </td>
                <td class="right">
                  {metric.low === null || metric.high === null ? "–" : `${signed(metric.low, show)} to ${signed(metric.high, show)} (${formatPercent(metric.confidence)})`}
                </td>
                <td class="right">{metric.p === null ? metric.verdict : metric.p < 0.001 ? "< 0.001" : metric.p.toFixed(3)}</td>
                <td class="right">
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

function pickFormat(name: string): (value: number) => string {
  if (name === "pass rate") return (value) => formatPercent(value);
  if (name === "cost USD") return formatCost;
  if (name === "time ms") return formatMs;
  return (value) => value.toFixed(3);
}

function signed(value: number, show: (value: number) => string): string {
  return `${value < 0 ? "−" : "+"}${show(Math.abs(value))}`;
}

/** One side of a pair: the trial that is shown, and its attachments. */
interface ShownTrial {
  trial: Trial;
  attachments: Record<string, string>;
}

interface PairProps {
  server: ServerSource;
  comparison: Comparison;
  chosen: CaseChange;
  back: string;
}

function Pair({ server, comparison, chosen, back }: PairProps) {
  const load = (run: string) => async (): Promise<ShownTrial | null> => {
    const overview: Overview = await server.overview(run);
    const row = overview.cases.find((each) => each.suite === chosen.suite && each.id === chosen.case);
    if (!row) return null;
    const { trials, attachments = {} } = await server.trials(run, row);
    const trial = trials.find((each) => each.status === row.status) ?? trials[0];
    return trial ? { trial, attachments } : null;
  };
  const base = useLoaded(load(comparison.base), [comparison.base, chosen.suite, chosen.case]);
  const head = useLoaded(load(comparison.head), [comparison.head, chosen.suite, chosen.case]);
  if (base === null || head === null) return <p class="waiting">Opening…</p>;
  const error = "error" in base ? base.error : "error" in head ? head.error : "";
  if ("error" in base || "error" in head) return <p class="waiting" role="alert">{error}</p>;
  return (
    <article aria-labelledby="pair-title">
      <nav class="trail" aria-label="Comparison">
        <a href={back} id="back">← All changes</a>
      </nav>
      <div class="screen-head">
        <h1 id="pair-title"><Line text={chosen.case} /></h1>
        <span class={`kind change-${chosen.change.replace(" ", "-")}`}>{chosen.change}</span>
      </div>
      <Sides base={base.value} head={head.value} comparison={comparison} />
    </article>
  );
}

const SIDES = ["Base", "Head"] as const;

function Sides({ base, head, comparison }: { base: ShownTrial | null; head: ShownTrial | null; comparison: Comparison }) {
  const turns = Math.max(base?.trial.turns.length ?? 0, head?.trial.turns.length ?? 0);
  const marks = useMemo(() => [base, head].map((held) => (held ? collectQuotes(held.trial) : new Map())), [base, head]);
  return (
    <div class="pair" id="pair">
      <Side trial={base?.trial ?? null} run={comparison.base} name="Base" />
      <Side trial={head?.trial ?? null} run={comparison.head} name="Head" />
      {Array.from({ length: turns }, (_, at) =>
        [base, head].map((held, side) => {
          const turn = held?.trial.turns[at];
          return (
            <div class="cell" key={`${at}-${side}`}>
              {held && turn ? (
                <TurnView
                  turn={turn}
                  marks={marks[side]?.get(turn.turn) ?? []}
                  attachments={held.attachments}
                  reached={listReached(held.trial, turn.turn)}
                  side={SIDES[side] ?? ""}
                />
              ) : (
                <p class="muted none">
                  <span class="which">{SIDES[side]}: </span>no turn {at + 1}
                </p>
              )}
            </div>
          );
        }),
      )}
      {[base, head].map((held, side) => (
        <div class="cell" key={`end-${side}`}>
          {held && held.trial.final_assertions.length > 0 && (
            <section class="final-checks" aria-label={`Final assertions, ${SIDES[side]}`}>
              <h3>
                Final assertions<span class="which"> · {SIDES[side]}</span>
              </h3>
              {held.trial.final_assertions.map((check, at) => (
                <CheckCard key={at} check={check} />
              ))}
            </section>
          )}
        </div>
      ))}
    </div>
  );
}

function Side({ trial, run, name }: { trial: Trial | null; run: string; name: string }) {
  return (
    <header class="cell side">
      <h2>
        {trial && <StatusIcon status={trial.status} />} {name}
      </h2>
      {trial ? (
        <p class="muted">
          <a href={buildHash(["runs", run, "case", trial.suite, trial.id], { trial: trial.trial })} class="mono">{run}</a>
          {" · "}
          {formatCount(trial.total_turns, "turn")} · {formatMs(trial.duration_ms)}
          {typeof trial.cost_usd === "number" ? ` · ${formatCost(trial.cost_usd)}` : ""}
        </p>
      ) : (
        <p class="muted">not in {run}</p>
      )}
      {trial?.error && <p class="side-error"><Line text={trial.error} room={600} /></p>}
    </header>
  );
}
