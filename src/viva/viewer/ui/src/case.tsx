// One case: why it ended as it did, its checkpoints along the turns, and the whole conversation with every check.
import { useEffect, useMemo, useState } from "preact/hooks";
import type { CaseRow, CaseTrials, Checkpoint, Trial } from "./data";
import type { Server, Source } from "./source";
import { CheckCard, labelOf, marksIn, type Placed } from "./check";
import { asCase, Copy } from "./copying";
import { counted, moment, money, number, seconds } from "./figures";
import { filterIn, queryOf, selected } from "./filters";
import { useKeys } from "./keys";
import { useLoaded } from "./loading";
import type { Run } from "./live";
import { go, type Places } from "./route";
import { brief, Line, Said } from "./said";
import { Sign } from "./signs";
import { Track } from "./track";
import { Before, TurnView } from "./turn";
import { Why, type To } from "./why";

interface Props {
  run: Run;
  row: CaseRow;
  source: Source;
  places: Places;
  query: Record<string, string>;
  allowRun: boolean;
}

export function CaseScreen({ run, row, source, places, query, allowRun }: Props) {
  const { overview } = run;
  const filter = filterIn(query);
  const kept = queryOf(filter);
  const rows = useMemo(() => selected(overview.cases, filter), [overview.cases, JSON.stringify(kept)]);
  const at = rows.findIndex((each) => each.index === row.index);
  const [before, after] = [rows[at - 1], rows[at + 1]];
  const to = (next: CaseRow | undefined) => next && places.case(next.suite, next.id, kept);
  const loaded = useLoaded(() => source.trials(overview.run, row), [overview.run, row.index, row.trials]);
  useKeys({
    j: () => after && go(to(after) ?? ""),
    k: () => before && go(to(before) ?? ""),
    u: () => go(places.list(kept)),
    n: () => step(1),
    p: () => step(-1),
  });
  return (
    <article class="case" aria-labelledby="case-title">
      <nav class="trail" aria-label="Cases">
        <a href={places.list(kept)} id="back">
          ← All cases
        </a>
        <span class="steps">
          {at >= 0 && (
            <span class="muted">
              {number(at + 1)} of {number(rows.length)}
            </span>
          )}
          <StepLink href={to(before)} label="Previous" id="previous" />
          <StepLink href={to(after)} label="Next" id="next" />
        </span>
      </nav>
      {loaded === null ? (
        <p class="waiting">Opening…</p>
      ) : "error" in loaded ? (
        <p class="waiting" role="alert">
          This case cannot be shown: {loaded.error}
        </p>
      ) : (
        <Case key={row.index} found={loaded.value} row={row} source={source} places={places} query={query} kept={kept} run={run} allowRun={allowRun} />
      )}
    </article>
  );
}

function StepLink({ href, label, id }: { href: string | undefined; label: string; id: string }) {
  return href ? (
    <a class="button small" id={id} href={href}>
      {label}
    </a>
  ) : (
    <span class="button small off" aria-disabled="true">
      {label}
    </span>
  );
}

/** To the next turn, or the one before, as seen from the top of the window. */
function step(by: 1 | -1): void {
  const turns = [...document.querySelectorAll<HTMLElement>("section.turn")];
  const tops = turns.map((turn) => turn.getBoundingClientRect().top);
  const next = by > 0 ? tops.findIndex((top) => top > 80) : tops.findLastIndex((top) => top < 50);
  turns[next]?.scrollIntoView({ block: "start" });
}

type CaseProps = Props & { found: CaseTrials; kept: Record<string, string> };

