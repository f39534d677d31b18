// How sure a pass rate is: "6 of 8, 41–93 %, unstable" with a bar, and pass@k and pass^k.
import type { CaseFigures, CaseRow, Overview, PassK, Span } from "./data";
import { formatPercent, sortByName } from "./format";

const CLASSES = ["stable", "mostly_stable", "unstable", "highly_unstable", "never_passed"];

/** A rate as a point on a bar, with its 95 % interval. */
export function RateBar({ rate, interval, label }: { rate: number; interval: Span | null | undefined; label?: string }) {
  const low = interval?.low ?? rate;
  const high = interval?.high ?? rate;
  const named = label ? { role: "img" as const, "aria-label": label } : { "aria-hidden": true as const };
  return (
    <svg class="interval" viewBox="0 0 100 10" preserveAspectRatio="none" {...named}>
      <line class="scale" x1="0" x2="100" y1="5" y2="5" />
      <rect x={low * 100} width={Math.max(1.5, (high - low) * 100)} y="2.5" height="5" rx="1" />
      <line class="point" x1={rate * 100} x2={rate * 100} y1="0" y2="10" />
    </svg>
  );
}

export function formatSpan({ low, high }: Span): string {
  return `${Math.round(low * 100)}–${Math.round(high * 100)} %`;
}

function countTrials(row: CaseRow): { passed: number; decided: number; errors: number } {
  const count = (status: string) => row.trials.filter((each) => each === status).length;
  return { passed: count("passed"), decided: count("passed") + count("failed"), errors: count("error") };
}

/** "6 of 8, 41–93 %, unstable": narrow lists leave the class out; a case that never passed has none. Skipped trials count nowhere. */
export function Repeats({ row }: { row: CaseRow }) {
  const { passed, decided, errors } = countTrials(row);
  const parts = decided ? [`${passed} of ${decided}`] : [];
  if (decided && row.interval) parts.push(formatSpan(row.interval));
  if (errors) parts.push(`${errors} with errors`);
  return (
    <span class="repeats-text">
      {parts.join(", ")}
      {row.stability && passed > 0 && <span class="stability">, {row.stability.replace(/_/g, " ")}</span>}
    </span>
  );
}

/** The figures of a repeated case, with pass@k and pass^k for each k that was asked for. */
export function CaseCertainty({ row, figures }: { row: CaseRow; figures: CaseFigures | undefined }) {
  const { passed, decided } = countTrials(row);
  if (row.trials.length < 2) return null;
  const interval = figures?.interval ?? row.interval;
  return (
    <div class="certainty" id="certainty">
      <p>
        <b>
          <Repeats row={row} />
        </b>
        {decided > 0 && <RateBar rate={passed / decided} interval={interval} label={`Pass rate ${formatPercent(passed / decided, 0)}`} />}
      </p>
      {(figures?.pass_k ?? []).length > 1 && <PassKTable rows={pickKs(figures?.pass_k ?? [])} />}
    </div>
  );
}

/** 1, 2, 3, 5, 8, 10 … and the largest. */
function pickKs(all: PassK[]): PassK[] {
  const wanted = new Set([1, 2, 3, 4, 5, 8, 10, 16, 32, 64, all.length]);
  return all.filter(({ k }) => wanted.has(k));
}

function PassKTable({ rows }: { rows: PassK[] }) {
  const show = (value: number | null) => (value === null ? "–" : formatPercent(value, 0));
  return (
    <div class="scroll" tabIndex={0} role="group" aria-label="pass@k and pass^k">
      <table class="pass-k">
        <thead>
          <tr>
            <th scope="col">k</th>
            {rows.map(({ k }) => (
              <th scope="col" key={k}>
                {k}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          <tr>
            <th scope="row" title="At least one of k trials passes">
              pass@k
            </th>
            {rows.map((row) => (
              <td key={row.k}>{show(row.pass_at_k)}</td>
            ))}
          </tr>
          <tr>
            <th scope="row" title="All of k trials pass">
              pass^k
            </th>
            {rows.map((row) => (
              <td key={row.k}>{show(row.pass_hat_k)}</td>
            ))}
          </tr>
        </tbody>
      </table>
    </div>
  );
}

/** pass@k, pass^k and the stability classes of a run with repeats. */
export function SuiteCertainty({ overview }: { overview: Overview }) {
  const { pass_k: passK, classes } = overview;
  const stability = sortByName(classes ?? {}, CLASSES);
  return (
    <>
      {passK && passK.pass_at_k !== null && passK.pass_hat_k !== null && (
        <>
          <div>
            <dt>pass@{passK.k}</dt>
            <dd>{formatPercent(passK.pass_at_k)}</dd>
            <dd class="note">at least one of {passK.k} trials</dd>
          </div>
          <div>
            <dt>pass^{passK.k}</dt>
            <dd>{formatPercent(passK.pass_hat_k)}</dd>
            <dd class="note">all of {passK.k} trials</dd>
          </div>
        </>
      )}
      {stability.length > 0 && (
        <div class="classes">
          <dt>Stability</dt>
          {stability.map(([name, many]) => (
            <dd class="note" key={name}>
              {many} {name.replace(/_/g, " ")}
            </dd>
          ))}
        </div>
      )}
    </>
  );
}
