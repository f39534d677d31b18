// Two texts as one, with the words that were removed and added.
import { diff } from "./diff";
import { escapeControls } from "./text";

const MAX_LENGTH = 50_000;
const LEAST_SAME = 0.3; // texts with less in common are shown one after the other

export function WordDiff({ before, after }: { before: string; after: string }) {
  const pieces = before.length < MAX_LENGTH && after.length < MAX_LENGTH ? diff(before, after) : null;
  if (pieces === null) return <p class="muted">The texts are too long to compare word by word.</p>;
  const same = pieces.reduce((sum, piece) => sum + (piece.kind === "same" ? 2 * piece.text.trim().length : 0), 0);
  if (same < LEAST_SAME * (before.length + after.length)) {
    return (
      <p class="word-diff">
        <del>{escapeControls(before)}</del>
        {"\n"}
        <ins>{escapeControls(after)}</ins>
      </p>
    );
  }
  return (
    <p class="word-diff">
      {pieces.map((piece, at) => {
        const text = escapeControls(piece.text);
        if (piece.kind === "same") return <span key={at}>{text}</span>;
        return piece.kind === "removed" ? <del key={at}>{text}</del> : <ins key={at}>{text}</ins>;
      })}
    </p>
  );
}