function Case({ found, row, run, source, places, query, kept, allowRun }: CaseProps) {
  const telling = found.trials.find((trial) => trial.status === row.status) ?? found.trials[0];
  const trial = found.trials.find((each) => String(each.trial) === query["trial"]) ?? telling;
  const here = query["check"] ? `check-${query["check"]}` : query["turn"] ? `turn-${query["turn"]}` : "";
  useEffect(() => {
    if (here) show(here);
    else if (!query["trial"]) scrollTo(0, 0);
  }, [here, trial?.trial]);
  if (trial === undefined) return <p class="waiting">This case has no record.</p>;
  const href = (more: Record<string, string | number>) => places.case(row.suite, row.id, { ...kept, ...more });
  const many = found.trials.length > 1;
  const to: To = (place) => {
    const [kind = "", name = ""] = place.split(/-(.*)/);
    return {
      href: href({ ...(many ? { trial: trial.trial } : {}), ...(name ? { [kind]: name } : {}) }),
      onClick: () => show(place), // the address may be the one of now
    };
  };
  return (
    <>
      <header class="case-head">
        <h1 id="case-title">
          <Sign status={row.status} size={22} />
          <Line text={row.id} />
        </h1>
        {row.name && (
          <p class="subtitle">
            <Line text={row.name} />
          </p>
        )}
        <Facts trial={trial} />
        <div class="actions">
          {trial.turns.length > 0 && <Copy id="copy-case" label="Copy as case" text={() => asCase(trial)} />}
          {found.command && <Copy id="copy-command" label="Copy command to rerun" text={() => found.command ?? ""} />}
          {allowRun && !run.live && <Rerun server={source as Server} run={run.overview.run} row={row} />}
        </div>
      </header>
      {many && <Tabs trials={found.trials} chosen={trial} href={(each) => href({ trial: each.trial })} />}
      <div {...(many ? { role: "tabpanel", id: "trial", "aria-labelledby": `trial-${trial.trial}` } : { id: "trial" })}>
        <Why trial={trial} to={to} />
        {(trial.checkpoints ?? []).length > 0 && <Track checkpoints={trial.checkpoints ?? []} turns={trial.total_turns} to={to} />}
        <Conversation trial={trial} attachments={found.attachments ?? {}} to={to} here={here} />
      </div>
    </>
  );
}

/** Goes to a place on this screen; the keyboard goes on from there. */
function show(place: string): void {
  const found = document.getElementById(place);
  found?.scrollIntoView({ block: place.startsWith("check-") ? "center" : "start" });
  found?.focus({ preventScroll: true });
}

function Rerun({ server, run, row }: { server: Server; run: string; row: CaseRow }) {
  const [said, setSaid] = useState("Run again");
  const start = () => {
    setSaid("Starting…");
    server.rerun(run, row).then(
      (started) => go(`#/runs/${encodeURIComponent(started.run)}`),
      (broken: Error) => setSaid(broken.message),
    );
  };
  return (
    <button type="button" class="button" id="rerun" onClick={start}>
      <span aria-live="polite">{said}</span>
    </button>
  );
}

function Facts({ trial }: { trial: Trial }) {
  const usage = trial.usage;
  const facts: [string, string][] = [
    ["Suite", trial.suite],
    ["From", trial.source ?? ""],
    ["Agent", trial.agent ?? ""],
    ["Simulator", trial.simulator ?? ""],
    ["Turns", number(trial.total_turns)],
    ["Time", seconds(trial.duration_ms)],
    ["Tokens", usage ? `${number(usage.input_tokens ?? 0)} in, ${number(usage.output_tokens ?? 0)} out` : ""],
    ["Cost", typeof trial.cost_usd === "number" ? money(trial.cost_usd) : usage ? "unknown" : ""],
    ["Score", typeof trial.score === "number" ? trial.score.toFixed(2) : ""],
    ["Tags", (trial.tags ?? []).join(", ")],
    ["Options", brief(trial.options, 200)],
    ["Metadata", brief(trial.metadata, 200)],
    ["Attempt", trial.attempt > 1 ? String(trial.attempt) : ""],
    ["Started", moment(trial.started_at)],
    ["Session", trial.session_id ?? ""],
    ["Workspace", trial.workspace ?? ""],
  ];
  return (
    <dl class="case-facts">
      {facts
        .filter(([, value]) => value !== "")
        .map(([name, value]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>
              <Line text={value} />
            </dd>
          </div>
        ))}
    </dl>
  );
}

