// Full-text search over transcripts, tool arguments and reasons. `viva view` does the same on the server.
import type { Assertion, CaseTrials, Trial } from "./data";

/** Where a word was found: an element of the case, what it is, and the words around it. */
export interface Hit {
  trial: number;
  place: string;
  kind: string;
  snippet: string;
}

/** The cases with the words, by index. Hits are given for the first ones. */
export interface Found {
  cases: Map<number, Hit[]>;
}

export interface SearchText {
  turn: number;
  place: string;
  kind: string;
  text: string;
}

/** The texts of a trial that are searched, with their places. The same list is in viva/viewer/search.py. */
export function* listTexts(trial: Trial): Generator<SearchText> {
  const text = (turn: number, place: string, kind: string, value: unknown): SearchText => ({ turn, place, kind, text: toText(value) });
  for (const message of trial.history ?? []) yield text(0, "turn-0", "history", message.content);
  for (const turn of trial.turns) {
    const [n, place] = [turn.turn, `turn-${turn.turn}`];
    yield text(n, place, "user", turn.input);
    yield text(n, place, "reply", turn.output);
    if (turn.data !== undefined && turn.data !== null) yield text(n, place, "data", turn.data);
    if (turn.error) yield text(n, place, "error", turn.error);
    for (const call of turn.tool_calls) {
      yield text(n, place, `tool ${call.name}`, [call.name, call.args, call.result ?? "", call.error ?? ""]);
    }
    for (const [at, check] of turn.assertions.entries()) yield text(n, `check-${n}-${at + 1}`, "check", checkTexts(check));
  }
  const last = trial.turns.length;
  for (const [at, check] of trial.final_assertions.entries()) yield text(last, `check-end-${at + 1}`, "check", checkTexts(check));
  for (const each of trial.checkpoints ?? []) yield text(last, "checkpoints", "checkpoint", [each.id, each.description, each.reason ?? ""]);
  if (trial.error) yield text(last, "why", "error", trial.error);
  for (const each of trial.tracebacks ?? []) yield text(last, "why", "traceback", [each.error, each.printed ?? ""]);
}

function checkTexts(check: Assertion): string[] {
  return [check.label ?? check.type ?? "", check.message ?? "", check.reason ?? ""];
}

function toText(value: unknown): string {
  if (typeof value === "string") return value;
  if (Array.isArray(value)) return value.map(toText).join(" ");
  return JSON.stringify(value) ?? "";
}

const SNIPPET = 70;
const MAX_HITS = 3;

/** The hits of a case: null if one of the words is in none of its texts. */
export function searchCase({ trials }: CaseTrials, words: string[]): Hit[] | null {
  const hits: Hit[] = [];
  const missing = new Set(words);
  for (const trial of trials) {
    for (const { place, kind, text } of listTexts(trial)) {
      const lower = text.toLowerCase();
      for (const word of words) {
        const at = lower.indexOf(word);
        if (at < 0) continue;
        missing.delete(word);
        if (hits.length < MAX_HITS && !hits.some((hit) => hit.place === place && hit.kind === kind)) {
          hits.push({ trial: trial.trial, place, kind, snippet: cutSnippet(text, at, word.length) });
        }
      }
    }
  }
  return missing.size ? null : hits;
}

function cutSnippet(text: string, at: number, length: number): string {
  const start = Math.max(0, at - SNIPPET / 2);
  const end = at + length + SNIPPET;
  return `${start > 0 ? "…" : ""}${text.slice(start, end).replace(/\s+/g, " ")}${end < text.length ? "…" : ""}`;
}

/** A word as it stands inside JSON, in lower case: what a record without it cannot have. */
export function encodeWord(word: string): string {
  return JSON.stringify(word).slice(1, -1).toLowerCase();
}
