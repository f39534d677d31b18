// What explains a run and a case. The types mirror viva/model/turn.py, viva/model/message.py and viva/reporters.
import type { Quote, Status } from "./data";

export interface Criterion {
  criterion: string;
  passed: boolean;
  reason?: string;
  score?: number | null;
  weight?: number;
  evidence?: Quote[];
}

/** A question to a simulator or judge; of a judge also what it was sent and answered. */
export interface HelperCall {
  role: string;
  agent: string;
  turn: number;
  start_ms: number;
  duration_ms: number;
  criteria?: string;
  sent?: { role: string; text: string }[];
  metadata?: string;
  answer?: string;
  error?: string | null;
  tokens?: number;
  cost_usd?: number | null;
}

/** A model call or tool call inside a reply; its start is counted from that of the turn. */
export interface Step {
  kind: "model" | "tool";
  name: string;
  start_ms: number;
  duration_ms: number;
  tokens?: number;
  cost_usd?: number | null;
}

export interface Span {
  low: number;
  high: number;
}

export interface FailureGroup {
  title: string;
  cases: number;
  status: Status;
}

export interface NamedRate {
  name: string;
  passed: number;
  decided: number;
  interval?: Span | null;
}

export interface Breakdown {
  tags?: NamedRate[];
  suites?: NamedRate[];
  types?: NamedRate[];
  tools?: NamedRate[];
}

export interface PassK {
  k: number;
  pass_at_k: number | null;
  pass_hat_k: number | null;
  cases?: number;
}

/** The statistics of a repeated case. */
export interface CaseFigures {
  interval?: Span | null;
  pass_k?: PassK[];
  decision?: string;
}

/** The status of each case as a letter, and how many have each fault and tag. */
export interface RowCounts {
  statuses: string;
  faults: [string, number][];
  tags: [string, number][];
}
