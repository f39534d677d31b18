// A run in progress: how far it is, and the conversations that run now, turn by turn.
import { useEffect, useState } from "preact/hooks";
import type { Turn } from "./data";
import type { LiveRunState, LiveTrial, Progress } from "./live_data";
import type { ServerSource } from "./source";
import { formatCost, formatCount, formatMs, formatNumber } from "./format";
import { TurnView } from "./turn";
import { Line, TextBlock } from "./text";
import "./in_flight.css";

const POLL_MS = 1000;
const MAX_SHOWN = 200;

export interface LiveState {
  state: LiveRunState | null;
  /** When the viewer last answered, if it does not answer now. */
  lostSince: Date | null;
}

/** What a live run says of itself, asked for once a second. When the viewer goes, the last answer stays. */
export function useLiveState(server: ServerSource, id: string): LiveState {
  const [known, setKnown] = useState<LiveState>({ state: null, lostSince: null });
  useEffect(() => {
    let isCurrent = true;
    let answered = new Date();
    const ask = () => {
      if (document.visibilityState !== "visible") return;
      server.live(id).then(
        (state) => {
          answered = new Date();
          if (isCurrent) setKnown((old) => ({ state: state ?? old.state, lostSince: null }));
        },
        () => isCurrent && setKnown((old) => ({ ...old, lostSince: answered })),
      );
    };
    ask();
    const timer = setInterval(ask, POLL_MS);
    return () => {
      isCurrent = false;
      clearInterval(timer);
    };
  }, [server, id]);
  return known;
}

export function LiveProgress({ live, progress }: { live: LiveState; progress: Progress }) {
  const [, tick] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => tick((n) => n + 1), 1000);
    return () => clearInterval(timer);
  }, []);
  return (
    <div class="progress">
      <progress max={Math.max(progress.trials, 1)} value={progress.done ?? 0} aria-label="Finished trials" />
      <span role="status" id="progress">
        {describeProgress(progress, live.lostSince === null).filter((text) => !text.endsWith(" to go")).join(" · ")}
      </span>
      {live.lostSince && <LostNote since={live.lostSince} />}
    </div>
  );
}

/** What is shown stays when the viewer goes, with this note. */
export function LostNote({ since }: { since: Date }) {
  return (
    <p class="lost" role="alert" id="lost">
      The viewer does not answer. This is what it showed at {since.toLocaleTimeString("en-GB")}. The run itself may go on; start the
      viewer again with <code>viva view</code>.
    </p>
  );
}

/** `12 of 40 trials`, `28 to go`, `0.5/s`, `56 s left`, `$0.12`, `8 at once`, `2 workers`. */
export function describeProgress(progress: Progress, isCurrent = true): string[] {
  const { trials, done = 0, earlier = 0 } = progress;
  const elapsed = Math.max(1, Date.now() - new Date(progress.since ?? "").getTime());
  const rate = ((done - earlier) / elapsed) * 1000;
  const left = Math.max(trials - done, 0);
  return [
    `${formatNumber(done)} of ${formatCount(trials, "trial")}`,
    `${formatNumber(left)} to go`,
    ...(isCurrent && rate > 0 ? [`${formatRate(rate)}`, `${formatMs((left / rate) * 1000)} left`] : []),
    ...(typeof progress.cost_usd === "number" ? [formatCost(progress.cost_usd)] : []),
    ...(typeof progress.running === "number" ? [`${formatNumber(progress.running)} running (limit ${formatNumber(progress.limit ?? 0)})`] : []),
    ...(typeof progress.workers === "number" ? [formatCount(progress.workers, "worker")] : []),
  ];
}

function formatRate(rate: number): string {
  return rate >= 1 ? `${rate.toFixed(1)}/s` : `${(rate * 60).toFixed(1)}/min`;
}

function keyOf(trial: LiveTrial): string {
  return JSON.stringify([trial.suite, trial.case, trial.agent ?? "", trial.trial ?? 1]);
}

