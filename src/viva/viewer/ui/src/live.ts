// The data of a run: its overview and, while it runs, the events of its stream.
import { useEffect, useRef, useState } from "preact/hooks";
import type { CaseRow, Event, Overview, Status, Summary, Trial } from "./data";
import type { ServerSource, Source } from "./source";

export interface Run {
  overview: Overview;
  /** Progress while it runs; `lost` when the viewer does not answer. */
  live: { trials: number; done: number; lost: boolean } | null;
}

export type RunState = { run: Run } | { error: string } | null;

const UPDATE_MS = 400;

export function useRun(source: Source, id: string): RunState {
  const [known, setKnown] = useState<{ id: string; known: RunState }>({ id: "", known: null });
  const stop = useRef<() => void>(() => {});
  useEffect(() => {
    let isCurrent = true;
    const update = (next: RunState) => isCurrent && setKnown({ id, known: next });
    const load = async () => {
      let loaded = await source.overview(id);
      let live = false;
      if (!loaded.ended && source.served) {
        live = (await (source as ServerSource).status()).live.includes(loaded.run);
        if (!live) loaded = await source.overview(id); // it may have ended between the two requests
      }
      const overview = loaded.summary ? loaded : { ...loaded, summary: summarizeCases(loaded) };
      const trials = Math.max(loaded.planned_cases ?? 0, loaded.cases.length);
      update({ run: { overview, live: live ? { trials, done: loaded.cases.length, lost: false } : null } });
      if (live && isCurrent) stop.current = followEvents(source as ServerSource, id, overview, (next) => update({ run: next }), reload);
    };
    const reload = () => void load().catch((broken: Error) => update({ error: broken.message }));
    reload();
    return () => {
      isCurrent = false;
      stop.current();
    };
  }, [source, id]);
  return known.id === id ? known.known : null;
}

function followEvents(server: ServerSource, id: string, before: Overview, update: (run: Run) => void, onEnd: () => void): () => void {
  const folded = new LiveRun(before);
  const events = server.events(id);
  let timer: ReturnType<typeof setTimeout> | undefined;
  let lost = false;
  const stop = () => {
    clearTimeout(timer);
    events.close();
  };
  const scheduleUpdate = () =>
    (timer ??= setTimeout(() => {
      timer = undefined;
      update(folded.run(lost));
    }, UPDATE_MS));
  events.onmessage = (message: MessageEvent<string>) => {
    folded.add(JSON.parse(message.data) as Event);
    scheduleUpdate();
  };
  events.onopen = () => {
    if (lost) scheduleUpdate();
    lost = false;
  };
  events.onerror = () => {
    lost = true; // the browser reconnects
    scheduleUpdate();
  };
  events.addEventListener("end", () => {
    stop();
    onEnd();
  });
  return stop;
}

/** Builds the overview of a running run from its events. */
class LiveRun {
  private readonly trials = new Map<number, Map<number, Trial>>();
  private readonly rows = new Map<number, CaseRow>();
  private planned: number;
  private plannedTrials = 0;
  private done = 0;
  private minPass = 1;
  private namesAgents = false;

  constructor(private overview: Overview) {
    this.planned = overview.planned_cases ?? 0;
  }

  add(event: Event): void {
    if (event.event === "run_started") {
      const settings = (event["settings"] ?? {}) as { min_pass?: number | null };
      this.minPass = settings.min_pass ?? 1;
      this.namesAgents = ((event["agents"] ?? []) as string[]).length > 1;
      this.planned = Number(event["cases"]);
      this.plannedTrials = Number(event["trials"]);
    } else if (event.event === "trial_ended") {
      const record = event["record"] as Trial;
      const index = Number(event["index"]) - record.trial + 1;
      const trials = this.trials.get(index) ?? new Map<number, Trial>();
      if (!trials.has(record.trial)) this.done++;
      trials.set(record.trial, dropTexts(record));
      this.trials.set(index, trials);
      const row = buildRow(index, [...trials.values()].sort((a, b) => a.trial - b.trial), this.minPass);
      this.rows.set(index, this.namesAgents ? { ...row, agent: record.agent ?? "" } : row);
    }
  }

  run(lost: boolean): Run {
    const cases = [...this.rows.values()].sort((a, b) => a.index - b.index);
    const replies = [...this.trials.values()].flatMap((each) => [...each.values()].flatMap((t) => t.turns.map((turn) => turn.duration_ms)));
    replies.sort((a, b) => a - b);
    const reply_ms = replies.length
      ? {
          count: replies.length,
          mean: 0,
          p50: replies[Math.ceil(replies.length * 0.5) - 1] ?? 0,
          p95: replies[Math.ceil(replies.length * 0.95) - 1] ?? 0,
        }
      : null;
    const overview = { ...this.overview, cases, planned_cases: this.planned, reply_ms, pass_rate: null };
    return { overview: { ...overview, summary: this.summary(overview) }, live: { trials: Math.max(this.plannedTrials, this.done), done: this.done, lost } };
  }

