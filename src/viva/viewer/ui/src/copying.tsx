// Things to take away: what was said, as a case of its own; and any other text.
import { useRef, useState } from "preact/hooks";
import type { Assertion, Trial } from "./data";

/** What a report adds to a claim; all else is as it was written. */
const ADDED = new Set(["label", "passed", "reason", "score", "expected", "actual", "evidence", "suggestions", "live"]);

/** Claims as a file can hold them. A script's own are code, and a return schema is its agent's: no case can say them. */
function written(checks: Assertion[], trial: Trial): Record<string, unknown>[] {
  const said = checks.filter(({ type }) => (trial.suite.startsWith("scripts:") ? type === "agent" : type !== "return_schema"));
  return said.map((check) => Object.fromEntries(Object.entries(check).filter(([key]) => !ADDED.has(key))));
}

/** What was said, and what was still to be said, as a static case in one line. A checkpoint that was reached is asked of the turn that reached it. */
export function asCase(trial: Trial): string {
  const checkpoints = trial.checkpoints ?? [];
  const turns = trial.turns.map((turn) => {
    const reached = checkpoints.filter((each) => each.reached && each.turn === turn.turn && each.assertion);
    const assertions = written([...turn.assertions, ...reached.map((each) => each.assertion as Assertion)], trial);
    return {
      input: turn.input,
      ...(turn.attachments?.length ? { attachments: turn.attachments } : {}),
      ...(turn.options ? { options: turn.options } : {}),
      ...(assertions.length ? { assertions } : {}),
    };
  });
  const before = (trial.history ?? []).map(({ role, content, name, tool_call_id }) => ({ role, content, name, tool_call_id }));
  const [first, ...rest] = turns;
  const opening = first && before.length ? [{ ...first, input: [...before, { role: "user", content: first.input }] }, ...rest] : turns;
  const missing = checkpoints.filter((each) => !each.reached && each.required && each.assertion);
  const finals = written([...trial.final_assertions, ...missing.map((each) => each.assertion as Assertion)], trial);
  return JSON.stringify({
    id: trial.id,
    ...(trial.name !== trial.id ? { name: trial.name } : {}),
    ...(trial.tags?.length ? { tags: trial.tags } : {}),
    ...(trial.options ? { options: trial.options } : {}),
    ...(trial.metadata ? { metadata: trial.metadata } : {}),
    turns: [...opening, ...(trial.turns_not_run ?? []).map((input) => ({ input }))],
    ...(finals.length ? { final_assertions: finals } : {}),
  });
}

export function Copy({ id, label, text }: { id: string; label: string; text: () => string }) {
  const [said, setSaid] = useState("");
  const timer = useRef<ReturnType<typeof setTimeout> | undefined>(undefined);
  const copy = async () => {
    const done = await toClipboard(text());
    setSaid(done ? "Copied" : "The browser does not allow it");
    clearTimeout(timer.current);
    timer.current = setTimeout(() => setSaid(""), 2000);
  };
  return (
    <button type="button" class="button" id={id} onClick={copy}>
      <span aria-live="polite">{said || label}</span>
    </button>
  );
}

async function toClipboard(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const field = document.createElement("textarea"); // pages from disk may have no clipboard of their own
    field.value = text;
    document.body.append(field);
    field.select();
    const done = document.execCommand("copy");
    field.remove();
    return done;
  }
}
