// The screen of one case: its failure, its checkpoints and the conversation with every check.
import { useEffect, useLayoutEffect, useMemo, useState } from "preact/hooks";
import type { CaseRow, CaseTrials, Checkpoint, Trial, Turn } from "./data";
import type { ServerSource, Source } from "./source";
import { CheckCard, getLabel, collectQuotes, type CheckLink } from "./check";
import { saveFile } from "./download";
import { FindBar, findTurns } from "./find";
import { HelperCalls } from "./judge";
import { Minimap } from "./minimap";
import type { CasePosition } from "./rows";
import { showPlace, step, turnOf, useOpenTurn } from "./places";
import { CaseCertainty } from "./sure";
import { Waterfall } from "./waterfall";
import { buildCase, Copy } from "./copy";
import { formatCount, formatTime, formatCost, formatNumber, formatMs, formatScore } from "./format";
import { parseFilter, buildQuery } from "./filters";
import { useKeys } from "./keys";
import { LabelControl, LabelProvider } from "./labels";
import { useLoaded } from "./loading";
import type { Run } from "./live";
import { navigate, type RunLinks } from "./route";
import { formatInline, Line, TextBlock } from "./text";
import { StatusIcon } from "./status";
import { Checkpoints } from "./checkpoints";
import { FoldedTurn, getTurnStatus, HistoryView, TurnView } from "./turn";
import { Failure, type LinkTo } from "./failure";

interface Props {
  run: Run;
  source: Source;
  places: RunLinks;
  query: Record<string, string>;
  allowRun: boolean;
}

