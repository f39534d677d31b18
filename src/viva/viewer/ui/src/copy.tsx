// Buttons that copy a text, and a trial as a case that can be run.
import { useRef, useState } from "preact/hooks";
import type { Assertion, Trial } from "./data";

/** Fields that a result adds to an assertion; all others are as written in the case. */
const RESULT_FIELDS = new Set(["label", "passed", "reason", "score", "expected", "actual", "evidence", "suggestions", "live", "criteria_results", "judge_calls", "duration_ms"]);

/** Assertions that a case file can hold. Those of script tests are code, and a return schema belongs to its agent. */
function selectAssertions(checks: Assertion[], trial: Trial): Record<string, unknown>[] {
  const kept = checks.filter(({ type }) => (trial.suite.startsWith("scripts:") ? type === "judge" : type !== "return_schema"));
  return kept.map((check) => Object.fromEntries(Object.entries(check).filter(([key]) => !RESULT_FIELDS.has(key))));
}

/** A trial as a static case in one line, with the turns that did not run. A reached checkpoint becomes an assertion of its turn. */
export function buildCase(trial: Trial): string {
  const checkpoints = trial.checkpoints ?? [];
  const turns = trial.turns.map((turn) => {
    const reached = checkpoints.filter((each) => each.reached && each.turn === turn.turn && each.assertion);
    const assertions = selectAssertions([...turn.assertions, ...reached.map((each) => each.assertion as Assertion)], trial);
    return {
      input: turn.input,
      ...(turn.attachments?.length ? { attachments: turn.attachments } : {}),
      ...(turn.options ? { options: turn.options } : {}),
      ...(assertions.length ? { assertions } : {}),
    };
  });
  const history = (trial.history ?? []).map(({ role, content, name, tool_call_id }) => ({ role, content, name, tool_call_id }));
  const [first, ...rest] = turns;
  const withHistory = first && history.length ? [{ ...first, input: [...history, { role: "user", content: first.input }] }, ...rest] : turns;
  const missing = checkpoints.filter((each) => !each.reached && each.required && each.assertion);
  const finals = selectAssertions([...trial.final_assertions, ...missing.map((each) => each.assertion as Assertion)], trial);
  return JSON.stringify({
    id: trial.id,
    ...(trial.name !== trial.id ? { name: trial.name } : {}),
    ...(trial.tags?.length ? { tags: trial.tags } : {}),
    ...(trial.options ? { options: trial.options } : {}),
    ...(trial.metadata ? { metadata: trial.metadata } : {}),
    turns: [...withHistory, ...(trial.turns_not_run ?? []).map((input) => ({ input }))],
    ...(finals.length ? { final_assertions: finals } : {}),
  });
}

export function Copy({ id, label, text }: { id: string; label: string; text: () => string }) {
  const [message, setMessage] = useState("");
  const timer = useRef<ReturnType<typeof setTimeout> | undefined>(undefined);
  const copy = async () => {
    const copied = await writeClipboard(text());
    setMessage(copied ? "Copied" : "The browser does not allow copying");
    clearTimeout(timer.current);
    timer.current = setTimeout(() => setMessage(""), 2000);
  };
  return (
    <button type="button" class="button" id={id} onClick={copy}>
      <span aria-live="polite">{message || label}</span>
    </button>
  );
}

async function writeClipboard(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const field = document.createElement("textarea"); // pages opened from disk may have no clipboard access
    field.value = text;
    document.body.append(field);
    field.select();
    const copied = document.execCommand("copy");
    field.remove();
    return copied;
  }
}
