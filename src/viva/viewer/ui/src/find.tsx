// Finds words inside the open case, marks them, and goes from one to the next.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import type { Trial } from "./data";
import { splitWords } from "./filters";
import { listTexts } from "./search";

const MAX_HITS = 2000;

/** The turns of a trial that have one of the words; they must not be folded. */
export function findTurns(trial: Trial, text: string): Set<number> {
  const words = splitWords(text);
  const turns = new Set<number>();
  if (words.length === 0) return turns;
  for (const { turn, text: found } of listTexts(trial)) {
    const lower = found.toLowerCase();
    if (words.some((word) => lower.includes(word))) turns.add(turn);
  }
  return turns;
}

interface Props {
  text: string;
  change: (text: string) => void;
  /** Changes with the trial and with what is unfolded: the page is searched again. */
  version: string;
}

export function FindBar({ text, change, version }: Props) {
  const words = useMemo(() => splitWords(text), [text]);
  const [hits, setHits] = useState<Range[]>([]);
  const [at, setAt] = useState(-1);
  const jumped = useRef("");
  useEffect(() => {
    const root = document.getElementById("trial");
    if (root === null || words.length === 0) {
      setHits([]);
      mark([], -1);
      return;
    }
    let timer: ReturnType<typeof setTimeout> | undefined;
    const search = () => {
      timer = undefined;
      const found = findRanges(root, words);
      setHits(found);
      // The first match is shown once for each text and trial.
      const key = `${version} ${text}`;
      if (found.length && jumped.current !== key) {
        jumped.current = key;
        go(found, 0, setAt);
      } else mark(found, -1);
    };
    const watch = new MutationObserver(() => (timer ??= setTimeout(search, 100)));
    watch.observe(root, { childList: true, subtree: true });
    search();
    return () => {
      watch.disconnect();
      clearTimeout(timer);
      mark([], -1);
    };
  }, [words, version]);
  const move = (by: number) => hits.length && go(hits, (at + by + hits.length) % hits.length, setAt);
  return (
    <div class="find" role="search" aria-label="Find in this case">
      <input
        type="search"
        id="find"
        placeholder="Find in this case  ( / )"
        aria-label="Find in this case"
        value={text}
        onInput={(event) => change(event.currentTarget.value)}
        onKeyDown={(event) => {
          if (event.key === "Enter") move(event.shiftKey ? -1 : 1);
          if (event.key === "Escape") event.currentTarget.blur();
        }}
      />
      {words.length > 0 && (
        <>
          <span role="status" class="found" id="find-count">
            {hits.length === 0 ? "not found" : `${at >= 0 ? `${at + 1} of ` : ""}${hits.length}${hits.length === MAX_HITS ? "+" : ""}`}
          </span>
          <button type="button" class="button small" id="find-next" disabled={hits.length === 0} onClick={() => move(1)}>
            Next match
          </button>
        </>
      )}
    </div>
  );
}

function findRanges(root: HTMLElement, words: string[]): Range[] {
  const ranges: Range[] = [];
  const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node !== null && ranges.length < MAX_HITS; node = walker.nextNode()) {
    const text = (node.nodeValue ?? "").toLowerCase();
    if (text.length !== (node.nodeValue ?? "").length) continue; // a letter that grows in lower case: positions would be wrong
    for (const word of words) {
      for (let found = text.indexOf(word); found >= 0 && ranges.length < MAX_HITS; found = text.indexOf(word, found + word.length)) {
        const range = document.createRange();
        range.setStart(node, found);
        range.setEnd(node, found + word.length);
        ranges.push(range);
      }
    }
  }
  return ranges.sort((a, b) => a.compareBoundaryPoints(Range.START_TO_START, b));
}

/** Highlights ranges without changing the page. Older browsers only scroll. */
function mark(ranges: Range[], current: number): void {
  if (!("highlights" in CSS)) return;
  CSS.highlights.set("find", new Highlight(...ranges));
  const one = ranges[current];
  CSS.highlights.set("find-current", one ? new Highlight(one) : new Highlight());
}

function go(ranges: Range[], at: number, setAt: (at: number) => void): void {
  const range = ranges[at];
  const element = range?.startContainer.parentElement;
  for (let each = element?.closest("details") ?? null; each !== null; each = each.parentElement?.closest("details") ?? null) each.open = true;
  element?.scrollIntoView({ block: "center" });
  mark(ranges, at);
  setAt(at);
}
