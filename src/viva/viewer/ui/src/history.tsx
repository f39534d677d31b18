// Pass rate, cost and time over runs, and flaky cases.
import type { RunPoint } from "./data";
import type { ServerSource } from "./source";
import { Chart } from "./chart";
import { formatCount, formatTime, formatCost, formatPercent, formatMs } from "./format";
import { useLoaded } from "./loading";
import { buildHash, navigate } from "./route";
import { Line, escapeControls } from "./text";
import { TrialDots } from "./status";

const MAX_POINTS = 100; // the limit of the server

export function HistoryScreen({ server, query }: { server: ServerSource; query: Record<string, string> }) {
  const loaded = useLoaded(() => server.history(), []);
  if (loaded === null) return <p class="waiting">Opening…</p>;
  if ("error" in loaded) return <p class="waiting" role="alert">{loaded.error}</p>;
  const { runs, flaky } = loaded.value;
  const agents = [...new Set(runs.map((run) => run.agent))].sort();
  const agent = agents.includes(query["agent"] ?? "") ? (query["agent"] ?? "") : "";
  const shown = agent ? runs.filter((run) => run.agent === agent) : runs;
  const ranked = agent ? flaky.filter((each) => each.agent === agent) : flaky;
  const points = (value: (run: RunPoint) => number | null) =>
    shown.map((run) => ({ value: value(run), label: `${formatTime(run.at)} · ${run.agent}`, href: buildHash(["runs", run.id]) }));
  return (
    <>
      <div class="screen-head">
        <h1>History</h1>
        <p class="muted">
          {runs.length >= MAX_POINTS ? "last " : ""}
          {formatCount(shown.length, "finished run")}
        </p>
        {agents.length > 1 && (
          <label>
            <span class="visually-hidden">Agent</span>
            <select id="history-agent" value={agent} onChange={(event) => navigate(buildHash(["history"], { agent: event.currentTarget.value }), true)}>
              <option value="">All agents</option>
              {agents.map((each) => (
                <option key={each} value={each}>
                  {escapeControls(each)}
                </option>
              ))}
            </select>
          </label>
        )}
      </div>
      {shown.length === 0 && <p class="waiting">No finished runs.</p>}
      <section class="charts" aria-label="Charts">
        <Chart title="Pass rate" points={points((run) => run.pass_rate)} show={formatPercent} top={1} />
        <Chart title="Cost" points={points((run) => run.cost_usd)} show={formatCost} />
        <Chart title="Trial time p95" points={points((run) => run.p95_ms)} show={formatMs} />
      </section>
      <section aria-label="Flaky cases" id="flaky">
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
                  <th scope="col" class="right">Passed</th>
                </tr>
              </thead>
              <tbody>
                {ranked.slice(0, 200).map((each, at) => (
                  <tr key={at}>
                    <td>
                      <a href={buildHash(["runs", each.runs[each.runs.length - 1] ?? "", "case", each.suite, each.case])}>
                        <Line text={each.case} room={120} />
                      </a>
                      <small><Line text={each.suite} room={120} /></small>
                    </td>
                    <td><Line text={each.agent} room={60} /></td>
                    <td>
                      <TrialDots trials={each.statuses} label={each.statuses.join(", ")} />
                    </td>
                    <td class="right">{each.flips}</td>
                    <td class="right">
                      {each.passed}/{each.judged}
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
