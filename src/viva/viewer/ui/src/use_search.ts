// The full-text search of a run, as the reader types.
import { useEffect, useState } from "preact/hooks";
import { splitWords } from "./filters";
import type { Hit } from "./search";
import type { Source } from "./source";

export interface Search {
  /** The cases with the words, with their first places. */
  found: ReadonlyMap<number, Hit[]>;
  isBusy: boolean;
}

const NOTHING: ReadonlyMap<number, Hit[]> = new Map();
const WAIT_MS = 150;

export function useSearch(source: Source, run: string, text: string): Search {
  const [result, setResult] = useState<{ text: string; found: ReadonlyMap<number, Hit[]> }>({ text: "", found: NOTHING });
  const words = splitWords(text).join(" ");
  useEffect(() => {
    if (!words) return;
    const stop = new AbortController();
    const timer = setTimeout(() => {
      source.search(run, text, stop.signal).then(
        (found) => stop.signal.aborted || setResult({ text: words, found }),
        () => stop.signal.aborted || setResult({ text: words, found: NOTHING }),
      );
    }, WAIT_MS);
    return () => {
      stop.abort();
      clearTimeout(timer);
    };
  }, [source, run, words]);
  if (!words) return { found: NOTHING, isBusy: false };
  return { found: result.found, isBusy: result.text !== words };
}
