// A judge's verdict: one row for each criterion, and what the judge was sent and answered, word for word.
import { createContext } from "preact";
import { useContext, useState } from "preact/hooks";
import type { Assertion, Criterion, HelperCall } from "./data";
import { formatCost, formatCount, formatMs, formatNumber, formatScore } from "./format";
import { Quotes } from "./quotes";
import { Readable } from "./readable";
import { StatusIcon } from "./status";
import { Line, TextBlock } from "./text";

/** The questions to simulators and judges in the trial that is shown. */
export const HelperCalls = createContext<HelperCall[]>([]);

export function CriteriaRows({ rows }: { rows: Criterion[] }) {
  return (
    <ul class="criteria" aria-label="Criteria">
      {rows.map((row, at) => (
        <li key={at} class={row.passed ? "passed" : "failed"}>
          <StatusIcon status={row.passed ? "passed" : "failed"} size={14} />
          <div>
            <b>
              <Line text={row.criterion} room={1000} />
            </b>
            <span class="number">
              {[
                typeof row.score === "number" ? ` score ${formatScore(row.score)}` : "",
                typeof row.weight === "number" && row.weight !== 1 ? ` weight ${row.weight}` : "",
              ].filter(Boolean).join(" ·")}
            </span>
            {row.reason && <TextBlock text={row.reason} />}
            {(row.evidence ?? []).length > 0 && <Quotes quotes={row.evidence ?? []} />}
          </div>
        </li>
      ))}
    </ul>
  );
}

/** What the judge of a check was sent and answered. The texts are rendered when they are opened. */
export function JudgeCalls({ check }: { check: Assertion }) {
  const all = useContext(HelperCalls);
  const calls = (check.judge_calls ?? []).flatMap((number) => all[number - 1] ?? []).filter((call) => call.sent);
  const [isOpen, setOpen] = useState(false);
  if (calls.length === 0) return null;
  return (
    <details class="fold exchange" onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>
        What the judge was sent and answered
        {calls.length > 1 && <span class="muted"> · {formatCount(calls.length, "call")}</span>}
      </summary>
      {isOpen && calls.map((call, at) => <Exchange key={at} call={call} title={calls.length > 1 ? `Call ${at + 1}` : ""} />)}
    </details>
  );
}

function Exchange({ call, title }: { call: HelperCall; title: string }) {
  const facts = [
    title,
    call.agent,
    formatMs(call.duration_ms),
    call.tokens ? `${formatNumber(call.tokens)} tokens` : "",
    typeof call.cost_usd === "number" ? formatCost(call.cost_usd) : "",
  ].filter(Boolean);
  return (
    <div class="call">
      <p class="turn-facts">
        {facts.map((fact) => (
          <span key={fact}>
            <Line text={fact} />
          </span>
        ))}
      </p>
      {(call.sent ?? []).map((message, at) => (
        <div class="part" key={at}>
          <p class="label">Sent{message.role === "user" ? "" : ` (${message.role})`}</p>
          <div class="sent" role="group" aria-label={`Sent to ${call.agent}`} tabIndex={0}>
            <TextBlock text={message.text} />
          </div>
        </div>
      ))}
      {call.metadata && (
        <div class="part">
          <p class="label">Metadata</p>
          <Readable text={call.metadata} label="Metadata" />
        </div>
      )}
      <div class="part">
        <p class="label">Answered</p>
        {call.answer ? <Readable text={call.answer} label={`Answer of ${call.agent}`} /> : <p class="muted">no answer</p>}
      </div>
      {call.error && (
        <p class="turn-error">
          <Line text={call.error} room={1000} />
        </p>
      )}
    </div>
  );
}