/** The conversations that run now. One of them can be open; it grows turn by turn, and stays when it has ended. */
export function InFlight({ live, caseHref }: { live: LiveState; caseHref: (trial: LiveTrial) => string }) {
  const view = live.state?.view;
  const [watched, setWatched] = useState<LiveTrial | null>(null);
  const open = watched && keyOf(watched);
  const current = view?.trials.find((trial) => keyOf(trial) === open);
  useEffect(() => {
    if (current) setWatched(current);
  }, [current]);
  const hasEnded = watched !== null && current === undefined;
  if (!view || (view.trials.length === 0 && !hasEnded)) return null;
  return (
    <section class="in-flight" aria-label="Conversations in flight" id="in-flight">
      <h2>
        {live.lostSince ? "Were running" : "Running now"} <span class="muted">{formatCount(view.trials.length, "conversation")}</span>
      </h2>
      <ul>
        {hasEnded && (
          <li key={open} class="flight-ended">
            <p>
              <b><Line text={watched.case} room={120} /></b> has ended. <a href={caseHref(watched)}>Open the case</a>{" "}
              <button type="button" class="link" onClick={() => setWatched(null)}>
                Close
              </button>
            </p>
            <Turns trial={watched} />
          </li>
        )}
        {view.trials.slice(0, MAX_SHOWN).map((trial) => {
          const key = keyOf(trial);
          return (
            <li key={key}>
              <Conversation trial={trial} isOpen={open === key} toggle={() => setWatched(open === key ? null : trial)} />
            </li>
          );
        })}
      </ul>
    </section>
  );
}

function Conversation({ trial, isOpen, toggle }: { trial: LiveTrial; isOpen: boolean; toggle: () => void }) {
  const turns = trial.turns ?? [];
  const count = trial.turn_count ?? 0;
  const last = turns.at(-1);
  const planned = trial.planned_turns ? ` of ${trial.planned_turns}` : "";
  return (
    <>
      <button type="button" class="flight-row" aria-expanded={isOpen} data-case={trial.case} onClick={toggle}>
        <span class="pulse" aria-hidden="true" />
        <span class="what">
          <span class="title">
            <b><Line text={trial.case} room={120} /></b>
            {trial.name && trial.name !== trial.case && <span class="name"><Line text={trial.name} room={160} /></span>}
            {trial.agent && <span class="tag"><Line text={trial.agent} room={60} /></span>}
            {(trial.trial ?? 1) > 1 && <span class="tag">trial {trial.trial}</span>}
            {(trial.attempt ?? 1) > 1 && <span class="tag">attempt {trial.attempt}</span>}
          </span>
          <span class="why">
            <Line text={last ? last.output || last.input : "no message yet"} room={200} />
          </span>
        </span>
        <span class="facts">
          <span class="fact">{count ? `turn ${count}${planned}` : "starting"}</span>
          <span class="fact">waits for {WAITING[trial.waiting_for] ?? trial.waiting_for}</span>
          <span class="fact time">{formatMs(Math.max(0, Date.now() - new Date(trial.started_at).getTime()))}</span>
        </span>
      </button>
      {isOpen && <Turns trial={trial} />}
    </>
  );
}

/** The turns of a conversation that are known while it runs. */
function Turns({ trial }: { trial: LiveTrial }) {
  const turns = trial.turns ?? [];
  const last = turns.at(-1);
  const hidden = (trial.turn_count ?? 0) - turns.length;
  return (
    <div class="flight-turns" aria-live="polite">
      {hidden > 0 && <p class="muted">{formatCount(hidden, "turn")} not shown while it runs</p>}
      {turns.map((turn) =>
        turn === last && trial.is_turn_open && !turn.output && turn.tool_calls.length === 0 ? (
          <OpenTurn key={turn.turn} turn={turn} waitsFor={WAITING[trial.waiting_for] ?? trial.waiting_for} />
        ) : (
          <TurnView key={turn.turn} turn={turn} marks={[]} attachments={{}} reached={[]} />
        ),
      )}
    </div>
  );
}

/** A turn that has no reply yet. */
function OpenTurn({ turn, waitsFor }: { turn: Turn; waitsFor: string }) {
  return (
    <section class="turn" aria-label={`Turn ${turn.turn}`}>
      <header>
        <h3>Turn {turn.turn}</h3>
      </header>
      <div class="messages">
        <div class="message user">
          <p class="who">User</p>
          <TextBlock text={turn.input} label="User message" />
        </div>
        <p class="muted">waits for {waitsFor} …</p>
      </div>
    </section>
  );
}

const WAITING: Record<string, string> = {
  agent: "the agent",
  simulator: "the simulator",
  judge: "the judge",
  person: "a person",
  script: "the test",
};
