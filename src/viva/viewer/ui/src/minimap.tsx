// A long conversation at a glance: one column for each turn, as high as it took long, coloured by its result.
import { useEffect, useState } from "preact/hooks";
import type { Trial } from "./data";
import { showPlace } from "./places";
import { getTurnStatus } from "./turn";

export const LONG = 12;
const HEIGHT = 26;

export function Minimap({ trial }: { trial: Trial }) {
  const turns = trial.turns;
  const [at, setAt] = useState(0);
  useEffect(() => {
    let frame = 0;
    const measure = () => {
      frame = 0;
      const sections = document.querySelectorAll<HTMLElement>("section.turn[id^='turn-']:not(.history)");
      let [low, high] = [0, sections.length - 1];
      while (low < high) {
        const middle = (low + high + 1) >> 1;
        if ((sections[middle] as HTMLElement).getBoundingClientRect().top <= 150) low = middle;
        else high = middle - 1;
      }
      setAt(low);
    };
    const scrolled = () => (frame ||= requestAnimationFrame(measure));
    addEventListener("scroll", scrolled, { passive: true });
    return () => {
      removeEventListener("scroll", scrolled);
      cancelAnimationFrame(frame);
    };
  }, [trial]);
  if (turns.length < LONG) return null;
  const longest = turns.reduce((most, turn) => Math.max(most, turn.duration_ms), 1);
  const failures = turns.filter((turn) => getTurnStatus(turn) !== null).length;
  return (
    <div class="minimap">
      <svg
        viewBox={`0 0 ${turns.length} ${HEIGHT}`}
        preserveAspectRatio="none"
        role="img"
        aria-label={`${turns.length} turns, ${failures} not passed. Keys: n and p for turns, f for failures, t for tools`}
        onClick={(event) => {
          const box = event.currentTarget.getBoundingClientRect();
          const turn = turns[Math.min(turns.length - 1, Math.floor(((event.clientX - box.left) / box.width) * turns.length))];
          if (turn) showPlace(`turn-${turn.turn}`);
        }}
      >
        <rect class="here" x={at} width="1" y="0" height={HEIGHT} />
        {turns.map((turn, n) => {
          const height = 3 + (turn.duration_ms / longest) * (HEIGHT - 9);
          return <rect key={turn.turn} class={getTurnStatus(turn) ?? "passed"} x={n + 0.1} width="0.8" y={HEIGHT - 6 - height} height={height} />;
        })}
        {turns.map((turn, n) => turn.tool_calls.length > 0 && <rect key={`t${turn.turn}`} class="tool" x={n + 0.2} width="0.6" y={HEIGHT - 4} height="3" />)}
      </svg>
    </div>
  );
}
