// Pass rate, cost and time over runs, a line for each agent and suite; and flaky cases.
import { useState } from "preact/hooks";
import type { HistoryLine, LinePoint } from "./data";
import type { ServerSource } from "./source";
import { Chart } from "./chart";
import { formatCount, formatTime, formatCost, formatPercent, formatMs } from "./format";
import { useNarrow } from "./narrow";
import { useLoaded } from "./loading";
import { buildHash, navigate } from "./route";
import { Line, escapeControls } from "./text";
import { TrialDots } from "./status";
import "./history.css";

const MAX_POINTS = 100; // the limit of the server
const FIRST_LINES = { wide: 12, narrow: 4 };

export function HistoryScreen({ server, query }: { server: ServerSource; query: Record<string, string> }) {
  const loaded = useLoaded(() => server.history(), []);
  const isNarrow = useNarrow();
  const [more, setMore] = useState(0);
  const many = (isNarrow ? FIRST_LINES.narrow : FIRST_LINES.wide) + more;
  if (loaded === null) return <p class="waiting">Opening…</p>;
  if ("error" in loaded) return <p class="waiting" role="alert">{loaded.error}</p>;
  const { runs, lines, flaky } = loaded.value;
  const choose = (values: string[], name: string) => (values.includes(query[name] ?? "") ? (query[name] ?? "") : "");
  const agents = [...new Set(lines.map((line) => line.agent))].sort();
  const suites = [...new Set(lines.map((line) => line.suite))].sort();
  const chosen = { agent: choose(agents, "agent"), suite: choose(suites, "suite"), all: query["all"] ? "1" : "" };
  const isShown = (each: { agent: string; suite: string }) =>
    (!chosen.agent || each.agent === chosen.agent) && (!chosen.suite || each.suite === chosen.suite);
  const shown = lines.filter(isShown).map((line) => ({ ...line, points: chosen.all ? line.points : line.points.filter((point) => !point.left_out) }));
  const leftOut = lines.filter(isShown).reduce((sum, line) => sum + line.points.filter((point) => point.left_out).length, 0);
  const drawn = shown.filter((line) => line.points.length > 0).sort(compareLines);
  const ranked = flaky.filter(isShown);
  const change = (part: Partial<typeof chosen>) => navigate(buildHash(["history"], { ...chosen, ...part }), true);
  return (
    <>
      <div class="screen-head">
        <h1>History</h1>
        <p class="muted">
          {runs >= MAX_POINTS ? "last " : ""}
          {formatCount(runs, "finished run")}
        </p>
        {ranked.length > 0 && (
          <button type="button" class="link" id="to-flaky" onClick={showFlaky}>
            {formatCount(ranked.length, "flaky case")}
          </button>
        )}
        <span class="choices">
        <Choice id="history-agent" label="Agent" all="All agents" values={agents} value={chosen.agent} change={(agent) => change({ agent })} />
        <Choice id="history-suite" label="Suite" all="All suites" values={suites} value={chosen.suite} change={(suite) => change({ suite })} />
        </span>
        {leftOut > 0 && (
          <label class="left-out-choice">
            <input type="checkbox" id="history-all" checked={chosen.all !== ""} onChange={(event) => change({ all: event.currentTarget.checked ? "1" : "" })} />{" "}
            Show parts of a suite, single cases and replays ({leftOut})
          </label>
        )}
      </div>
      {drawn.length === 0 && <p class="waiting">No finished runs.</p>}
      {drawn.slice(0, many).map((line) => (
        <LineCharts key={`${line.agent}\n${line.suite}`} line={line} />
      ))}
      {drawn.length > many && (
        <button type="button" class="button" onClick={() => setMore(more + 50)}>
          {formatCount(drawn.length - many, "more line")}
        </button>
      )}
      <section aria-label="Flaky cases" id="flaky" tabIndex={-1}>
        <h2>Flaky cases</h2>
        {ranked.length === 0 ? (
          <p class="muted">No case both passed and failed with the same agent in the latest runs.</p>
        ) : (
          <div class="scroll" tabIndex={0} role="region" aria-label="Flaky cases, ranked">
            <table class="table">
              <thead>
                <tr>
                  <th scope="col">Case</th>
                  <th scope="col">Agent</th>
                  <th scope="col">Last runs</th>
                  <th scope="col" class="right">Flips</th>
                  <th scope="col" class="right">Flip rate</th>
                  <th scope="col" class="right">Passed</th>
                </tr>
              </thead>
              <tbody>
                {ranked.slice(0, 200).map((each, at) => (
                  <tr key={at}>
                    <td>
                      <a href={buildHash(["runs", each.runs[each.runs.length - 1] ?? "", "case", each.suite, each.case], { on: each.agent })}>
                        <Line text={each.case} room={120} />
                      </a>
                      <small><Line text={each.suite} room={120} /></small>
                    </td>
                    <td><Line text={each.agent} room={60} /></td>
                    <td>
                      <TrialDots trials={each.statuses} label={each.statuses.join(", ")} />
                    </td>
                    <td class="right">{each.flips}</td>
                    <td class="right">{formatPercent(each.flip_rate, 0)}</td>
                    <td class="right">
                      {each.passed}/{each.decided}
                    </td>
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
        )}
      </section>
    </>
  );
}

/** The flaky cases stand below all lines: a long way to scroll. */
function showFlaky(): void {
  const section = document.getElementById("flaky");
  section?.scrollIntoView({ block: "start" });
  section?.focus({ preventScroll: true });
}

/** The lowest pass rate of the latest run first, then the longest line. */
function compareLines(a: HistoryLine, b: HistoryLine): number {
  const rate = (line: HistoryLine) => line.points.findLast((point) => typeof point.pass_rate === "number")?.pass_rate ?? 2;
  return rate(a) - rate(b) || b.points.length - a.points.length;
}

interface ChoiceProps {
  id: string;
  label: string;
  all: string;
  values: string[];
  value: string;
  change: (value: string) => void;
}

function Choice({ id, label, all, values, value, change }: ChoiceProps) {
  if (values.length < 2) return null;
  return (
    <label>
      <span class="visually-hidden">{label}</span>
      <select id={id} value={value} onChange={(event) => change(event.currentTarget.value)}>
        <option value="">{all}</option>
        {values.map((each) => (
          <option key={each} value={each}>
            {escapeControls(each)}
          </option>
        ))}
      </select>
    </label>
  );
}

function LineCharts({ line }: { line: HistoryLine }) {
  const about = escapeControls(`${line.agent || "no agent"} on ${line.suite}`);
  const isOneDay = new Set(line.points.map((point) => formatTime(point.at).split(",")[0])).size === 1;
  const points = (value: (point: LinePoint) => number | null | undefined, hasInterval = false) =>
    line.points.map((point) => ({
      value: value(point) ?? null,
      label: describePoint(point, hasInterval),
      time: isOneDay ? (formatTime(point.at).split(", ")[1] ?? "") : (formatTime(point.at).split(",")[0] ?? ""),
      href: buildHash(["runs", point.run]),
      low: hasInterval ? point.low : null,
      high: hasInterval ? point.high : null,
      changes: point.changes ?? [],
      isLeftOut: Boolean(point.left_out),
    }));
  const changes = line.points.filter((point) => (point.changes ?? []).length > 0);
  return (
    <section class="history-line" aria-label={about}>
      <h2>
        <Line text={line.agent || "no agent"} room={80} /> <span class="muted">on <Line text={line.suite} room={80} /></span>
      </h2>
      <div class="charts">
        <Chart title="Pass rate" about={about} points={points((point) => point.pass_rate, true)} show={(value) => formatPercent(value, Number.isInteger(value * 100) ? 0 : 1)} top={1} />
        <Chart title="Cost per trial" about={about} points={points((point) => (typeof point.cost_usd === "number" && point.trials ? point.cost_usd / point.trials : null))} show={formatCost} />
        <Chart title="Trial time p95" about={about} points={points((point) => point.p95_ms)} show={formatMs} />
      </div>
      {changes.length > 0 && (
        <p class="muted marker-note">
          ▼ {changes.map((point) => `${(point.changes ?? []).join(" and ")} changed ${formatTime(point.at)}`).slice(-3).join("; ")}
        </p>
      )}
    </section>
  );
}

function describePoint(point: LinePoint, hasInterval: boolean): string {
  const parts = [formatTime(point.at)];
  if (hasInterval && point.decided) {
    // With repeats the rate is that of the trials; a count of passed cases beside it would contradict it.
    const isOfCases = Math.abs((point.pass_rate ?? 0) - point.passed / point.decided) < 1e-9;
    parts.push(isOfCases ? `${point.passed} of ${formatCount(point.decided, "case")}` : formatCount(point.trials ?? 0, "trial"));
  }
  if (hasInterval && typeof point.low === "number" && typeof point.high === "number") parts.push(`${Math.round(point.low * 100)}–${Math.round(point.high * 100)} %`);
  if (point.left_out) parts.push(point.left_out);
  if ((point.changes ?? []).length > 0) parts.push(`${(point.changes ?? []).join(" and ")} changed`);
  return parts.join(" · ");
}
