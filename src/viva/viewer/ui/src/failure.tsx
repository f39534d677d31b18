// Why a trial did not pass: its failed checks, the evidence for the fault, and a link to each.
import type { ComponentChildren } from "preact";
import type { Assertion, Checkpoint, Traceback, Trial } from "./data";
import { getLabel } from "./check";
import { formatInline, Line, TextBlock } from "./text";

/** A link to an element of this screen: `turn-2`, `check-2-1`, `check-end-1`, `check-checkpoint-1`. */
export type LinkTo = (place: string) => { href: string; onClick: () => void };

interface FailedCheck {
  /** The id of its element; "" where it has none. */
  at: string;
  place: string;
  label: string;
  text: string;
}

export function Failure({ trial, to }: { trial: Trial; to: LinkTo }) {
  const notes = [
    ...(trial.findings ?? []).map(({ kind, severity }) => `Finding: ${kind} (${severity})`),
    ...(trial.warnings ?? []).map((text) => `Warning: ${text}`),
    ...(trial.notes ?? []),
  ];
  const tracebacks = trial.tracebacks ?? [];
  if (trial.status === "passed" && notes.length + tracebacks.length === 0) return null;
  const isRaised = (text: string) => tracebacks.some((each) => text.endsWith(each.error)); // the traceback says it
  const failedChecks = trial.status === "passed" ? [] : listFailedChecks(trial).filter((each) => each.label || !isRaised(each.text));
  const evidence = trial.fault_evidence ?? [];
  const error = trial.error && !failedChecks.some((each) => each.text && trial.error?.endsWith(each.text)) ? trial.error : "";
  const evidenceLine = evidence.find((line) => error && line.endsWith(`: ${error}`));
  const when = evidenceLine ? evidenceLine.slice(0, -error.length - 2) : "";
  const shown = [...failedChecks.map((each) => each.text), error].filter(Boolean);
  const more = evidence.filter((line) => !isRaised(line) && !shown.some((text) => line.endsWith(text)));
  return (
    <section class={`failure ${trial.status}`} aria-label="Why" id="why">
      {trial.status !== "passed" && (
        <h2>
          <span>{trial.status}</span>
          {trial.fault && <span class="fault">fault: {trial.fault}</span>}
        </h2>
      )}
      {error && !isRaised(error) && (
        <div class="error-text">
          {when && <Place at={parsePlace(when)} to={to}>{when}</Place>}
          <TextBlock text={error} />
        </div>
      )}
      {failedChecks.length + more.length > 0 && (
        <ul>
          {failedChecks.map((each, at) => (
            <li key={at}>
              <Place at={each.at} to={to}>{each.place}</Place> {each.label && <b><Line text={each.label} room={400} /></b>}{" "}
              <Line text={each.text} room={600} />
            </li>
          ))}
          {more.map((line) => (
            <li key={line}>
              <Line text={line} room={600} />
            </li>
          ))}
        </ul>
      )}
      {tracebacks.map((each, at) => (
        <TracebackView key={at} traceback={each} to={to} />
      ))}
      {trial.hint && (
        <p class="hint">
          Hint: <Line text={trial.hint} room={1000} />
        </p>
      )}
      {notes.map((text, at) => (
        <p class="note" key={at}>
          <Line text={text} room={2000} />
        </p>
      ))}
    </section>
  );
}

/** An exception in the user's Python: its frames and what the code printed. */
function TracebackView({ traceback, to }: { traceback: Traceback; to: LinkTo }) {
  const { turn, where, error, frames = [], printed } = traceback;
  return (
    <div class="traceback">
      <p>
        {turn && <Place at={`turn-${turn}`} to={to}>turn {turn}</Place>} {where}: <b><Line text={error} room={1000} /></b>
      </p>
      <ol>
        {frames.map((frame, at) => (
          <li key={at}>
            <code>
              <Line text={`${frame.file}:${frame.line}`} room={1000} />
            </code>{" "}
            in <Line text={frame.function} room={200} />
            {frame.source && (
              <pre>
                <Line text={frame.source} room={400} />
              </pre>
            )}
          </li>
        ))}
      </ol>
      {printed && (
        <details open={printed.length < 500}>
          <summary>Printed</summary>
          <TextBlock text={printed} />
        </details>
      )}
    </div>
  );
}

function Place({ at, to, children }: { at: string; to: LinkTo; children: ComponentChildren }) {
  return at ? <a {...to(at)}>{children}</a> : <span class="muted">{children}</span>;
}

/** The element id of a place such as `after turn 2`. */
function parsePlace(text: string): string {
  const turn = /turn (\d+)$/.exec(text)?.[1];
  return turn ? `turn-${turn}` : "";
}

function listFailedChecks(trial: Trial): FailedCheck[] {
  const failed: FailedCheck[] = [];
  const add = (at: string, place: string, check: Assertion) => {
    const label = [getLabel(check), check.message].filter(Boolean).join(" · ");
    if (check.passed !== true) failed.push({ at: `check-${at}`, place, label, text: getReason(check) });
  };
  for (const turn of trial.turns) {
    const place = `turn ${turn.turn}`;
    turn.assertions.forEach((check, n) => add(`${turn.turn}-${n + 1}`, place, check));
    if (turn.error) failed.push({ at: `turn-${turn.turn}`, place, label: "", text: turn.error });
  }
  trial.final_assertions.forEach((check, n) => add(`end-${n + 1}`, "final assertions", check));
  if (trial.status === "failed" || trial.status === "error") {
    (trial.checkpoints ?? []).forEach((each, n) => {
      if (each.required && !each.reached) failed.push(missed(each, n));
    });
  }
  return failed;
}

function missed(checkpoint: Checkpoint, n: number): FailedCheck {
  const text = checkpoint.reason ?? "not reached";
  return { at: checkpoint.assertion ? `check-checkpoint-${n + 1}` : "checkpoints", place: "checkpoint", label: checkpoint.id, text };
}

function getReason(check: Assertion): string {
  if (check.reason || !("expected" in check)) return check.reason ?? "";
  return `expected ${formatInline(check.expected, 200)}, was ${formatInline(check.actual, 200)}`;
}
