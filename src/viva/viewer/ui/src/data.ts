// What the page shows, and where it comes from: data inside the page (report.html) or a server (viva view).
// The types mirror viva/reporters/page.py, viva/model/record.py and viva/history.

export type Status = "passed" | "failed" | "skipped" | "error";
export type Fault = "agent" | "simulator" | "judge" | "infra" | "undetermined";

export interface Usage {
  calls?: number;
  input_tokens?: number;
  output_tokens?: number;
  cost_usd?: number | null;
}

export interface ToolCall {
  name: string;
  args: unknown;
  id?: string;
  result?: unknown;
  error?: string | null;
}

export interface Quote {
  turn: number;
  quote: string;
}

/** A claim as it was written, with what came of it; `passed` is null where it could not be evaluated. */
export interface Assertion {
  type?: string;
  label?: string;
  message?: string;
  passed?: boolean | null;
  reason?: string;
  score?: number;
  expected?: unknown;
  actual?: unknown;
  evidence?: Quote[];
  suggestions?: string[];
  [written: string]: unknown;
}

export interface FileChange {
  path: string;
  change: "added" | "changed" | "removed";
  diff?: string | null;
}

export interface Attachment {
  type: string;
  source: string;
  name?: string | null;
  media_type?: string | null;
}

export interface Turn {
  turn: number;
  input: string;
  input_source: string;
  output: string;
  awaiting_input: boolean;
  tool_calls: ToolCall[];
  assertions: Assertion[];
  duration_ms: number;
  awaiting_reason?: string | null;
  awaiting_confidence?: number | null;
  input_hint?: string | null;
  data?: unknown;
  attachments?: Attachment[] | null;
  options?: Record<string, unknown> | null;
  error?: string | null;
  finish_reason?: string | null;
  usage?: Usage | null;
  cost_usd?: number | null;
  files?: FileChange[];
  remark?: string | null;
}

export interface Checkpoint {
  id: string;
  description: string;
  required: boolean;
  reached: boolean;
  turn?: number | null;
  reason?: string | null;
  unmet_after?: string[];
  assertion?: Assertion | null;
}

export interface Trial {
  id: string;
  name: string;
  status: Status;
  turns: Turn[];
  final_assertions: Assertion[];
  total_turns: number;
  duration_ms: number;
  suite: string;
  trial: number;
  attempt: number;
  fault?: Fault | null;
  /** What the blame rests on, a line each, most of them with their place: `turn 2: …`, `checkpoint a: …`. */
  fault_evidence?: string[] | null;
  error?: string | null;
  hint?: string | null;
  assertion_errors?: string[] | null;
  checkpoints?: Checkpoint[] | null;
  goal_achieved?: boolean | null;
  goal_reason?: string | null;
  turns_not_run?: string[] | null;
  checks?: number;
  score?: number | null;
  usage?: Usage | null;
  cost_usd?: number | null;
  tags?: string[];
  options?: Record<string, unknown> | null;
  metadata?: Record<string, unknown> | null;
  agent?: string | null;
  simulator?: string | null;
  session_id?: string | null;
  started_at?: string | null;
  source?: string | null;
  digest?: string | null;
  warnings?: string[] | null;
  notes?: string[] | null;
  workspace?: string | null;
  findings?: { kind: string; severity: string }[];
}

export interface CaseRow {
  index: number;
  suite: string;
  id: string;
  status: Status;
  trials: Status[];
  turns: number;
  duration_ms: number;
  name?: string;
  fault?: Fault | null;
  tags?: string[];
  error?: string;
  cost_usd?: number | null;
  tokens?: number;
  checks?: number;
  checks_passed?: number;
  /** Where it says more than the status. */
  score?: number | null;
  findings?: string[];
}

export interface Summary {
  total: number;
  passed: number;
  failed: number;
  errors: number;
  skipped: number;
  not_run: number;
  unchecked: number;
  total_turns: number;
  avg_turns: number;
  duration_ms: number;
  checks: number;
  checks_passed: number;
  trials?: Partial<Record<Status, number>>;
  faults?: Record<string, number>;
  input_tokens?: number;
  output_tokens?: number;
  cost_usd?: number | null;
  unpriced_calls?: number;
  undecided?: number;
  suites?: Standing[];
}

/** Where a suite stands against its bar; `missed` says in words which parts of it were not reached. */
export interface Standing {
  suite: string;
  score: number;
  passed: boolean;
  cases: number;
  bar: {
    pass_score?: number | null;
    max_cost_usd?: number | null;
    max_p95_ms?: number | null;
    baseline?: { name: string; score: number } | null;
  };
  cost_usd?: number | null;
  p95_ms?: number | null;
  missed?: string[];
  regressed?: string | null;
  worse?: string[];
  uncompared?: string[];
}

export interface Spread {
  count: number;
  mean: number;
  p50: number;
  p95: number;
}

export interface Rate {
  rate: number;
  interval: { low: number; high: number };
  cases: number;
  trials: number;
  unjudged: number;
}

export interface Overview {
  run: string;
  cases: CaseRow[];
  agent?: string;
  viva?: string;
  inputs?: string[];
  planned?: number;
  started?: string;
  ended?: string | null;
  exit_code?: number | null;
  stopped?: string | null;
  why?: string | null;
  summary?: Summary | null;
  rate?: Rate | null;
  case_ms?: Spread | null;
  reply_ms?: Spread | null;
}

/** A case's trials. `command` runs it again; `attachments` has what can be shown of them, by source, as data: addresses. */
export interface CaseTrials {
  trials: Trial[];
  command?: string;
  attachments?: Record<string, string>;
}

