// Things to take away: what was said, as a case of its own; and any other text.
import { useRef, useState } from "preact/hooks";
import type { Assertion, Trial } from "./data";

/** What a report adds to a claim; all else is as it was written. */
const ADDED = new Set(["label", "passed", "reason", "score", "expected", "actual", "evidence", "suggestions"]);

function written(check: Assertion): Record<string, unknown> {
  return Object.fromEntries(Object.entries(check).filter(([key]) => !ADDED.has(key)));
}

/** What was said, as a static case in one line. A checkpoint that was reached is asked of the turn that reached it. */
export function asCase(trial: Trial): string {
  const checkpoints = trial.checkpoints ?? [];
  const turns = trial.turns.map((turn) => {
    const reached = checkpoints.filter((each) => each.reached && each.turn === turn.turn && each.assertion);
    const assertions = [...turn.assertions, ...reached.map((each) => each.assertion as Assertion)].map(written);
    return {
      input: turn.input,
      ...(turn.attachments?.length ? { attachments: turn.attachments } : {}),
      ...(assertions.length ? { assertions } : {}),
    };
  });
  const missing = checkpoints.filter((each) => !each.reached && each.required && each.assertion);
  const finals = [...trial.final_assertions, ...missing.map((each) => each.assertion as Assertion)].map(written);
  return JSON.stringify({
    id: trial.id,
    ...(trial.name !== trial.id ? { name: trial.name } : {}),
    ...(trial.tags?.length ? { tags: trial.tags } : {}),
    turns,
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