  private summary(overview: Overview): Summary {
    const records = [...this.trials.values()].flatMap((each) => [...each.values()]);
    return {
      ...summarizeCases(overview),
      duration_ms: Date.now() - new Date(overview.started ?? "").getTime(),
      input_tokens: records.reduce((total, each) => total + (each.usage?.input_tokens ?? 0), 0),
      output_tokens: records.reduce((total, each) => total + (each.usage?.output_tokens ?? 0), 0),
    };
  }
}

/** The summary of an unfinished run, from the rows of its finished cases. */
function summarizeCases({ cases, planned_cases: planned = 0 }: Overview): Summary {
  const count = (status: Status) => cases.filter((row) => row.status === status).length;
  const sum = (of: (row: CaseRow) => number) => cases.reduce((total, row) => total + of(row), 0);
  const turns = sum((row) => row.turns);
  const trials = sum((row) => row.trials.length);
  return {
    total: Math.max(planned, cases.length),
    passed: count("passed"),
    failed: count("failed"),
    errors: count("error"),
    skipped: count("skipped"),
    not_run: Math.max(planned - cases.length, 0),
    unchecked: 0,
    total_turns: turns,
    avg_turns: trials ? turns / trials : 0,
    duration_ms: 0,
    checks: sum((row) => row.checks ?? 0),
    checks_passed: sum((row) => row.checks_passed ?? 0),
    cost_usd: cases.some((row) => typeof row.cost_usd === "number") ? sum((row) => row.cost_usd ?? 0) : null,
  };
}

/** A record without its texts: the list does not show them, and a case screen loads them. */
function dropTexts(record: Trial): Trial {
  const turns = record.turns.map((turn) => ({
    ...turn,
    input: "",
    output: "",
    data: null,
    tool_calls: [],
    files: [],
    assertions: turn.assertions.map(({ passed }) => ({ passed: passed ?? null })),
  }));
  return { ...record, turns };
}

function buildRow(index: number, trials: Trial[], minPass: number): CaseRow {
  const first = trials[0] as Trial;
  const statuses = trials.map((trial) => trial.status);
  const status = caseStatus(statuses, minPass);
  const mainTrial = status === "passed" ? undefined : trials.find((trial) => trial.status === status);
  const sum = (of: (trial: Trial) => number) => trials.reduce((total, trial) => total + of(trial), 0);
  return {
    index,
    suite: first.suite,
    id: first.id,
    name: first.name === first.id ? "" : first.name,
    status,
    trials: statuses,
    fault: mainTrial?.fault ?? null,
    tags: first.tags ?? [],
    reason: mainTrial?.error ?? mainTrial?.assertion_errors?.[0] ?? "",
    turns: sum((trial) => trial.total_turns),
    duration_ms: sum((trial) => trial.duration_ms) / trials.length,
    cost_usd: trials.every((trial) => typeof trial.cost_usd === "number") ? sum((trial) => trial.cost_usd ?? 0) : null,
    tokens: sum((trial) => (trial.usage?.input_tokens ?? 0) + (trial.usage?.output_tokens ?? 0)),
    checks: sum((trial) => trial.checks ?? 0),
    checks_passed: sum((trial) => (trial.checks ?? 0) - countMissed(trial)),
    findings: [...new Set(trials.flatMap((trial) => (trial.findings ?? []).map(({ kind, severity }) => `${kind} (${severity})`)))],
  };
}

function caseStatus(trials: Status[], minPass: number): Status {
  const count = (status: Status) => trials.filter((each) => each === status).length;
  const [passed, failed, errors] = [count("passed"), count("failed"), count("error")];
  if (passed + failed === 0) return errors ? "error" : "skipped";
  const total = passed + failed + errors;
  // A trial in error counts both ways: the case passes or fails only if both give the same result.
  if (passed / total >= minPass) return "passed";
  return (passed + errors) / total < minPass ? "failed" : "error";
}

function countMissed(trial: Trial): number {
  const results = [...trial.turns.flatMap((turn) => turn.assertions), ...trial.final_assertions];
  const open = trial.turns.length ? (trial.checkpoints ?? []).filter((each) => !each.reached).length : 0;
  return results.filter((each) => each.passed !== true).length + open;
}