export function CaseScreen({ run, found, source, places, query, allowRun }: Props & { found: CasePosition }) {
  const { overview } = run;
  const filterQuery = buildQuery(parseFilter(query));
  const { row, before, after } = found;
  const at = found.position ?? -1;
  const to = (next: CaseRow | undefined) => next && places.case(next, filterQuery);
  const loaded = useLoaded(() => source.trials(overview.run, row), [overview.run, row.index, row.trials]);
  useKeys({
    j: () => after && navigate(to(after) ?? ""),
    k: () => before && navigate(to(before) ?? ""),
    u: () => navigate(places.list(filterQuery)),
    n: () => step(1),
    p: () => step(-1),
    f: () => step(1, "failure"),
    F: () => step(-1, "failure"),
    t: () => step(1, "tool"),
    T: () => step(-1, "tool"),
    "/": () => document.getElementById("find")?.focus(),
  });
  return (
    <article class="case" aria-labelledby="case-title">
      <nav class="trail" aria-label="Cases">
        <a href={places.list(filterQuery)} id="back">
          ← All cases
        </a>
        <span class="steps">
          {at >= 0 && (
            <span class="muted">
              {formatNumber(at + 1)} of {formatNumber(found.total)}
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
          Cannot load this case: {loaded.error}
        </p>
      ) : (
        <Case key={row.index} loaded={loaded.value} row={row} source={source} places={places} query={query} filterQuery={filterQuery} run={run} allowRun={allowRun} />
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

type CaseProps = Props & { row: CaseRow; loaded: CaseTrials; filterQuery: Record<string, string> };

function Case({ loaded, row, run, source, places, query, filterQuery, allowRun }: CaseProps) {
  const mainTrial = chooseTrial(loaded.trials, row);
  const trial = loaded.trials.find((each) => String(each.trial) === query["trial"]) ?? mainTrial;
  const here = query["check"] ? `check-${query["check"]}` : query["turn"] ? `turn-${query["turn"]}` : "";
  useLayoutEffect(() => {
    if (!here && !query["trial"]) scrollTo(0, 0); // before the words of a search are shown
  }, [here, trial?.trial]);
  useEffect(() => {
    if (here) showPlace(here);
  }, [here, trial?.trial]);
  if (trial === undefined) return <p class="waiting">No trial of this case was recorded.</p>;
  const href = (more: Record<string, string | number>) => places.case(row, { ...filterQuery, ...more });
  const many = loaded.trials.length > 1;
  const to: LinkTo = (place) => {
    const [kind = "", name = ""] = place.split(/-(.*)/);
    return {
      href: href({ ...(many ? { trial: trial.trial } : {}), ...(name ? { [kind]: name } : {}) }),
      onClick: () => showPlace(place), // the URL may not change
    };
  };
  return (
    <LabelProvider source={source} run={run.overview.run} index={row.index} trial={trial}>
      <header class="case-head">
        <h1 id="case-title">
          <StatusIcon status={row.status} size={22} />
          <Line text={row.id} />
        </h1>
        {row.name && (
          <p class="subtitle">
            <Line text={row.name} />
          </p>
        )}
        <CaseCertainty row={row} figures={loaded.figures} />
        <div class="actions">
          {trial.turns.length > 0 && <Copy id="copy-case" label="Copy as case" text={() => buildCase(trial)} />}
          {loaded.command && <Copy id="copy-command" label="Copy command to rerun" text={() => loaded.command ?? ""} />}
          <button type="button" class="button" id="download-case" onClick={() => saveTrials(row.id, loaded.trials)}>
            Download
          </button>
          {allowRun && !run.live && <Rerun server={source as ServerSource} run={run.overview.run} row={row} />}
          <LabelControl name={row.id} />
        </div>
      </header>
      {many && <Tabs trials={loaded.trials} chosen={trial} href={(each) => href({ trial: each.trial })} />}
      <div {...(many ? { role: "tabpanel", id: "trial", "aria-labelledby": `trial-${trial.trial}` } : { id: "trial" })}>
        <HelperCalls.Provider value={trial.helper_calls ?? []}>
          <Failure trial={trial} to={to} />
          <Facts trial={trial} />
          {(trial.checkpoints ?? []).length > 0 && <Checkpoints checkpoints={trial.checkpoints ?? []} turns={trial.total_turns} to={to} />}
          <Waterfall key={trial.trial} trial={trial} />
          <Conversation
            key={trial.trial}
            trial={trial}
            attachments={loaded.attachments ?? {}}
            to={to}
            here={here}
            find={query["find"] ?? query["q"] ?? ""}
            setFind={(find) => navigate(href({ ...(query["trial"] ? { trial: query["trial"] } : {}), find }), true)}
          />
        </HelperCalls.Provider>
      </div>
    </LabelProvider>
  );
}

/** The trial that opens first: the first one that did not pass, if the trials differ. */
function chooseTrial(trials: Trial[], row: CaseRow): Trial | undefined {
  const differ = trials.some((trial) => trial.status !== trials[0]?.status);
  const wanted = trials.find((trial) => trial.status === row.status && trial.status !== "passed");
  return wanted ?? (differ ? trials.find((trial) => trial.status !== "passed") : undefined) ?? trials[0];
}

function saveTrials(id: string, trials: Trial[]): void {
  saveFile(`${id}.jsonl`, trials.map((trial) => `${JSON.stringify(trial)}\n`), "application/jsonl");
}

function Rerun({ server, run, row }: { server: ServerSource; run: string; row: CaseRow }) {
  const [label, setLabel] = useState("Run again");
  const start = () => {
    setLabel("Starting…");
    server.rerunCase(run, row).then(
      (started) => navigate(`#/runs/${encodeURIComponent(started.run)}`),
      (error: Error) => setLabel(error.message),
    );
  };
  return (
    <button type="button" class="button" id="rerun" onClick={start}>
      <span aria-live="polite">{label}</span>
    </button>
  );
}

function Facts({ trial }: { trial: Trial }) {
  const usage = trial.usage;
  const facts: [string, string][] = [
    ["Suite", trial.suite],
    ["Source", trial.source ?? ""],
    ["Agent", trial.agent ?? ""],
    ["Simulator", trial.simulator ?? ""],
    ["Turns", formatNumber(trial.total_turns)],
    ["Time", formatMs(trial.duration_ms)],
    ["Tokens", usage ? `${formatNumber(usage.input_tokens ?? 0)} in, ${formatNumber(usage.output_tokens ?? 0)} out` : ""],
    ["Cost", typeof trial.cost_usd === "number" ? formatCost(trial.cost_usd) : usage ? "unknown" : ""],
    ["Score", typeof trial.score === "number" ? formatScore(trial.score) : ""],
    ["Tags", (trial.tags ?? []).join(", ")],
    ["Options", formatInline(trial.options, 200)],
    ["Metadata", formatInline(trial.metadata, 200)],
    ["Attempt", trial.attempt > 1 ? String(trial.attempt) : ""],
    ["Started", formatTime(trial.started_at)],
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

/** Longer conversations open with their passed turns folded. */
const FOLD_FROM = 30;

function Tabs({ trials, chosen, href }: { trials: Trial[]; chosen: Trial; href: (trial: Trial) => string }) {
  const move = (event: KeyboardEvent) => {
    const by = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
    const next = by ? trials[trials.indexOf(chosen) + by] : undefined;
    if (next === undefined) return;
    navigate(href(next), true);
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
          onClick={() => navigate(href(each), true)}
        >
          <StatusIcon status={each.status} size={14} /> Trial {each.trial}
        </button>
      ))}
    </div>
  );
}

interface ConversationProps {
  trial: Trial;
  attachments: Record<string, string>;
  to: LinkTo;
  /** The element that the URL names. */
  here: string;
  /** The words to find. */
  find: string;
  setFind: (find: string) => void;
}

function Conversation({ trial, attachments, to, here, find, setFind }: ConversationProps) {
  const marks = useMemo(() => collectQuotes(trial), [trial]);
  const withWords = useMemo(() => findTurns(trial, find), [trial, find]);
  const [isFolding, setFolding] = useState(trial.turns.length > FOLD_FROM);
  const [changed, setChanged] = useState<ReadonlyMap<number, boolean>>(new Map());
  const setFold = (turn: number, isFolded: boolean) => setChanged((old) => new Map(old).set(turn, isFolded));
  useOpenTurn((turn) => setFold(turn, false));
  useEffect(() => {
    const unfold = () => {
      setFolding(false);
      setChanged(new Map());
    };
    addEventListener("beforeprint", unfold);
    return () => removeEventListener("beforeprint", unfold);
  }, []);
  const last = trial.turns[trial.turns.length - 1]?.turn;
  const isFolded = (turn: Turn) =>
    changed.get(turn.turn) ??
    (isFolding && getTurnStatus(turn) === null && turn.turn !== last && turnOf(here) !== turn.turn && !withWords.has(turn.turn));
  const checkLink = (name: string): CheckLink => ({ id: `check-${name}`, link: to(`check-${name}`), here: here === `check-${name}` });
  return (
    <section class="conversation" aria-label="Conversation" id="conversation">
      <header class="conversation-head">
        <h2>
          Conversation <span class="muted">{formatCount(trial.total_turns, "turn")}</span>
        </h2>
        {trial.turns.length > 1 && (
          <button
            type="button"
            class="button small"
            id="fold-passed"
            aria-pressed={isFolding}
            onClick={() => {
              setFolding(!isFolding);
              setChanged(new Map());
            }}
          >
            {isFolding ? "Unfold all" : "Fold passed turns"}
          </button>
        )}
        <FindBar text={find} change={setFind} version={`${trial.trial}`} />
      </header>
      <Minimap trial={trial} />
      {(trial.history ?? []).length > 0 && <HistoryView messages={trial.history ?? []} marks={marks.get(0) ?? []} />}
      {trial.turns.map((turn) =>
        isFolded(turn) ? (
          <FoldedTurn key={turn.turn} id={`turn-${turn.turn}`} turn={turn} unfold={() => setFold(turn.turn, false)} />
        ) : (
          <TurnView
            key={turn.turn}
            id={`turn-${turn.turn}`}
            turn={turn}
            marks={marks.get(turn.turn) ?? []}
            attachments={attachments}
            reached={listReached(trial, turn.turn)}
            link={to(`turn-${turn.turn}`)}
            checkLink={checkLink}
            {...(trial.turns.length > 1 ? { fold: () => setFold(turn.turn, true) } : {})}
          />
        ),
      )}
      {(trial.turns_not_run ?? []).map((input, at) => (
        <section class="turn not-run" key={at} aria-label={`Turn ${trial.turns.length + at + 1}, not run`}>
          <header>
            <h3>Turn {trial.turns.length + at + 1}</h3>
            <p class="turn-facts">
              <span>not run</span>
            </p>
          </header>
          <div class="messages">
            <div class="message user">
              <p class="who">User</p>
              <TextBlock text={input} />
            </div>
          </div>
        </section>
      ))}
      {trial.goal_achieved && (
        <p class="reached">
          <span class="diamond" aria-hidden="true" />
          <span>
            Simulator: goal achieved
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
        <section class="final-checks" aria-label="Final assertions">
          <h3>Final assertions</h3>
          {trial.final_assertions.map((check, at) => (
            <CheckCard key={at} check={check} checkLink={checkLink(`end-${at + 1}`)} />
          ))}
        </section>
      )}
      <MissedCheckpoints trial={trial} checkLink={checkLink} />
    </section>
  );
}

export function listReached(trial: Trial, turn: number): Checkpoint[] {
  return (trial.checkpoints ?? []).filter((each) => each.reached && each.turn === turn);
}

/** Checkpoints that were not reached, with the last result of their checks. Only required ones count as failures. */
function MissedCheckpoints({ trial, checkLink }: { trial: Trial; checkLink: (name: string) => CheckLink }) {
  const missed = (trial.checkpoints ?? []).map((each, at) => ({ each, at })).filter(({ each }) => !each.reached && each.assertion);
  if (missed.length === 0) return null;
  return (
    <section class="final-checks" aria-label="Checkpoints not reached">
      <h3>Checkpoints not reached</h3>
      {missed.map(({ each, at }) => (
        <CheckCard
          key={each.id}
          title={`${each.id} · ${getLabel(each.assertion ?? {})}`}
          check={{ reason: each.reason ?? "", ...each.assertion, passed: false }}
          status={!each.required || trial.status === "skipped" ? "skipped" : trial.status === "error" ? "error" : "failed"}
          checkLink={checkLink(`checkpoint-${at + 1}`)}
        />
      ))}
    </section>
  );
}
