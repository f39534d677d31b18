// The result of one assertion: its status and reason, expected and actual as a diff, a judge's quotes and suggestions.
import type { Assertion, Status } from "./data";
import { diff, type Piece } from "./diff";
import { formatScore } from "./format";
import { CriteriaRows, JudgeCalls } from "./judge";
import { getLabel, getStatus } from "./label";
import { LabelControl } from "./labels";
import { Quotes } from "./quotes";
import { formatValue, Line, TextBlock, Value, escapeControls } from "./text";
import { StatusIcon } from "./status";

/** Checks that a model decides: people are asked whether it is right. */
const JUDGES = new Set(["judge", "agent", "rubric"]);

export { getLabel, getStatus };
export { collectQuotes } from "./quotes";

/** The id of a check's card and the link to it. */
export interface CheckLink {
  id: string;
  link: { href: string; onClick: () => void };
  /** Does the URL name it? */
  here: boolean;
}

interface CardProps {
  check: Assertion;
  title?: string;
  /** Set where it differs from the check's own status. */
  status?: Status;
  checkLink?: CheckLink | undefined;
}

export function CheckCard({ check, title, status = getStatus(check), checkLink }: CardProps) {
  const name = <Line text={title ?? getLabel(check)} room={400} />;
  const hasBoth = "expected" in check && "actual" in check;
  const rows = check.criteria_results ?? [];
  const given = check.reason && !(hasBoth && check.reason.startsWith("expected ")) ? check.reason : "";
  const reason = rows.length ? given.split("; ", 1)[0] : given; // the rows say the rest
  return (
    <div
      class={`check ${status} ${checkLink?.here ? "here" : ""}`}
      id={checkLink?.id}
      tabIndex={checkLink ? -1 : undefined}
      role="group"
      aria-label={`${title ?? getLabel(check)}: ${status}`}
    >
      <p class="check-head">
        <StatusIcon status={status} size={14} />
        <span>
          <b>{checkLink ? <a {...checkLink.link}>{name}</a> : name}</b>
          {typeof check.score === "number" && <span class="number">score {formatScore(check.score)}</span>}
          {check.message && (
            <span class="message">
              <Line text={check.message} room={600} />
            </span>
          )}
        </span>
      </p>
      {reason && (
        <div class="reason">
          <TextBlock text={reason} />
        </div>
      )}
      {hasBoth && check.passed !== true ? (
        <ExpectedActual expected={check.expected} actual={check.actual} />
      ) : (
        "expected" in check && check.passed !== true && <SingleValue label="expected" value={check.expected} />
      )}
      {rows.length > 0 ? <CriteriaRows rows={rows} /> : (check.evidence ?? []).length > 0 && <Quotes quotes={check.evidence ?? []} />}
      {(check.suggestions ?? []).length > 0 && (
        <ul class="suggestions" aria-label="Suggestions">
          {(check.suggestions ?? []).map((each, at) => (
            <li key={at}>
              <Line text={String(each)} room={1000} />
            </li>
          ))}
        </ul>
      )}
      <JudgeCalls check={check} />
      {checkLink && <LabelControl check={checkLink.id.replace(/^check-/, "")} name={title ?? getLabel(check)} isJudge={JUDGES.has(check.type ?? "")} />}
    </div>
  );
}

/** Texts that share less than this part, or are longer than MAX_LENGTH, are not shown as a diff. */
const MIN_SHARED = 0.3;
const MAX_LENGTH = 4000;

function ExpectedActual({ expected, actual }: { expected: unknown; actual: unknown }) {
  const [before, after] = [formatValue(expected), formatValue(actual)];
  const pieces = before.length < MAX_LENGTH && after.length < MAX_LENGTH ? diff(before, after) : null;
  const same = pieces?.reduce((sum, piece) => sum + (piece.kind === "same" ? countLetters(piece.text) : 0), 0) ?? 0;
  const alike = pieces !== null && same > 0 && same >= MIN_SHARED * Math.max(countLetters(before), countLetters(after));
  return (
    <dl class="compared">
      <dt>expected</dt>
      <dd>{alike ? <Pieces pieces={pieces} without="added" /> : <Value value={before} label="expected" />}</dd>
      <dt>actual</dt>
      <dd>{alike ? <Pieces pieces={pieces} without="removed" /> : <Value value={after} label="actual" />}</dd>
    </dl>
  );
}

/** Counts letters and digits: two texts that share only brackets and blanks have nothing in common. */
function countLetters(text: string): number {
  return text.match(/[\p{L}\p{N}]/gu)?.length ?? 0;
}

function SingleValue({ label, value }: { label: string; value: unknown }) {
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
    <div class="text" dir="auto">
      {pieces
        .filter((piece) => piece.kind !== without)
        .map((piece, at) =>
          piece.kind === "same" ? (
            escapeControls(piece.text)
          ) : piece.kind === "removed" ? (
            <del key={at}>{escapeControls(piece.text)}</del>
          ) : (
            <ins key={at}>{escapeControls(piece.text)}</ins>
          ),
        )}
    </div>
  );
}
