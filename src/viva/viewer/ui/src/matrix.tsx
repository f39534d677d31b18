// Several agents side by side: a row for each agent, a plot, and the matrix of cases and agents.
import { useState } from "preact/hooks";
import { useNarrow } from "./narrow";
import type { Matrix, MatrixCell, MatrixColumn, MatrixRow, RunAgent } from "./compare_data";
import type { ServerSource } from "./source";
import { formatCost, formatCount, formatMs, formatPercent } from "./format";
import { useLoaded } from "./loading";
import { letterOf, QualityPlot } from "./plot";
import { buildHash, type RunLinks } from "./route";
import { RateBar } from "./sure";
import { Line } from "./text";
import "./matrix.css";

const FIRST_ROWS = 100;

interface Props {
  matrix: Matrix;
  name: string;
  /** The page of a case on the agent of a column. */
  cellHref: (row: MatrixRow, at: number) => string;
  /** The comparison of the first column with another one. */
  pairHref?: ((at: number) => string) | undefined;
}

/** The agents, then the cases; where the window is narrow the cases come first, so that a failing one is in sight. */
export function MatrixPanel({ matrix, name, cellHref, pairHref }: Props) {
  const isNarrow = useNarrow();
  const cases = <CaseTable matrix={matrix} cellHref={cellHref} />;
  return (
    <section class="matrix" id="matrix" aria-label="Agents">
      {isNarrow && cases}
      <h2>Agents</h2>
      <div class="matrix-top">
        <AgentTable matrix={matrix} pairHref={pairHref} />
        <QualityPlot matrix={matrix} name={name} />
      </div>
      {matrix.notes.length > 0 && (
        <ul class="muted">
          {matrix.notes.map((note) => <li key={note}><Line text={note} room={600} /></li>)}
        </ul>
      )}
      {!isNarrow && cases}
    </section>
  );
}

/** The matrix of a run of several agents. A served one leads to the comparison of two of them. */
export function RunMatrix({ matrix, run, places, served }: { matrix: Matrix; run: string; places: RunLinks; served: boolean }) {
  const agent = (at: number) => matrix.columns[at]?.name ?? "";
  return (
    <MatrixPanel
      matrix={matrix}
      name={run}
      cellHref={(row, at) => places.case({ suite: row.suite, id: row.case, agent: agent(at) })}
      pairHref={served ? (at) => buildHash(["compare", run, run], { base_agent: agent(0), head_agent: agent(at) }) : undefined}
    />
  );
}

