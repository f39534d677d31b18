// What happened when: turns, model calls, tools, simulator, judges and checks on one time axis, as they were measured.
import { useMemo, useState } from "preact/hooks";
import type { Assertion, HelperCall, Trial, Turn } from "./data";
import { getLabel } from "./label";
import { formatCost, formatCount, formatMs } from "./format";
import { showPlace } from "./places";
import { escapeControls, Line } from "./text";

type Kind = "agent" | "model" | "tool" | "simulator" | "judge" | "check";

export interface Bar {
  kind: Kind;
  name: string;
  start: number;
  duration: number;
  cost: number | null;
  turn: number;
  /** The element that it belongs to. */
  place: string;
  inner: boolean;
}

const NAMES: Record<Kind, string> = { agent: "Agent", model: "Model calls", tool: "Tools", simulator: "Simulator", judge: "Judge", check: "Checks" };
const ORDERS = { time: "In order", slow: "Longest first", costly: "Most expensive first" } as const;
const MANY = 150;

/** The bars of a trial. A replay has the durations of the recorded calls, so its turns are placed one after the other. */
export function listBars(trial: Trial): Bar[] {
  const bars: Bar[] = [];
  const calls = trial.helper_calls ?? [];
  const owners = findOwners(trial);
  let clock = 0;
  let previous: Turn | null = null;
  const isMeasured = trial.turns.every((turn) => {
    const start = turn.start_ms ?? 0;
    const isLater = previous === null || start >= (previous.start_ms ?? 0) + previous.duration_ms - 5;
    previous = turn;
    return isLater;
  });
  const addCall = (call: HelperCall, at: number) => {
    const owner = owners.get(at + 1);
    const kind = call.role === "judge" ? "judge" : "simulator";
    const place = owner?.place ?? (kind === "simulator" ? `turn-${call.turn + 1}` : `turn-${call.turn}`);
    const start = isMeasured ? call.start_ms : clock;
    clock = Math.max(clock, start + call.duration_ms);
    bars.push({ kind, name: call.criteria || owner?.label || call.agent, start, duration: call.duration_ms, cost: call.cost_usd ?? null, turn: call.turn, place, inner: false });
  };
  const addCheck = (check: Assertion, place: string, turn: number) => {
    if (typeof check.duration_ms !== "number" || (check.judge_calls ?? []).length > 0) return;
    bars.push({ kind: "check", name: getLabel(check), start: clock, duration: check.duration_ms, cost: null, turn, place, inner: false });
    clock += check.duration_ms;
  };
  const rest = calls.map((call, at) => ({ call, at }));
  for (const turn of trial.turns) {
    while (rest[0] && (rest[0].call.role === "simulator" ? rest[0].call.turn < turn.turn : rest[0].call.turn < turn.turn)) {
      const { call, at } = rest.shift() as { call: HelperCall; at: number };
      addCall(call, at);
    }
    const start = isMeasured && turn.start_ms !== undefined ? turn.start_ms : clock;
    bars.push({ kind: "agent", name: `Turn ${turn.turn}`, start, duration: turn.duration_ms, cost: turn.cost_usd ?? null, turn: turn.turn, place: `turn-${turn.turn}`, inner: false });
    for (const step of turn.steps ?? []) {
      bars.push({ kind: step.kind, name: step.name, start: start + step.start_ms, duration: step.duration_ms, cost: step.cost_usd ?? null, turn: turn.turn, place: `turn-${turn.turn}`, inner: true });
    }
    clock = Math.max(clock, start + turn.duration_ms);
    turn.assertions.forEach((check, n) => addCheck(check, `check-${turn.turn}-${n + 1}`, turn.turn));
  }
  for (const { call, at } of rest) addCall(call, at);
  trial.final_assertions.forEach((check, n) => addCheck(check, `check-end-${n + 1}`, trial.turns.length));
  return bars;
}