function Tabs({ trials, chosen, href }: { trials: Trial[]; chosen: Trial; href: (trial: Trial) => string }) {
  const move = (event: KeyboardEvent) => {
    const by = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
    const next = by ? trials[trials.indexOf(chosen) + by] : undefined;
    if (next === undefined) return;
    go(href(next), true);
    requestAnimationFrame(() => document.getElementById(`trial-${next.trial}`)?.focus());
  };
  return (
    <div class="tabs" role="tablist" aria-label="Trials" onKeyDown={move}>
      {trials.map((each) => (
        <button
          key={each.trial}
          type="button"
          role="tab"
          id={`trial-${each.trial}`}
          aria-selected={each === chosen}
          aria-controls="trial"
          tabIndex={each === chosen ? 0 : -1}
          onClick={() => go(href(each), true)}
        >
          <Sign status={each.status} size={14} /> Trial {each.trial}
        </button>
      ))}
    </div>
  );
}

interface ConversationProps {
  trial: Trial;
  attachments: Record<string, string>;
  to: To;
  /** The place that the address names. */
  here: string;
}

function Conversation({ trial, attachments, to, here }: ConversationProps) {
  const marks = useMemo(() => marksIn(trial), [trial]);
  const placed = (name: string): Placed => ({ id: `check-${name}`, link: to(`check-${name}`), here: here === `check-${name}` });
  return (
    <section class="conversation" aria-label="Conversation" id="conversation">
      <h2>
        Conversation <span class="muted">{counted(trial.total_turns, "turn")}</span>
      </h2>
      {(trial.history ?? []).length > 0 && <Before said={trial.history ?? []} marks={marks.get(0) ?? []} />}
      {trial.turns.map((turn) => (
        <TurnView
          key={turn.turn}
          id={`turn-${turn.turn}`}
          turn={turn}
          marks={marks.get(turn.turn) ?? []}
          attachments={attachments}
          reached={reachedAt(trial, turn.turn)}
          link={to(`turn-${turn.turn}`)}
          placed={placed}
        />
      ))}
      {(trial.turns_not_run ?? []).map((said, at) => (
        <section class="turn not-run" key={at} aria-label={`Turn ${trial.turns.length + at + 1}, not run`}>
          <header>
            <h3>Turn {trial.turns.length + at + 1}</h3>
            <p class="turn-facts">
              <span>not run</span>
            </p>
          </header>
          <div class="talk">
            <div class="message user">
              <p class="who">User</p>
              <Said text={said} />
            </div>
          </div>
        </section>
      ))}
      {trial.goal_achieved && (
        <p class="reached">
          <span class="diamond" aria-hidden="true" />
          <span>
            The simulator says that its goal is achieved
            {trial.goal_reason && (
              <>
                {": "}
                <Line text={trial.goal_reason} room={600} />
              </>
            )}
          </span>
        </p>
      )}
      {trial.final_assertions.length > 0 && (
        <section class="finals" aria-label="Final checks">
          <h3>At the end</h3>
          {trial.final_assertions.map((check, at) => (
            <CheckCard key={at} check={check} placed={placed(`end-${at + 1}`)} />
          ))}
        </section>
      )}
      <Missed trial={trial} placed={placed} />
    </section>
  );
}

export function reachedAt(trial: Trial, turn: number): Checkpoint[] {
  return (trial.checkpoints ?? []).filter((each) => each.reached && each.turn === turn);
}

/** Checkpoints that were not reached, with what their checks said last. One that was not needed, or could not be, is no failure. */
function Missed({ trial, placed }: { trial: Trial; placed: (name: string) => Placed }) {
  const missed = (trial.checkpoints ?? []).map((each, at) => ({ each, at })).filter(({ each }) => !each.reached && each.assertion);
  if (missed.length === 0) return null;
  return (
    <section class="finals" aria-label="Checkpoints not reached">
      <h3>Checkpoints not reached</h3>
      {missed.map(({ each, at }) => (
        <CheckCard
          key={each.id}
          title={`${each.id} · ${labelOf(each.assertion ?? {})}`}
          check={{ reason: each.reason ?? "", ...each.assertion, passed: false }}
          status={!each.required || trial.status === "skipped" ? "skipped" : trial.status === "error" ? "error" : "failed"}
          placed={placed(`checkpoint-${at + 1}`)}
        />
      ))}
    </section>
  );
}
