// The quotes of judges: a list with links to the marks in the conversation.
import type { Quote, Trial } from "./data";
import { getLabel } from "./label";
import { showPlace } from "./places";
import { Line, quoteKey, type Mark } from "./text";

export function Quotes({ quotes }: { quotes: Quote[] }) {
  return (
    <ul class="quotes" aria-label="Quotes">
      {quotes.map((each, at) => (
        <li key={at}>
          <button type="button" class="link" onClick={() => show(each)}>
            {each.turn ? `turn ${each.turn}` : "history"}
          </button>{" "}
          <q>
            <Line text={each.quote} />
          </q>
        </li>
      ))}
    </ul>
  );
}

/** Scrolls to a quote in the conversation. */
function show({ turn, quote }: Quote): void {
  showPlace(`turn-${turn}`, (place) => {
    const mark = place.querySelector<HTMLElement>(`mark[data-quote="${quoteKey(quote)}"]`);
    for (const each of document.querySelectorAll("mark.found")) each.classList.remove("found");
    mark?.classList.add("found");
    return mark;
  });
}

/** The quotes of judges, by turn. Those of a rubric have the verdict of their own criterion. */
export function collectQuotes(trial: Trial): Map<number, Mark[]> {
  const marks = new Map<number, Mark[]>();
  const add = (quotes: Quote[] | undefined, source: string, passed: boolean | null) => {
    for (const { turn, quote } of quotes ?? []) {
      marks.set(turn, [...(marks.get(turn) ?? []), { quote: String(quote), source, passed }]);
    }
  };
  const checks = [
    ...trial.turns.flatMap((turn) => turn.assertions),
    ...trial.final_assertions,
    ...(trial.checkpoints ?? []).flatMap((each) => (each.assertion ? [{ ...each.assertion, passed: each.reached }] : [])),
  ];
  for (const check of checks) {
    const rows = check.criteria_results ?? [];
    for (const row of rows) add(row.evidence, row.criterion, row.passed);
    if (rows.length === 0) add(check.evidence, getLabel(check), check.passed ?? null);
  }
  return marks;
}
