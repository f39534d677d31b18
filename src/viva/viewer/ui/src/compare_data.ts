// The data of comparisons. The types mirror viva/stats/matrix.py, viva/viewer/runs.py and viva/viewer/differences.py.
import type { Comparison } from "./data";

export type DifferenceVerdict = "better" | "worse" | "no difference shown";

/** A case on one agent. `p` and `verdict` are against the first agent, for repeated cases. */
export interface MatrixCell {
  passed: number;
  decided: number;
  errors?: number;
  skipped?: number;
  low?: number | null;
  high?: number | null;
  p?: number | null;
  verdict?: DifferenceVerdict | null;
  is_changed?: boolean;
}

export interface MatrixRow {
  suite: string;
  case: string;
  cells: (MatrixCell | null)[];
}

/** How far the pass rate is above that of the first agent; corrected for the number of agents. */
export interface RateDifference {
  delta: number;
  low: number | null;
  high: number | null;
  p: number;
  confidence: number;
  pairs: number;
  differing: number;
  verdict: DifferenceVerdict;
}

export interface MatrixColumn {
  name: string;
  cases: number;
  trials: number;
  errors: number;
  skipped: number;
  rate: number | null;
  low: number | null;
  high: number | null;
  cost_usd: number | null;
  unpriced_trials: number;
  cost_per_trial_usd: number | null;
  mean_ms: number | null;
  p95_ms: number | null;
  difference: RateDifference | null;
}

export interface Matrix {
  alpha: number;
  columns: MatrixColumn[];
  rows: MatrixRow[];
  notes: string[];
}

export interface RunAgent {
  run: string;
  agent: string;
}

export interface RunsMatrix {
  matrix: Matrix;
  columns: RunAgent[];
}

/** One of two runs that are compared; `agents` are those to choose from. */
export interface RunSide {
  run: string;
  at: string;
  agent: string;
  agents: string[];
}

/** One thing that differs beside the results. null: the run has it not. */
export interface RunDifference {
  name: string;
  base: string | null;
  head: string | null;
}

export interface TwoRuns {
  comparison: Comparison;
  base: RunSide;
  head: RunSide;
  differences: RunDifference[];
}
