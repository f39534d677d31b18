// Places of a conversation: scrolling to them, opening folded turns, stepping from one to the next.
import { useEffect } from "preact/hooks";

const OPEN = "viva-open";

/** The number of the turn that holds a place such as `turn-2` or `check-2-1`. */
export function turnOf(place: string): number | null {
  const match = /^(?:turn|check)-(\d+)/.exec(place);
  return match ? Number(match[1]) : null;
}

/** Calls `open` with the number of a turn that has to be in the page. */
export function useOpenTurn(open: (turn: number) => void): void {
  useEffect(() => {
    const listen = (event: Event) => open((event as CustomEvent<number>).detail);
    addEventListener(OPEN, listen);
    return () => removeEventListener(OPEN, listen);
  });
}

/** Scrolls to an element of the case and moves the focus there; `pick` may choose an element inside it. */
export function showPlace(place: string, pick?: (element: HTMLElement) => HTMLElement | null): void {
  const turn = turnOf(place);
  if (turn !== null) dispatchEvent(new CustomEvent(OPEN, { detail: turn }));
  const scroll = () => {
    const element = document.getElementById(place);
    if (element === null) return;
    const inner = pick?.(element);
    (inner ?? element).scrollIntoView({ block: inner || place.startsWith("check-") ? "center" : "start" });
    element.focus({ preventScroll: true });
  };
  scroll();
  requestAnimationFrame(scroll); // after the turn was unfolded
}

const STOPS = { turn: "section.turn", failure: "section.turn.not-passed", tool: "section.turn.uses-tools" } as const;

/** Goes to the next or previous turn of a kind, counted from the top of the window. */
export function step(by: 1 | -1, kind: keyof typeof STOPS = "turn"): void {
  const turns = [...document.querySelectorAll<HTMLElement>(STOPS[kind])];
  const tops = turns.map((turn) => turn.getBoundingClientRect().top);
  const focused = kind === "turn" ? -1 : turns.findIndex((turn) => turn === document.activeElement);
  const next = focused >= 0 ? focused + by : by > 0 ? tops.findIndex((top) => top > 110) : tops.findLastIndex((top) => top < 50);
  const turn = turns[next];
  if (turn === undefined) return;
  turn.scrollIntoView({ block: "start" });
  turn.focus({ preventScroll: true });
}
