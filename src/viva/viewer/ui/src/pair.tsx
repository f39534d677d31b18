// One case of two runs: both conversations turn by turn, with the words that differ between the replies.
import { useMemo } from "preact/hooks";
import type { RunSide } from "./compare_data";
import type { CaseChange, Overview, Trial } from "./data";
import type { ServerSource } from "./source";
import { listReached } from "./case";
import { CheckCard, collectQuotes } from "./check";
import { WordDiff } from "./word_diff";
import { formatCost, formatCount, formatMs } from "./format";
import { useKeys } from "./keys";
import { useLoaded } from "./loading";
import { buildHash, navigate } from "./route";
import { findRow } from "./rows";
import { StatusIcon } from "./status";
import { Line } from "./text";
import { TurnView } from "./turn";

const SIDES = ["Base", "Head"] as const;
const TRIAL_KEYS = ["base_trial", "head_trial"] as const;

/** One side of a pair: all trials, the one that is shown, and its attachments. */
interface ShownTrial {
  trials: Trial[];
  trial: Trial;
  attachments: Record<string, string>;
}

interface PairProps {
  server: ServerSource;
  sides: [RunSide, RunSide];
  chosen: CaseChange;
  query: Record<string, string>;
  /** The URL of this pair with other parameters. */
  here: (more: Record<string, string | number>) => string;
  back: string;
  previous: string | undefined;
  next: string | undefined;
  position: string;
}

export function Pair({ server, sides, chosen, query, here, back, previous, next, position }: PairProps) {
  const load = (side: RunSide) => async () => {
    const overview: Overview = await server.overview(side.run);
    const wanted = { suite: chosen.suite, name: chosen.case, agent: side.agent };
    const row = overview.counts ? await server.findCase(side.run, {}, wanted).then((found) => found.row, () => undefined) : findRow(overview.cases, wanted);
    return row ? { row, ...(await server.trials(side.run, row)) } : null;
  };
  const keys = (side: RunSide) => [side.run, side.agent, chosen.suite, chosen.case];
  const base = useLoaded(load(sides[0]), keys(sides[0]));
  const head = useLoaded(load(sides[1]), keys(sides[1]));
  useKeys({
    j: () => next && navigate(next),
    k: () => previous && navigate(previous),
    u: () => navigate(back),
  });
  if (base === null || head === null) return <p class="waiting">Opening…</p>;
  if ("error" in base) return <p class="waiting" role="alert">{base.error}</p>;
  if ("error" in head) return <p class="waiting" role="alert">{head.error}</p>;
  const shown = [base.value, head.value].map((found, at): ShownTrial | null => {
    if (!found) return null;
    const { trials, row, attachments = {} } = found;
    const wanted = query[TRIAL_KEYS[at] ?? ""];
    const trial = trials.find((each) => String(each.trial) === wanted) ?? trials.find((each) => each.status === row.status) ?? trials[0];
    return trial ? { trials, trial, attachments } : null;
  });
  return (
    <article aria-labelledby="pair-title">
      <nav class="trail" aria-label="Comparison">
        <a href={back} id="back">← All changes</a>
        <span class="steps">
          <span class="muted">{position}</span>
          {previous ? <a class="button small" id="previous" href={previous}>Previous</a> : null}
          {next ? <a class="button small" id="next" href={next}>Next</a> : null}
        </span>
      </nav>
      <div class="screen-head">
        <h1 id="pair-title"><Line text={chosen.case} /></h1>
        <span class={`kind change-${chosen.change.replace(" ", "-")}`}>{chosen.change}</span>
      </div>
      <Sides shown={shown} sides={sides} here={here} />
    </article>
  );
}

interface SidesProps {
  shown: (ShownTrial | null)[];
  sides: [RunSide, RunSide];
  here: PairProps["here"];
}

function Sides({ shown, sides, here }: SidesProps) {
  const turns = Math.max(...shown.map((held) => held?.trial.turns.length ?? 0));
  const marks = useMemo(() => shown.map((held) => (held ? collectQuotes(held.trial) : new Map())), [shown[0]?.trial, shown[1]?.trial]);
  const outputs = (at: number) => shown.map((held) => held?.trial.turns[at]?.output);
  return (
    <div class="pair" id="pair">
      {shown.map((held, side) => (
        <Side key={side} held={held} run={sides[side] as RunSide} name={SIDES[side] ?? ""} trialHref={(trial) => here({ [TRIAL_KEYS[side] ?? ""]: trial })} />
      ))}
      {Array.from({ length: turns }, (_, at) => {
        const [before, after] = outputs(at);
        return [
          ...shown.map((held, side) => {
            const turn = held?.trial.turns[at];
            return (
              <div class="cell" key={`${at}-${side}`}>
                {held && turn ? (
                  <TurnView
                    turn={turn}
                    marks={marks[side]?.get(turn.turn) ?? []}
                    attachments={held.attachments}
                    reached={listReached(held.trial, turn.turn)}
                    side={SIDES[side] ?? ""}
                  />
                ) : (
                  <p class="muted none">
                    <span class="which">{SIDES[side]}: </span>no turn {at + 1}
                  </p>
                )}
              </div>
            );
          }),
          before !== undefined && after !== undefined && before !== after && (
            <section class="reply-diff" key={`diff-${at}`} aria-label={`Difference of the replies of turn ${at + 1}`}>
              <h3>Turn {at + 1}: what changed in the reply</h3>
              <WordDiff before={before} after={after} />
            </section>
          ),
        ];
      })}
      {shown.map((held, side) => (
        <div class="cell" key={`end-${side}`}>
          {held && held.trial.final_assertions.length > 0 && (
            <section class="final-checks" aria-label={`Final assertions, ${SIDES[side]}`}>
              <h3>
                Final assertions<span class="which"> · {SIDES[side]}</span>
              </h3>
              {held.trial.final_assertions.map((check, at) => (
                <CheckCard key={at} check={check} />
              ))}
            </section>
          )}
        </div>
      ))}
    </div>
  );
}

interface SideProps {
  held: ShownTrial | null;
  run: RunSide;
  name: string;
  trialHref: (trial: number) => string;
}

function Side({ held, run, name, trialHref }: SideProps) {
  const trial = held?.trial;
  return (
    <header class="cell side">
      <h2>
        {trial && <StatusIcon status={trial.status} />} {name}
      </h2>
      {trial ? (
        <p class="muted">
          <a href={buildHash(["runs", run.run, "case", trial.suite, trial.id], { trial: trial.trial, on: run.agents.length > 1 ? run.agent : "" })} class="mono">{run.run}</a>
          {" · "}
          <Line text={run.agent} room={60} />
          {" · "}
          {formatCount(trial.total_turns, "turn")} · {formatMs(trial.duration_ms)}
          {typeof trial.cost_usd === "number" ? ` · ${formatCost(trial.cost_usd)}` : ""}
        </p>
      ) : (
        <p class="muted">not in {run.run}</p>
      )}
      {held && held.trials.length > 1 && (
        <p class="trial-switch" role="group" aria-label={`Trials, ${name}`}>
          {held.trials.map((each) => (
            <a class="chip" key={each.trial} href={trialHref(each.trial)} aria-current={each.trial === trial?.trial ? "true" : undefined}>
              <StatusIcon status={each.status} label={false} /> {each.trial}
            </a>
          ))}
        </p>
      )}
      {trial?.error && <p class="side-error"><Line text={trial.error} room={600} /></p>}
    </header>
  );
}
