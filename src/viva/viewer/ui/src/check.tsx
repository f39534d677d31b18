// One verdict: what was claimed, whether it held, and why not: expected and actual as a diff, a judge's reasons and quotes.
import type { Assertion, Quote, Status, Trial } from "./data";
import { diff, type Piece } from "./diff";
import { asText, Line, quoteKey, Said, Value, visible, type Mark } from "./said";
import { Sign } from "./signs";

export function labelOf(check: Assertion): string {
  return check.label ?? check.type ?? "check";
}

export function verdictOf(check: Assertion): Status {
  return check.passed === true ? "passed" : check.passed === false ? "failed" : "error";
}

/** A check's place on the screen, and the way to it. */
export interface Placed {
  id: string;
  link: { href: string; onClick: () => void };
  /** Is it what the address names? */
  here: boolean;
}

interface CardProps {
  check: Assertion;
  title?: string;
  /** Where it is another than the verdict's. */
  status?: Status;
  placed?: Placed | undefined;
}

export function CheckCard({ check, title, status = verdictOf(check), placed }: CardProps) {
  const name = <Line text={title ?? labelOf(check)} room={400} />;
  const compared = "expected" in check && "actual" in check;
  const reason = check.reason && !(compared && check.reason.startsWith("expected ")) ? check.reason : "";
  return (
    <div
      class={`check ${status} ${placed?.here ? "here" : ""}`}
      id={placed?.id}
      tabIndex={placed ? -1 : undefined}
      role="group"
      aria-label={`${title ?? labelOf(check)}: ${status}`}
    >
      <p class="claim">
        <Sign status={status} size={14} />
        <span>
          <b>{placed ? <a {...placed.link}>{name}</a> : name}</b>
          {typeof check.score === "number" && <span class="number">score {check.score.toFixed(2)}</span>}
          {check.message && (
            <span class="message">
              <Line text={check.message} room={600} />
            </span>
          )}
        </span>
      </p>
      {reason && (
        <div class="reason">
          <Said text={reason} />
        </div>
      )}
      {compared && check.passed !== true ? (
        <Compared expected={check.expected} actual={check.actual} />
      ) : (
        "expected" in check && check.passed !== true && <Alone label="expected" value={check.expected} />
      )}
      {(check.evidence ?? []).length > 0 && <Quotes quotes={check.evidence ?? []} />}
      {(check.suggestions ?? []).length > 0 && (
        <ul class="suggestions" aria-label="Suggestions">
          {(check.suggestions ?? []).map((each, at) => (
            <li key={at}>
              <Line text={String(each)} room={1000} />
            </li>
          ))}
        </ul>
      )}
    </div>
  );
}

/** Texts that share less than this are read faster as they are than as a diff; so are long ones. */
const SHARED = 0.3;
const ROOM = 4000;

function Compared({ expected, actual }: { expected: unknown; actual: unknown }) {
  const [before, after] = [asText(expected), asText(actual)];
  const pieces = before.length < ROOM && after.length < ROOM ? diff(before, after) : null;
  const same = pieces?.reduce((sum, piece) => sum + (piece.kind === "same" ? worded(piece.text) : 0), 0) ?? 0;
  const alike = pieces !== null && same > 0 && same >= SHARED * Math.max(worded(before), worded(after));
  return (
    <dl class="compared">
      <dt>expected</dt>
      <dd>{alike ? <Pieces pieces={pieces} without="added" /> : <Value value={before} label="expected" />}</dd>
      <dt>actual</dt>
      <dd>{alike ? <Pieces pieces={pieces} without="removed" /> : <Value value={after} label="actual" />}</dd>
    </dl>
  );
}

/** How much of a text is words and numbers: two texts that share but brackets and blanks have nothing in common. */
function worded(text: string): number {
  return text.match(/[\p{L}\p{N}]/gu)?.length ?? 0;
}

function Alone({ label, value }: { label: string; value: unknown }) {
  return (
    <dl class="compared">
      <dt>{label}</dt>
      <dd>
        <Value value={value} label={label} />
      </dd>
    </dl>
  );
}

function Pieces({ pieces, without }: { pieces: Piece[]; without: Piece["kind"] }) {
  return (
    <div class="said" dir="auto">
      {pieces
        .filter((piece) => piece.kind !== without)
        .map((piece, at) =>
          piece.kind === "same" ? (
            visible(piece.text)
          ) : piece.kind === "removed" ? (
            <del key={at}>{visible(piece.text)}</del>
          ) : (
            <ins key={at}>{visible(piece.text)}</ins>
          ),
        )}
    </div>
  );
}

function Quotes({ quotes }: { quotes: Quote[] }) {
  return (
    <ul class="quotes" aria-label="Quotes">
      {quotes.map((each, at) => (
        <li key={at}>
          <button type="button" class="link" onClick={() => show(each)}>
            {each.turn ? `turn ${each.turn}` : "before"}
          </button>{" "}
          <q>
            <Line text={each.quote} />
          </q>
        </li>
      ))}
    </ul>
  );
}

/** Goes to a quote where it stands in the conversation. */
function show({ turn, quote }: Quote): void {
  const place = document.getElementById(`turn-${turn}`);
  const mark = place?.querySelector<HTMLElement>(`mark[data-quote="${quoteKey(quote)}"]`);
  for (const each of document.querySelectorAll("mark.found")) each.classList.remove("found");
  mark?.classList.add("found");
  (mark ?? place)?.scrollIntoView({ block: "center" });
}

/** What judges quoted of each turn. */
export function marksIn(trial: Trial): Map<number, Mark[]> {
  const marks = new Map<number, Mark[]>();
  const checks = [
    ...trial.turns.flatMap((turn) => turn.assertions),
    ...trial.final_assertions,
    ...(trial.checkpoints ?? []).flatMap((each) => (each.assertion ? [{ ...each.assertion, passed: each.reached }] : [])),
  ];
  for (const check of checks) {
    for (const { turn, quote } of check.evidence ?? []) {
      const mark = { quote: String(quote), by: labelOf(check), passed: check.passed ?? null };
      marks.set(turn, [...(marks.get(turn) ?? []), mark]);
    }
  }
  return marks;
}