export interface RunLine {
  id: string;
  live?: boolean;
  at: string;
  agent: string;
  inputs: string[];
  cases: number;
  viva?: string;
  ended?: string | null;
  exit_code?: number | null;
  stopped?: string | null;
  summary?: Summary | null;
}

export interface CaseChange {
  suite: string;
  case: string;
  change: string;
  base?: Status | null;
  head?: Status | null;
  why?: string | null;
}

export interface Metric {
  name: string;
  pairs: number;
  base: number;
  head: number;
  delta: number;
  low: number | null;
  high: number | null;
  p: number;
  worse: boolean;
}

export interface Comparison {
  base: string;
  head: string;
  cases: CaseChange[];
  metrics: Metric[];
}

export interface RunPoint {
  id: string;
  at: string;
  agent: string;
  exit_code: number | null;
  total: number;
  passed: number;
  judged: number;
  pass_rate: number | null;
  cost_usd: number | null;
  duration_ms: number;
  p95_ms: number | null;
}

/** A case that passes and fails against the same agent; `statuses` are of the `runs` that held it, oldest first. */
export interface FlakyCase {
  suite: string;
  case: string;
  agent: string;
  flips: number;
  passed: number;
  judged: number;
  runs: string[];
  statuses: Status[];
}

export interface PastRuns {
  runs: RunPoint[];
  flaky: FlakyCase[];
}

export interface Me {
  allow_run: boolean;
  live: string[];
  version?: string;
}

export interface Event {
  event: string;
  [field: string]: unknown;
}

export interface Source {
  /** Is there a server behind it, with more than this one run? */
  readonly served: boolean;
  overview(run: string): Promise<Overview>;
  trials(run: string, row: CaseRow): Promise<CaseTrials>;
}

const OVERVIEW = "viva-overview";

/** The run inside the page. Records come in deflated pieces of a few cases each, unpacked when they are asked for. */
class Embedded implements Source {
  readonly served = false;
  private readonly run: Overview;
  private unpacked: { first: number; cases: Promise<CaseTrials[]> } | null = null;

  constructor(element: Element) {
    this.run = JSON.parse(element.textContent ?? "") as Overview;
  }

  overview(): Promise<Overview> {
    return Promise.resolve(this.run);
  }

  async trials(_run: string, row: CaseRow): Promise<CaseTrials> {
    await parsed();
    let piece: HTMLElement | null = null;
    for (const each of document.querySelectorAll<HTMLElement>("script.viva-records")) {
      if (Number(each.dataset["first"]) > row.index) break;
      piece = each;
    }
    if (piece === null) throw new Error("this report ends before the case's record: it is not complete");
    const first = Number(piece.dataset["first"]);
    if (this.unpacked?.first !== first) this.unpacked = { first, cases: inflated(piece.textContent ?? "") };
    const found = (await this.unpacked.cases)[row.index - first];
    if (found === undefined) throw new Error("this report has no record of the case");
    return found;
  }
}

function parsed(): Promise<void> {
  if (document.readyState !== "loading") return Promise.resolve();
  return new Promise((resolve) => document.addEventListener("DOMContentLoaded", () => resolve(), { once: true }));
}

async function inflated(packed: string): Promise<CaseTrials[]> {
  const bytes = Uint8Array.from(atob(packed), (sign) => sign.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return (await new Response(stream).json()) as CaseTrials[];
}

/** Runs of a project, from `viva view`. */
export class Server implements Source {
  readonly served = true;

  overview(run: string): Promise<Overview> {
    return get(`api/runs/${encodeURIComponent(run)}`);
  }

  trials(run: string, row: CaseRow): Promise<CaseTrials> {
    return get(`api/runs/${encodeURIComponent(run)}/cases/${row.index}`);
  }

  runs(): Promise<RunLine[]> {
    return get("api/runs");
  }

  compare(base: string, head: string): Promise<Comparison> {
    return get(`api/compare?base=${encodeURIComponent(base)}&head=${encodeURIComponent(head)}`);
  }

  history(): Promise<PastRuns> {
    return get("api/history");
  }

  me(): Promise<Me> {
    return get("api/me");
  }

  events(run: string): EventSource {
    return new EventSource(`api/runs/${encodeURIComponent(run)}/events`);
  }

  rerun(run: string, row: CaseRow): Promise<{ run: string }> {
    return send(`api/runs/${encodeURIComponent(run)}/cases/${row.index}/rerun`, {});
  }

  again(run: string): Promise<{ run: string }> {
    return send(`api/runs/${encodeURIComponent(run)}/rerun`, {});
  }
}

async function get<T>(address: string): Promise<T> {
  return answer(await fetch(address, { headers: { accept: "application/json" } }));
}

async function send<T>(address: string, body: unknown): Promise<T> {
  const headers = { accept: "application/json", "content-type": "application/json" };
  return answer(await fetch(address, { method: "POST", headers, body: JSON.stringify(body) }));
}

async function answer<T>(response: Response): Promise<T> {
  if (response.ok) return (await response.json()) as T;
  const said = (await response.text()).slice(0, 500);
  let error = "";
  try {
    error = String((JSON.parse(said) as { error?: unknown }).error ?? "");
  } catch {
    error = said;
  }
  throw new Error(error || `the server answers ${response.status}`);
}

export function openSource(): Embedded | Server {
  const element = document.getElementById(OVERVIEW);
  return element === null ? new Server() : new Embedded(element);
}