/** The check that each call of a judge belongs to. */
function findOwners(trial: Trial): Map<number, { place: string; label: string }> {
  const owners = new Map<number, { place: string; label: string }>();
  const add = (check: Assertion | null | undefined, place: string) => {
    for (const number of check?.judge_calls ?? []) owners.set(number, { place, label: getLabel(check ?? {}) });
  };
  for (const turn of trial.turns) turn.assertions.forEach((check, n) => add(check, `check-${turn.turn}-${n + 1}`));
  trial.final_assertions.forEach((check, n) => add(check, `check-end-${n + 1}`));
  (trial.checkpoints ?? []).forEach((each, n) => add(each.assertion, each.reached ? `turn-${each.turn}` : `check-checkpoint-${n + 1}`));
  return owners;
}

export function Waterfall({ trial }: { trial: Trial }) {
  const bars = useMemo(() => listBars(trial), [trial]);
  const [isOpen, setOpen] = useState(false);
  const [order, setOrder] = useState<keyof typeof ORDERS>("time");
  const [isWhole, setWhole] = useState(false);
  if (bars.length === 0) return null;
  const end = bars.reduce((latest, bar) => Math.max(latest, bar.start + bar.duration), 1);
  const ordered =
    order === "time" ? bars : bars.filter((bar) => !bar.inner || order === "slow").sort((a, b) => (order === "slow" ? b.duration - a.duration : (b.cost ?? -1) - (a.cost ?? -1)));
  const shown = isWhole ? ordered : ordered.slice(0, MANY);
  return (
    <details class="waterfall" id="waterfall" onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>
        <h2>Timeline</h2> <Totals bars={bars} />
      </summary>
      {isOpen && (
        <>
          <p class="legend">
            {(Object.keys(NAMES) as Kind[])
              .filter((kind) => bars.some((bar) => bar.kind === kind))
              .map((kind) => (
                <span key={kind}>
                  <i class={kind} aria-hidden="true" /> {NAMES[kind]}
                </span>
              ))}
            <label>
              <span class="visually-hidden">Order</span>
              <select id="waterfall-order" value={order} onChange={(event) => setOrder(event.currentTarget.value as keyof typeof ORDERS)}>
                {Object.entries(ORDERS).map(([value, label]) => (
                  <option key={value} value={value}>
                    {label}
                  </option>
                ))}
              </select>
            </label>
          </p>
          <ol class="bars">
            {shown.map((bar, at) => (
              <li key={at} class={bar.inner ? "inner" : ""}>
                <button type="button" onClick={() => showPlace(bar.place)} title={escapeControls(bar.name)}>
                  <span class="name">
                    <Line text={bar.kind === "agent" || bar.inner ? bar.name : `${NAMES[bar.kind]}: ${bar.name}`} room={120} />
                  </span>
                  <span class="lane" aria-hidden="true">
                    <i class={bar.kind} style={{ left: `${(bar.start / end) * 100}%`, width: `${Math.max(0.3, (bar.duration / end) * 100)}%` }} />
                  </span>
                  <span class="time">{formatMs(bar.duration)}</span>
                  <span class="cost">{bar.cost === null ? "" : formatCost(bar.cost)}</span>
                </button>
              </li>
            ))}
          </ol>
          {ordered.length > shown.length && (
            <button type="button" class="link" onClick={() => setWhole(true)}>
              Show all {formatCount(ordered.length, "step")}
            </button>
          )}
        </>
      )}
    </details>
  );
}

function Totals({ bars }: { bars: Bar[] }) {
  const sums = (Object.keys(NAMES) as Kind[]).flatMap((kind) => {
    const own = bars.filter((bar) => bar.kind === kind);
    const time = own.reduce((sum, bar) => sum + bar.duration, 0);
    const costs = own.flatMap((bar) => bar.cost ?? []);
    const cost = costs.length && kind !== "model" ? ` ${formatCost(costs.reduce((sum, each) => sum + each, 0))}` : "";
    return own.length ? [`${NAMES[kind].toLowerCase()} ${formatMs(time)}${cost}`] : [];
  });
  return <span class="muted">{sums.join(" · ")}</span>;
}
