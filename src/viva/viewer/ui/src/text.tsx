// Texts of agents, users and tools, shown as plain text: control characters and marks that hide or reorder text become
// visible, direction marks cannot affect the text around, and long texts are cut until the reader expands them.
import { useState } from "preact/hooks";
import type { ComponentChildren } from "preact";
import { formatLength } from "./format";

const MAX_LENGTH = 12_000;
const BLOCK_LENGTH = 20_000;

const UNSAFE =
  // C0 but tab and newline, C1, marks that reorder or hide text, separators, tags, lone surrogates
  /[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\u{e0000}-\u{e007f}\p{Cs}]/gu;

const NAMES: Record<number, string> = {
  0x061c: "ALM",
  0x200b: "ZWSP",
  0x200e: "LRM",
  0x200f: "RLM",
  0x202a: "LRE",
  0x202b: "RLE",
  0x202c: "PDF",
  0x202d: "LRO",
  0x202e: "RLO",
  0x2060: "WJ",
  0x2066: "LRI",
  0x2067: "RLI",
  0x2068: "FSI",
  0x2069: "PDI",
  0xfeff: "BOM",
};

function escapeCharacter(character: string): string {
  const code = character.codePointAt(0) ?? 0;
  if (code < 0x20) return String.fromCharCode(0x2400 + code);
  if (code === 0x7f) return "␡";
  return `⟦${NAMES[code] ?? `U+${code.toString(16).toUpperCase().padStart(4, "0")}`}⟧`;
}

export function escapeControls(text: string): string {
  return text.replace(/\r\n/g, "\n").replace(UNSAFE, escapeCharacter);
}

/** One line of text, isolated from the direction of the text around it. */
export function Line({ text, room = 300 }: { text: string; room?: number }) {
  const line = text.length > room ? `${text.slice(0, room)}…` : text;
  return <bdi>{escapeControls(line.replace(/\s+/g, " "))}</bdi>;
}

export interface Mark {
  quote: string;
  /** The label of the check that quotes it. */
  source: string;
  passed: boolean | null;
}

/** A text of any length, with quotes of judges highlighted. */
export function TextBlock({ text, marks = [], label }: { text: string; marks?: Mark[]; label?: string }) {
  const [isExpanded, setExpanded] = useState(false);
  const cut = !isExpanded && text.length > MAX_LENGTH * 1.5;
  const shown = cut ? text.slice(0, MAX_LENGTH) : text;
  return (
    <div class="text" dir="auto" {...(label ? { role: "group" as const, "aria-label": label } : {})}>
      {blocks(shown).map((block, at) => (
        <div class={shown.length > BLOCK_LENGTH ? "block" : undefined} key={at}>
          {highlightQuotes(block, marks)}
        </div>
      ))}
      {cut && (
        <p class="more">
          … {formatLength(text.length - MAX_LENGTH)} more{" "}
          <button type="button" class="link" onClick={() => setExpanded(true)}>
            Show all
          </button>
        </p>
      )}
    </div>
  );
}

/** Long texts in blocks, so that the browser lays out only those in view. */
function blocks(text: string): string[] {
  if (text.length <= BLOCK_LENGTH) return [text];
  const result: string[] = [];
  let at = 0;
  while (at < text.length) {
    const line = text.lastIndexOf("\n", at + BLOCK_LENGTH);
    const end = at + BLOCK_LENGTH >= text.length ? text.length : line > at + BLOCK_LENGTH / 2 ? line + 1 : at + BLOCK_LENGTH;
    result.push(text.slice(at, end));
    at = end;
  }
  return result;
}

export function highlightQuotes(text: string, marks: Mark[]): ComponentChildren {
  const spans = marks.flatMap((mark) => locateQuote(text, mark)).sort((a, b) => a.start - b.start);
  if (spans.length === 0) return escapeControls(text);
  const pieces: ComponentChildren[] = [];
  let at = 0;
  for (const { start, end, mark } of spans) {
    if (start < at) continue; // two judges quote the same words: the first mark is kept
    pieces.push(escapeControls(text.slice(at, start)));
    pieces.push(
      <mark class={mark.passed === true ? "passed" : "failed"} title={`quoted by ${mark.source}`} data-quote={quoteKey(mark.quote)}>
        {escapeControls(text.slice(start, end))}
      </mark>,
    );
    at = end;
  }
  pieces.push(escapeControls(text.slice(at)));
  return pieces;
}

function locateQuote(text: string, mark: Mark): { start: number; end: number; mark: Mark }[] {
  const range = findQuote(text, mark.quote);
  return range ? [{ ...range, mark }] : [];
}

/** Finds a quote: white space and quotation marks may differ, and an ellipsis stands for omitted text. */
export function findQuote(text: string, quote: string): { start: number; end: number } | null {
  const parts = quote.slice(0, 2000).split(/…|\.{3}/).map((part) => part.trim()).filter(Boolean);
  let start = -1;
  let end = 0;
  for (const part of parts) {
    const pattern = buildPattern(part);
    pattern.lastIndex = end;
    const match = pattern.exec(text);
    if (match === null) return null;
    if (start < 0) start = match.index;
    end = match.index + match[0].length;
  }
  return start < 0 ? null : { start, end };
}

function buildPattern(part: string): RegExp {
  const source = part
    .replace(/[.*+?^${}()|[\]\\]/g, "\\$&")
    .replace(/\s+/g, "\\s+")
    .replace(/["“”„«»]/g, '["“”„«»]')
    .replace(/['‘’‚]/g, "['‘’‚]");
  return new RegExp(source, "giu");
}

/** A short key of a quote, by which the page finds its mark. */
export function quoteKey(quote: string): string {
  let hash = 0;
  for (const letter of quote.trim()) hash = (hash * 31 + (letter.codePointAt(0) ?? 0)) | 0;
  return `q${(hash >>> 0).toString(36)}`;
}

/** A value as text: strings as they are, others as indented JSON. */
export function formatValue(value: unknown): string {
  return typeof value === "string" ? value : (JSON.stringify(value, null, 2) ?? "null");
}

/** A value in a box; a tall one scrolls, also by keyboard. */
export function Value({ value, label }: { value: unknown; label: string }) {
  const text = formatValue(value);
  const high = text.length > 700 || text.split("\n", 16).length > 15;
  return (
    <div class="value" role="group" aria-label={label} {...(high ? { tabIndex: 0 } : {})}>
      <TextBlock text={text} />
    </div>
  );
}

/** A value in one line: `{amount: 3500, type: "travel"}`. */
export function formatInline(value: unknown, room = 90): string {
  if (value === undefined || value === null) return "";
  const text = (JSON.stringify(value) ?? "").slice(0, room * 2).replace(/"([A-Za-z_$][\w$]*)":/g, "$1: ").replace(/,(?=\S)/g, ", ");
  return text.length > room ? `${text.slice(0, room - 1)}…` : text;
}
