// Why a trial did not pass: the checks that say so, what the blame rests on, and the way to each of them.
import type { ComponentChildren } from "preact";
import type { Assertion, Checkpoint, Traceback, Trial } from "./data";
import { labelOf } from "./check";
import { brief, Line, Said } from "./said";

/** A place on this screen that has an address: `turn-2`, `check-2-1`, `check-end-1`, `check-checkpoint-1`. */
export type To = (place: string) => { href: string; onClick: () => void };

interface Found {
  /** Where on this screen it stands; "" for what stands nowhere else. */
  at: string;
  place: string;
  label: string;
  text: string;
}

export function Why({ trial, to }: { trial: Trial; to: To }) {
  const notes = [
    ...(trial.findings ?? []).map(({ kind, severity }) => `Finding: ${kind} (${severity})`),
    ...(trial.warnings ?? []).map((text) => `Warning: ${text}`),
    ...(trial.notes ?? []),
  ];
  const tracebacks = trial.tracebacks ?? [];
  if (trial.status === "passed" && notes.length + tracebacks.length === 0) return null;
  const findings = trial.status === "passed" ? [] : findingsIn(trial);
  const evidence = trial.fault_evidence ?? [];
  const said = trial.error && !findings.some((each) => each.text && trial.error?.endsWith(each.text)) ? trial.error : "";
  const whole = evidence.find((line) => said && line.endsWith(`: ${said}`));
  const when = whole ? whole.slice(0, -said.length - 2) : "";
  const told = [...findings.map((each) => each.text), said].filter(Boolean);
  const more = evidence.filter((line) => !told.some((text) => line.endsWith(text)));
  return (
    <section class={`why-block ${trial.status}`} aria-label="Why" id="why">
      {trial.status !== "passed" && (
        <h2>
          <span>{trial.status}</span>
          {trial.fault && <span class="fault">fault: {trial.fault}</span>}
        </h2>
      )}
      {said && (
        <div class="error-said">
          {when && <Place at={placeIn(when)} to={to}>{when}</Place>}
          <Said text={said} />
        </div>
      )}
      {findings.length + more.length > 0 && (
        <ul>
          {findings.map((each, at) => (
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
        <Raised key={at} traceback={each} to={to} />
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

/** An error in the user's own Python: its lines, and what the code had printed. */
function Raised({ traceback, to }: { traceback: Traceback; to: To }) {
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
          <Said text={printed} />
        </details>
      )}
    </div>
  );
}

function Place({ at, to, children }: { at: string; to: To; children: ComponentChildren }) {
  return at ? <a {...to(at)}>{children}</a> : <span class="muted">{children}</span>;
}

/** `after turn 2` as a place. */
function placeIn(words: string): string {
  const turn = /turn (\d+)$/.exec(words)?.[1];
  return turn ? `turn-${turn}` : "";
}

function findingsIn(trial: Trial): Found[] {
  const found: Found[] = [];
  const add = (at: string, place: string, check: Assertion) => {
    const label = [labelOf(check), check.message].filter(Boolean).join(" · ");
    if (check.passed !== true) found.push({ at: `check-${at}`, place, label, text: reasonOf(check) });
  };
  for (const turn of trial.turns) {
    const place = `turn ${turn.turn}`;
    turn.assertions.forEach((check, n) => add(`${turn.turn}-${n + 1}`, place, check));
    if (turn.error) found.push({ at: `turn-${turn.turn}`, place, label: "", text: turn.error });
  }
  trial.final_assertions.forEach((check, n) => add(`end-${n + 1}`, "at the end", check));
  if (trial.status === "failed" || trial.status === "error") {
    (trial.checkpoints ?? []).forEach((each, n) => {
      if (each.required && !each.reached) found.push(missed(each, n));
    });
  }
  return found;
}

function missed(checkpoint: Checkpoint, n: number): Found {
  const text = checkpoint.reason ?? "not reached";
  return { at: checkpoint.assertion ? `check-checkpoint-${n + 1}` : "checkpoints", place: "checkpoint", label: checkpoint.id, text };
}

function reasonOf(check: Assertion): string {
  if (check.reason || !("expected" in check)) return check.reason ?? "";
  return `expected ${brief(check.expected, 200)}, was ${brief(check.actual, 200)}`;
}
