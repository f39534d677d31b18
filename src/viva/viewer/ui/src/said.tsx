// Texts of agents, users and tools. They are text and nothing else: control characters and marks that hide or turn text
// become visible signs, each text is set apart from its surroundings, and a very long one is cut until it is asked for.
import { useState } from "preact/hooks";
import type { ComponentChildren } from "preact";
import { bytes } from "./figures";

const ROOM = 12_000;
const BLOCK = 20_000;

const UNSAFE =
  // C0 but tab and newline, C1, marks that turn or hide text, separators, tags, lone surrogates
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

function sign(found: string): string {
  const code = found.codePointAt(0) ?? 0;
  if (code < 0x20) return String.fromCharCode(0x2400 + code);
  if (code === 0x7f) return "␡";
  return `⟦${NAMES[code] ?? `U+${code.toString(16).toUpperCase().padStart(4, "0")}`}⟧`;
}

export function visible(text: string): string {
  return text.replace(/\r\n/g, "\n").replace(UNSAFE, sign);
}

/** One line of somebody else's text, set apart from what stands around it. */
export function Line({ text, room = 300 }: { text: string; room?: number }) {
  const line = text.length > room ? `${text.slice(0, room)}…` : text;
  return <bdi>{visible(line.replace(/\s+/g, " "))}</bdi>;
}

export interface Mark {
  quote: string;
  /** Who quotes it, and to which end. */
  by: string;
  passed: boolean | null;
}

/** A text of any length, with what judges quoted of it marked. */
export function Said({ text, marks = [], label }: { text: string; marks?: Mark[]; label?: string }) {
  const [whole, setWhole] = useState(false);
  const cut = !whole && text.length > ROOM * 1.5;
  const shown = cut ? text.slice(0, ROOM) : text;
  return (
    <div class="said" dir="auto" {...(label ? { role: "group" as const, "aria-label": label } : {})}>
      {blocks(shown).map((block, at) => (
        <div class={shown.length > BLOCK ? "block" : undefined} key={at}>
          {marked(block, marks)}
        </div>
      ))}
      {cut && (
        <p class="more">
          … {bytes(text.length - ROOM)} more{" "}
          <button type="button" class="link" onClick={() => setWhole(true)}>
            Show all
          </button>
        </p>
      )}
    </div>
  );
}

/** Long texts in pieces, so that a browser lays out only those in view. */
function blocks(text: string): string[] {
  if (text.length <= BLOCK) return [text];
  const found: string[] = [];
  let at = 0;
  while (at < text.length) {
    const line = text.lastIndexOf("\n", at + BLOCK);
    const end = at + BLOCK >= text.length ? text.length : line > at + BLOCK / 2 ? line + 1 : at + BLOCK;
    found.push(text.slice(at, end));
    at = end;
  }
  return found;
}

function marked(text: string, marks: Mark[]): ComponentChildren {
  const spans = marks.flatMap((mark) => places(text, mark)).sort((a, b) => a.start - b.start);
  if (spans.length === 0) return visible(text);
  const pieces: ComponentChildren[] = [];
  let at = 0;
  for (const { start, end, mark } of spans) {
    if (start < at) continue; // two judges quote the same words: the first one's mark stands
    pieces.push(visible(text.slice(at, start)));
    pieces.push(
      <mark class={mark.passed === true ? "held" : "missed"} title={`quoted by ${mark.by}`} data-quote={quoteKey(mark.quote)}>
        {visible(text.slice(start, end))}
      </mark>,
    );
    at = end;
  }
  pieces.push(visible(text.slice(at)));
  return pieces;
}

function places(text: string, mark: Mark): { start: number; end: number; mark: Mark }[] {
  const place = placeOf(text, mark.quote);
  return place ? [{ ...place, mark }] : [];
}

/** Where a quote stands: white space and quotation marks may differ, and an ellipsis leaves something out. */
function placeOf(text: string, quote: string): { start: number; end: number } | null {
  const parts = quote.slice(0, 2000).split(/…|\.{3}/).map((part) => part.trim()).filter(Boolean);
  let start = -1;
  let end = 0;
  for (const part of parts) {
    const pattern = partPattern(part);
    pattern.lastIndex = end;
    const found = pattern.exec(text);
    if (found === null) return null;
    if (start < 0) start = found.index;
    end = found.index + found[0].length;
  }
  return start < 0 ? null : { start, end };
}

function partPattern(part: string): RegExp {
  const source = part
    .replace(/[.*+?^${}()|[\]\\]/g, "\\$&")
    .replace(/\s+/g, "\\s+")
    .replace(/["“”„«»]/g, '["“”„«»]')
    .replace(/['‘’‚]/g, "['‘’‚]");
  return new RegExp(source, "giu");
}

/** A short name for a quote that the page can find its mark by. */
export function quoteKey(quote: string): string {
  let hash = 0;
  for (const letter of quote.trim()) hash = (hash * 31 + (letter.codePointAt(0) ?? 0)) | 0;
  return `q${(hash >>> 0).toString(36)}`;
}

/** A value the way a person would write it: texts as they are, all else as indented JSON. */
export function asText(value: unknown): string {
  return typeof value === "string" ? value : (JSON.stringify(value, null, 2) ?? "null");
}

/** A value in a box of its own; one that is too high for it scrolls, by keyboard too. */
export function Value({ value, label }: { value: unknown; label: string }) {
  const text = asText(value);
  const high = text.length > 700 || text.split("\n", 16).length > 15;
  return (
    <div class="value" role="group" aria-label={label} {...(high ? { tabIndex: 0 } : {})}>
      <Said text={text} />
    </div>
  );
}

/** A value in one line: `{amount: 3500, type: "travel"}`. */
export function brief(value: unknown, room = 90): string {
  if (value === undefined || value === null) return "";
  const text = (JSON.stringify(value) ?? "").slice(0, room * 2).replace(/"([A-Za-z_$][\w$]*)":/g, "$1: ").replace(/,(?=\S)/g, ", ");
  return text.length > room ? `${text.slice(0, room - 1)}…` : text;
}
