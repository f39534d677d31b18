// A run as it is known: from its overview or, while it goes on, folded from the events that stream in.
import { useEffect, useRef, useState } from "preact/hooks";
import type { CaseRow, Event, Overview, Status, Summary, Trial } from "./data";
import type { Server, Source } from "./source";

export interface Run {
  overview: Overview;
  /** Does it go on? Then with how many of its trials done, and whether its viewer still answers. */
  live: { trials: number; done: number; lost: boolean } | null;
}

export type Known = { run: Run } | { error: string } | null;

const EVERY_MS = 400;

export function useRun(source: Source, id: string): Known {
  const [known, setKnown] = useState<{ id: string; known: Known }>({ id: "", known: null });
  const stop = useRef<() => void>(() => {});
  useEffect(() => {
    let wanted = true;
    const tell = (next: Known) => wanted && setKnown({ id, known: next });
    const load = async () => {
      let found = await source.overview(id);
      let live = false;
      if (!found.ended && source.served) {
        live = (await (source as Server).me()).live.includes(found.run);
        if (!live) found = await source.overview(id); // it may have ended between the two questions
      }
      const overview = found.summary ? found : { ...found, summary: soFar(found) };
      const trials = Math.max(found.planned ?? 0, found.cases.length);
      tell({ run: { overview, live: live ? { trials, done: found.cases.length, lost: false } : null } });
      if (live && wanted) stop.current = listen(source as Server, id, overview, (next) => tell({ run: next }), begin);
    };
    const begin = () => void load().catch((broken: Error) => tell({ error: broken.message }));
    begin();
    return () => {
      wanted = false;
      stop.current();
    };
  }, [source, id]);
  return known.id === id ? known.known : null;
}

function listen(server: Server, id: string, before: Overview, tell: (run: Run) => void, ended: () => void): () => void {
  const folded = new Folded(before);
  const events = server.events(id);
  let timer: ReturnType<typeof setTimeout> | undefined;
  let lost = false;
  const stop = () => {
    clearTimeout(timer);
    events.close();
  };
  const soon = () =>
    (timer ??= setTimeout(() => {
      timer = undefined;
      tell(folded.run(lost));
    }, EVERY_MS));
  events.onmessage = (message: MessageEvent<string>) => {
    folded.add(JSON.parse(message.data) as Event);
    soon();
  };
  events.onopen = () => {
    if (lost) soon();
    lost = false;
  };
  events.onerror = () => {
    lost = true; // the browser tries again by itself
    soon();
  };
  events.addEventListener("end", () => {
    stop();
    ended();
  });
  return stop;
}

/** Adds up events as Viva itself does. */
class Folded {
  private readonly trials = new Map<number, Map<number, Trial>>();
  private readonly rows = new Map<number, CaseRow>();
  private planned: number;
  private due = 0;
  private done = 0;
  private minPass = 1;

  constructor(private overview: Overview) {
    this.planned = overview.planned ?? 0;
  }

  add(event: Event): void {
    if (event.event === "run_started") {
      const settings = (event["settings"] ?? {}) as { min_pass?: number | null };
      this.minPass = settings.min_pass ?? 1;
      this.planned = Number(event["cases"]);
      this.due = Number(event["trials"]);
    } else if (event.event === "trial_ended") {
      const record = event["record"] as Trial;
      const index = Number(event["index"]) - record.trial + 1;
      const trials = this.trials.get(index) ?? new Map<number, Trial>();
      if (!trials.has(record.trial)) this.done++;
      trials.set(record.trial, slim(record));
      this.trials.set(index, trials);
      this.rows.set(index, rowOf(index, [...trials.values()].sort((a, b) => a.trial - b.trial), this.minPass));
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
    const overview = { ...this.overview, cases, planned: this.planned, reply_ms, rate: null };
    return { overview: { ...overview, summary: this.summary(overview) }, live: { trials: Math.max(this.due, this.done), done: this.done, lost } };
  }

  private summary(overview: Overview): Summary {
    const records = [...this.trials.values()].flatMap((each) => [...each.values()]);
    return {
      ...soFar(overview),
      duration_ms: Date.now() - new Date(overview.started ?? "").getTime(),
      input_tokens: records.reduce((total, each) => total + (each.usage?.input_tokens ?? 0), 0),
      output_tokens: records.reduce((total, each) => total + (each.usage?.output_tokens ?? 0), 0),
    };
  }
}

/** The figures of a run that has not come to its end, from the rows of those cases that have. */
function soFar({ cases, planned = 0 }: Overview): Summary {
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

/** A record without what was said: the list does not show it, and a case that is opened asks for it. */
function slim(record: Trial): Trial {
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

function rowOf(index: number, trials: Trial[], minPass: number): CaseRow {
  const first = trials[0] as Trial;
  const statuses = trials.map((trial) => trial.status);
  const status = caseStatus(statuses, minPass);
  const telling = status === "passed" ? undefined : trials.find((trial) => trial.status === status);
  const sum = (of: (trial: Trial) => number) => trials.reduce((total, trial) => total + of(trial), 0);
  return {
    index,
    suite: first.suite,
    id: first.id,
    name: first.name === first.id ? "" : first.name,
    status,
    trials: statuses,
    fault: telling?.fault ?? null,
    tags: first.tags ?? [],
    error: telling?.error ?? telling?.assertion_errors?.[0] ?? "",
    turns: sum((trial) => trial.total_turns),
    duration_ms: sum((trial) => trial.duration_ms) / trials.length,
    cost_usd: trials.every((trial) => typeof trial.cost_usd === "number") ? sum((trial) => trial.cost_usd ?? 0) : null,
    tokens: sum((trial) => (trial.usage?.input_tokens ?? 0) + (trial.usage?.output_tokens ?? 0)),
    checks: sum((trial) => trial.checks ?? 0),
    checks_passed: sum((trial) => (trial.checks ?? 0) - missed(trial)),
    findings: [...new Set(trials.flatMap((trial) => (trial.findings ?? []).map(({ kind, severity }) => `${kind} (${severity})`)))],
  };
}

function caseStatus(trials: Status[], minPass: number): Status {
  const count = (status: Status) => trials.filter((each) => each === status).length;
  const [passed, failed, errors] = [count("passed"), count("failed"), count("error")];
  if (passed + failed === 0) return errors ? "error" : "skipped";
  const total = passed + failed + errors;
  // A trial in error may have been either: the case is one only if all of them leave it that.
  if (passed / total >= minPass) return "passed";
  return (passed + errors) / total < minPass ? "failed" : "error";
}

function missed(trial: Trial): number {
  const judged = [...trial.turns.flatMap((turn) => turn.assertions), ...trial.final_assertions];
  const open = trial.turns.length ? (trial.checkpoints ?? []).filter((each) => !each.reached).length : 0;
  return judged.filter((each) => each.passed !== true).length + open;
}
