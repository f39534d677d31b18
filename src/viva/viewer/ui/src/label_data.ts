// What people say of verdicts. The types mirror viva/model/label.py and viva/stats/agreement.py.
import type { Status } from "./data";

export type LabelValue = "agree" | "disagree" | "unsure";

/** What a person said of a check or, with no check, of a case. */
export interface Label {
  at: string;
  who: string;
  suite: string;
  case: string;
  agent?: string;
  trial?: number;
  check?: string;
  name?: string;
  verdict: Status;
  label: LabelValue;
  note?: string;
}

export interface Agreement {
  agreed: number;
  decided: number;
  unsure: number;
  false_passes: number;
  false_failures: number;
  rate?: number | null;
  interval?: { low: number; high: number } | null;
  kappa?: number | null;
}

export interface LabelSummary {
  labels: Label[];
  judges?: Agreement | null;
  all?: Agreement | null;
}

/** The agreement of one run. */
export interface LabelPoint {
  run: string;
  at: string;
  agent: string;
  judges?: Agreement | null;
  all?: Agreement | null;
}

export interface RunLabels {
  /** Who gives new labels; empty in a report. */
  who: string;
  summary: LabelSummary;
}
