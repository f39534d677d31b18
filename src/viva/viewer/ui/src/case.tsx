// One case: why it ended as it did, its checkpoints along the turns, and the whole conversation with every check.
import { useEffect, useMemo, useState } from "preact/hooks";
import type { Assertion, CaseRow, CaseTrials, Checkpoint, Server, Source, Trial } from "./data";
import { CheckCard, labelOf, marksIn } from "./check";
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
import { TurnView } from "./turn";

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
  const turn = query["turn"];
  useEffect(() => {
    if (turn) document.getElementById(`turn-${turn}`)?.scrollIntoView({ block: "start" });
    else if (!query["trial"]) scrollTo(0, 0);
  }, [turn, trial?.trial]);
  if (trial === undefined) return <p class="waiting">This case has no record.</p>;
  const href = (more: Record<string, string | number>) => places.case(row.suite, row.id, { ...kept, ...more });
  const many = found.trials.length > 1;
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
          <Copy id="copy-case" label="Copy as case" text={() => asCase(trial)} />
          {found.command && <Copy id="copy-command" label="Copy command to rerun" text={() => found.command ?? ""} />}
          {allowRun && !run.live && <Rerun server={source as Server} run={run.overview.run} row={row} />}
        </div>
      </header>
      {many && <Tabs trials={found.trials} chosen={trial} href={(each) => href({ trial: each.trial })} />}
      <div {...(many ? { role: "tabpanel", id: "trial", "aria-labelledby": `trial-${trial.trial}` } : { id: "trial" })}>
        <Why trial={trial} href={(n) => href({ ...(many ? { trial: trial.trial } : {}), turn: n })} />
        {(trial.checkpoints ?? []).length > 0 && <Track checkpoints={trial.checkpoints ?? []} turns={trial.total_turns} />}
        <Conversation
          trial={trial}
          attachments={found.attachments ?? {}}
          href={(n) => href({ ...(many ? { trial: trial.trial } : {}), turn: n })}
        />
      </div>
    </>
  );
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

/** Why it did not pass, each reason with the way to its turn. */
function Why({ trial, href }: { trial: Trial; href: (turn: number) => string }) {
  const notes = [
    ...(trial.findings ?? []).map(({ kind, severity }) => `Finding: ${kind} (${severity})`),
    ...(trial.warnings ?? []).map((text) => `Warning: ${text}`),
    ...(trial.notes ?? []),
  ];
  if (trial.status === "passed" && notes.length === 0) return null;
  const findings = trial.status === "passed" ? [] : findingsIn(trial);
  const said = trial.error && !findings.some((each) => each.text === trial.error) ? trial.error : "";
  return (
    <section class={`why-block ${trial.status}`} aria-label="Why" id="why">
      {trial.status !== "passed" && (
        <h2>
          <span>{trial.status}</span>
          {trial.fault && <span class="fault">fault: {trial.fault}</span>}
        </h2>
      )}
      {said && <Said text={said} />}
      {findings.length > 0 && (
        <ul>
          {findings.map((each, at) => (
            <li key={at}>
              {each.turn === null ? <span class="muted">{each.place}</span> : <a href={href(each.turn)}>{each.place}</a>}{" "}
              {each.label && <b><Line text={each.label} room={200} /></b>} <Line text={each.text} room={600} />
            </li>
          ))}
        </ul>
      )}
      {trial.hint && (
        <p class="hint">
          Hint: <Line text={trial.hint} room={1000} />
        </p>
      )}
      {notes.map((text, at) => (
        <p class="note" key={at}>
          <Line text={text} room={2000} />
        </p>
      ))}
    </section>
  );
}

interface Found {
  turn: number | null;
  place: string;
  label: string;
  text: string;
}

function findingsIn(trial: Trial): Found[] {
  const found: Found[] = [];
  for (const turn of trial.turns) {
    const place = `turn ${turn.turn}`;
    for (const check of turn.assertions) {
      if (check.passed !== true) found.push({ turn: turn.turn, place, label: labelOf(check), text: reasonOf(check) });
    }
    if (turn.error) found.push({ turn: turn.turn, place, label: "", text: turn.error });
  }
  for (const check of trial.final_assertions) {
    if (check.passed !== true) found.push({ turn: null, place: "at the end", label: labelOf(check), text: reasonOf(check) });
  }
  return found;
}

function reasonOf(check: Assertion): string {
  if (check.reason || !("expected" in check)) return check.reason ?? "";
  return `expected ${brief(check.expected, 200)}, was ${brief(check.actual, 200)}`;
}

interface ConversationProps {
  trial: Trial;
  attachments: Record<string, string>;
  href: (turn: number) => string;
}

function Conversation({ trial, attachments, href }: ConversationProps) {
  const marks = useMemo(() => marksIn(trial), [trial]);
  return (
    <section class="conversation" aria-label="Conversation" id="conversation">
      <h2>
        Conversation <span class="muted">{counted(trial.total_turns, "turn")}</span>
      </h2>
      {trial.turns.map((turn) => (
        <TurnView
          key={turn.turn}
          id={`turn-${turn.turn}`}
          turn={turn}
          marks={marks.get(turn.turn) ?? []}
          attachments={attachments}
          reached={reachedAt(trial, turn.turn)}
          href={href(turn.turn)}
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
            <CheckCard key={at} check={check} />
          ))}
        </section>
      )}
      <Missed checkpoints={(trial.checkpoints ?? []).filter((each) => !each.reached && each.assertion)} />
    </section>
  );
}

export function reachedAt(trial: Trial, turn: number): Checkpoint[] {
  return (trial.checkpoints ?? []).filter((each) => each.reached && each.turn === turn);
}

/** Checkpoints that were not reached, with what their checks said last. */
function Missed({ checkpoints }: { checkpoints: Checkpoint[] }) {
  if (checkpoints.length === 0) return null;
  return (
    <section class="finals" aria-label="Checkpoints not reached">
      <h3>Checkpoints not reached</h3>
      {checkpoints.map((each) => (
        <CheckCard key={each.id} title={`${each.id} · ${labelOf(each.assertion ?? {})}`} check={{ ...each.assertion, passed: false }} />
      ))}
    </section>
  );
}