function AgentTable({ matrix, pairHref }: { matrix: Matrix; pairHref: Props["pairHref"] }) {
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label="Results of each agent">
      <table class="table agents">
        <thead>
          <tr>
            <th scope="col">Agent</th>
            <th scope="col">Pass rate</th>
            <th scope="col" class="right">Cost</th>
            <th scope="col" class="right">p95</th>
            <th scope="col">Against A</th>
          </tr>
        </thead>
        <tbody>
          {matrix.columns.map((column, at) => (
            <tr key={at} class={column.difference?.verdict === "better" || column.difference?.verdict === "worse" ? column.difference.verdict : ""}>
              <th scope="row">
                <span class={`letter-mark agent-${at % 6}`}>{letterOf(at)}</span> <Line text={column.name} room={80} />
              </th>
              <td><Rate column={column} /></td>
              <td class="right" data-name="Cost">{column.cost_usd === null ? "unknown" : `${formatCost(column.cost_usd)}${column.unpriced_trials ? "+" : ""}`}</td>
              <td class="right" data-name="p95">{column.p95_ms === null ? "–" : formatMs(column.p95_ms)}</td>
              <td data-name="Against A"><Difference column={column} href={at > 0 ? pairHref?.(at) : undefined} /></td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Rate({ column }: { column: MatrixColumn }) {
  if (column.rate === null || column.low === null || column.high === null) return <span class="muted">no verdict</span>;
  const span = `${Math.round(column.low * 100)}–${Math.round(column.high * 100)} %`;
  return (
    <span class="rate">
      <b>{formatPercent(column.rate)}</b> <small>{span}</small>
      <RateBar rate={column.rate} interval={{ low: column.low, high: column.high }} />
      {column.errors > 0 && <small>{formatCount(column.errors, "error")}</small>}
    </span>
  );
}

function Difference({ column, href }: { column: MatrixColumn; href: string | undefined }) {
  const found = column.difference;
  if (!found) return <span class="muted">–</span>;
  const points = (value: number) => `${value < 0 ? "−" : "+"}${Math.abs(value * 100).toFixed(1)}`;
  const interval = found.low === null || found.high === null ? "" : ` [${points(found.low)}, ${points(found.high)}]`;
  const text = `${points(found.delta)} points${interval}`;
  return (
    <span class="difference">
      {href ? <a href={href}>{text}</a> : text}
      <small>{`p ${found.p < 0.001 ? "< 0.001" : found.p.toFixed(3)}: ${found.verdict}`}</small>
    </span>
  );
}

/** As `MatrixRow.is_different` in viva/stats/matrix.py. */
function isDifferent(row: MatrixRow): boolean {
  const outcome = (cell: MatrixCell) => (cell.decided ? cell.passed / cell.decided : cell.errors ? "error" : "skipped");
  return new Set(row.cells.flatMap((cell) => (cell ? [outcome(cell)] : []))).size > 1;
}

function isFailing(row: MatrixRow): boolean {
  return row.cells.some((cell) => cell && ((cell.errors ?? 0) > 0 || cell.passed < cell.decided));
}

/** The cases that differ between the agents, or all of them with the failing ones first. */
function CaseTable({ matrix, cellHref }: { matrix: Matrix; cellHref: Props["cellHref"] }) {
  const different = matrix.rows.filter(isDifferent);
  const unshared = matrix.rows.filter((row) => row.cells.includes(null)).length;
  const [all, setAll] = useState(different.length === 0);
  const [many, setMany] = useState(FIRST_ROWS);
  const rows = all ? [...matrix.rows].sort((a, b) => Number(isFailing(b)) - Number(isFailing(a))) : different;
  return (
    <>
      <p class="matrix-choice" role="group" aria-label="Cases of the matrix">
        <button type="button" class="chip" aria-pressed={!all} onClick={() => setAll(false)}>
          Agents differ <b>{different.length}</b>
        </button>
        <button type="button" class="chip" aria-pressed={all} onClick={() => setAll(true)}>
          All cases <b>{matrix.rows.length}</b>
        </button>
        {unshared > 0 && <span class="muted">{formatCount(unshared, "case")} not on all agents</span>}
      </p>
      {rows.length === 0 ? (
        <p class="muted">Every case has the same result on all agents.</p>
      ) : (
        <div class="scroll" tabIndex={0} role="region" aria-label="Cases and agents">
          <table class="table cells" style={{ "--agents": matrix.columns.length }}>
            <thead>
              <tr>
                <th scope="col">Case</th>
                {matrix.columns.map((column, at) => (
                  <th scope="col" key={at}>
                    <span class={`letter-mark agent-${at % 6}`}>{letterOf(at)}</span> <span class="column-name"><Line text={column.name} room={80} /></span>
                  </th>
                ))}
              </tr>
            </thead>
            <tbody>
              {rows.slice(0, many).map((row) => (
                <tr key={`${row.suite}\n${row.case}`}>
                  <th scope="row">
                    <Line text={row.case} room={200} />
                    <small><Line text={row.suite} room={80} /></small>
                  </th>
                  {row.cells.map((cell, at) => (
                    <td key={at}>{cell ? <Cell cell={cell} href={cellHref(row, at)} /> : <span class="muted">–</span>}</td>
                  ))}
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      {rows.length > many && (
        <button type="button" class="button" onClick={() => setMany(many + 500)}>
          {formatCount(rows.length - many, "more case")}
        </button>
      )}
    </>
  );
}

const ARROWS: Record<string, string> = { better: "▲", worse: "▼" };

function Cell({ cell, href }: { cell: MatrixCell; href: string }) {
  const kind = !cell.decided ? (cell.errors ? "error" : "skipped") : cell.passed === cell.decided ? "passed" : cell.passed === 0 ? "failed" : "mixed";
  const text = !cell.decided ? kind : cell.decided === 1 ? kind : `${cell.passed}/${cell.decided}`;
  const hints = [
    typeof cell.low === "number" && typeof cell.high === "number" && cell.decided > 1 ? `${Math.round(cell.low * 100)}–${Math.round(cell.high * 100)} %` : "",
    cell.decided && cell.errors ? formatCount(cell.errors, "error") : "",
    typeof cell.p === "number" && cell.verdict !== "no difference shown" ? `${cell.verdict} than A, p ${cell.p.toFixed(3)}` : "",
    cell.is_changed ? "another definition of the case" : "",
  ].filter(Boolean);
  return (
    <a class={`matrix-cell ${kind}`} href={href}>
      <b>{text}</b>
      {cell.verdict && ARROWS[cell.verdict] && <span class={cell.verdict}>{ARROWS[cell.verdict]}</span>}
      {hints.length > 0 && <small>{hints.join(", ")}</small>}
    </a>
  );
}

/** The agents of one run or more, on a screen of their own. */
export function MatrixScreen({ server, runs }: { server: ServerSource; runs: string[] }) {
  const loaded = useLoaded(() => server.matrix(runs), runs);
  if (loaded === null) return <p class="waiting">Opening…</p>;
  if ("error" in loaded) return <p class="waiting" role="alert">{loaded.error}</p>;
  const { matrix, columns } = loaded.value;
  const at = (place: number): RunAgent => columns[place] ?? { run: "", agent: "" };
  return (
    <>
      <div class="screen-head">
        <h1>Compare</h1>
        <p class="muted">{formatCount(columns.length, "agent")} of {formatCount(new Set(columns.map((column) => column.run)).size, "run")}</p>
      </div>
      <MatrixPanel
        matrix={matrix}
        name={runs.join("-")}
        cellHref={(row, place) => buildHash(["runs", at(place).run, "case", row.suite, row.case], { on: at(place).agent })}
        pairHref={(place) => buildHash(["compare", at(0).run, at(place).run], { base_agent: at(0).agent, head_agent: at(place).agent })}
      />
    </>
  );
}
