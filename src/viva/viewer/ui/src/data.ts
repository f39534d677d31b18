// The data of the page. The types mirror viva/reporters/page.py, viva/model/record.py and viva/history.
import type { Matrix } from "./compare_data";
import type { Progress } from "./live_data";
import type { Breakdown, CaseFigures, Criterion, FailureGroup, HelperCall, PassK, RowCounts, Span, Step } from "./detail_data";

export type * from "./detail_data";

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

/** An assertion as written, with its result; `passed` is null where it could not be evaluated. */
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
  /** The verdicts on the criteria of a rubric. */
  criteria_results?: Criterion[];
  /** Numbers of the trial's `helper_calls`, from 1. */
  judge_calls?: number[];
  duration_ms?: number;
  [field: string]: unknown;
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

/** A message of a case: a text, or parts. */
export interface Message {
  role: string;
  content?: string | Part[];
  name?: string | null;
  tool_call_id?: string | null;
}

export type Part = { type: "text"; text: string } | Attachment;

export interface Turn {
  turn: number;
  input: string;
  input_source: string;
  output: string;
  awaiting_input: boolean;
  tool_calls: ToolCall[];
  assertions: Assertion[];
  duration_ms: number;
  first_token_ms?: number | null;
  parts?: string[];
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
  comment?: string | null;
  /** Since the start of the trial. */
  start_ms?: number;
  checks_ms?: number;
  steps?: Step[];
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

/** An exception in the user's Python. */
export interface Traceback {
  where: string;
  error: string;
  frames?: { file: string; line: number; function: string; source?: string }[];
  printed?: string;
  turn?: number | null;
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
  /** The evidence for the fault, one line each, mostly with a place: `turn 2: …`, `checkpoint a: …`. */
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
  history?: Message[] | null;
  options?: Record<string, unknown> | null;
  metadata?: Record<string, unknown> | null;
  agent?: string | null;
  simulator?: string | null;
  session_id?: string | null;
  started_at?: string | null;
  source?: string | null;
  digest?: string | null;
  warnings?: string[] | null;
  tracebacks?: Traceback[];
  helper_calls?: HelperCall[];
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
  reason?: string;
  cost_usd?: number | null;
  tokens?: number;
  checks?: number;
  checks_passed?: number;
  /** Only where it is neither 0 nor 1. */
  score?: number | null;
  findings?: string[];
  /** The position of its failure in the groups of the overview. */
  group?: number | null;
  failed_types?: string[];
  interval?: Span | null;
  stability?: string;
  /** In a run of several agents. */
  agent?: string;
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
  /** Retried trials; the totals include their earlier attempts. */
  retried?: number;
  input_tokens?: number;
  output_tokens?: number;
  cost_usd?: number | null;
  unpriced_calls?: number;
  undecided?: number;
  suites?: SuiteSummary[];
  lost_reports?: string[];
}

/** The result of a suite against its threshold; `unmet` are the parts that were not reached. */
export interface SuiteSummary {
  suite: string;
  score: number;
  passed: boolean;
  cases: number;
  threshold: {
    pass_score?: number | null;
    max_cost_usd?: number | null;
    max_p95_ms?: number | null;
    baseline?: { name: string; score: number } | null;
  };
  cost_usd?: number | null;
  p95_ms?: number | null;
  unmet?: string[];
  regression?: string | null;
  worse_cases?: string[];
  uncompared_cases?: string[];
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
  without_verdict: number;
}

/** What one turn cost, and where it is. */
export interface TurnCost {
  suite: string;
  id: string;
  trial: number;
  turn: number;
  cost_usd: number;
  agent?: string;
}

export interface Overview {
  run: string;
  cases: CaseRow[];
  agent?: string;
  viva_version?: string;
  inputs?: string[];
  planned_cases?: number;
  started?: string;
  ended?: string | null;
  exit_code?: number | null;
  stopped?: string | null;
  stop_message?: string | null;
  summary?: Summary | null;
  pass_rate?: Rate | null;
  case_ms?: Spread | null;
  reply_ms?: Spread | null;
  pass_k?: PassK | null;
  costliest_turn?: TurnCost | null;
  classes?: Record<string, number>;
  groups?: FailureGroup[];
  breakdown?: Breakdown;
  /** Of a large run, whose rows are loaded in pieces: `cases` is empty. */
  counts?: RowCounts | null;
  matrix?: Matrix | null;
}

/** The trials of a case. `command` reruns it; `attachments` has data: URLs by source. */
export interface CaseTrials {
  trials: Trial[];
  figures?: CaseFigures;
  command?: string;
  attachments?: Record<string, string>;
}

export interface RunRow {
  id: string;
  live?: boolean;
  progress?: Progress;
  at: string;
  agent: string;
  inputs: string[];
  cases: number;
  viva?: string;
  ended?: string | null;
  exit_code?: number | null;
  stopped?: string | null;
  summary?: Summary | null;
  model?: string;
  commit?: string;
  branch?: string;
  rerun_of?: string;
  /** The tags that selected its cases. */
  tags?: string[];
}

/** How many trials of a case passed in one run. */
export interface TrialCounts {
  passed: number;
  decided: number;
  errors: number;
}

export interface CaseChange {
  suite: string;
  case: string;
  change: string;
  base?: Status | null;
  head?: Status | null;
  error?: string | null;
  base_error?: string | null;
  base_trials?: TrialCounts | null;
  head_trials?: TrialCounts | null;
  p?: number | null;
}

/** The change of a metric. Without `p` it was not tested. */
export interface Metric {
  name: string;
  pairs: number;
  differing: number;
  base_trials: number;
  head_trials: number;
  base: number;
  head: number;
  delta: number;
  confidence: number;
  low: number | null;
  high: number | null;
  p: number | null;
  verdict: "better" | "worse" | "no change shown" | "not tested";
}

export interface Comparison {
  base: string;
  head: string;
  alpha: number;
  cases: CaseChange[];
  metrics: Metric[];
  /** Limits of the comparison. */
  notes: string[];
}

/** A run in a line; `left_out` says why it is no fair point of it. */
export interface LinePoint {
  run: string;
  at: string;
  exit_code?: number | null;
  passed: number;
  decided: number;
  pass_rate?: number | null;
  low?: number | null;
  high?: number | null;
  cost_usd?: number | null;
  trials?: number;
  p95_ms?: number | null;
  left_out?: string;
  changes?: string[];
}

/** An agent on a suite, oldest run first. */
export interface HistoryLine {
  agent: string;
  suite: string;
  points: LinePoint[];
}

/** A case that both passed and failed with the same agent; `statuses` belong to `runs`, oldest first. */
export interface FlakyCase {
  suite: string;
  case: string;
  agent: string;
  flips: number;
  flip_rate: number;
  passed: number;
  decided: number;
  runs: string[];
  statuses: Status[];
}

export interface RunHistory {
  runs: number;
  lines: HistoryLine[];
  flaky: FlakyCase[];
}

export interface ViewerStatus {
  allow_run: boolean;
  live: string[];
  version?: string;
}

export interface Event {
  event: string;
  [field: string]: unknown;
}
