// The difference of two texts, word by word: the longest common subsequence.

export interface Piece {
  text: string;
  kind: "same" | "removed" | "added";
}

const MAX_CELLS = 1_000_000; // cells of the table

export function diff(before: string, after: string): Piece[] | null {
  const a = splitWords(before);
  const b = splitWords(after);
  let start = 0;
  while (start < a.length && start < b.length && a[start] === b[start]) start++;
  let end = 0;
  while (end < a.length - start && end < b.length - start && a[a.length - 1 - end] === b[b.length - 1 - end]) end++;
  const left = a.slice(start, a.length - end);
  const right = b.slice(start, b.length - end);
  if (left.length * right.length > MAX_CELLS) return null;
  const pieces: Piece[] = [];
  add(pieces, "same", a.slice(0, start));
  diffMiddle(left, right, pieces);
  add(pieces, "same", a.slice(a.length - end));
  return pieces;
}

function splitWords(text: string): string[] {
  return text.match(/\s+|[\p{L}\p{N}_]+|[^\s\p{L}\p{N}_]/gu) ?? [];
}

function diffMiddle(left: string[], right: string[], pieces: Piece[]): void {
  const width = right.length + 1;
  const table = new Uint32Array((left.length + 1) * width);
  for (let i = left.length - 1; i >= 0; i--) {
    for (let j = right.length - 1; j >= 0; j--) {
      const at = i * width + j;
      table[at] =
        left[i] === right[j]
          ? (table[at + width + 1] ?? 0) + 1
          : Math.max(table[at + width] ?? 0, table[at + 1] ?? 0);
    }
  }
  let i = 0;
  let j = 0;
  while (i < left.length && j < right.length) {
    const at = i * width + j;
    if (left[i] === right[j]) {
      add(pieces, "same", [left[i] ?? ""]);
      i++;
      j++;
    } else if ((table[at + width] ?? 0) >= (table[at + 1] ?? 0)) {
      add(pieces, "removed", [left[i++] ?? ""]);
    } else {
      add(pieces, "added", [right[j++] ?? ""]);
    }
  }
  add(pieces, "removed", left.slice(i));
  add(pieces, "added", right.slice(j));
}

function add(pieces: Piece[], kind: Piece["kind"], texts: string[]): void {
  if (texts.length === 0) return;
  const last = pieces[pieces.length - 1];
  if (last !== undefined && last.kind === kind) last.text += texts.join("");
  else pieces.push({ kind, text: texts.join("") });
}
