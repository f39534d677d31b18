// A run in progress. The types mirror viva/model/live.py and viva/viewer/runs.py.
import type { Turn } from "./data";

/** How far a live run is. `earlier` trials ended before it was resumed. */
export interface Progress {
  trials: number;
  done?: number;
  passed?: number;
  failed?: number;
  errors?: number;
  skipped?: number;
  cost_usd?: number | null;
  since?: string;
  earlier?: number;
  running?: number | null;
  limit?: number | null;
  workers?: number | null;
}

/** A trial that runs now. */
export interface LiveTrial {
  suite: string;
  case: string;
  /** The agent under test, if the run has several. */
  agent?: string;
  name?: string;
  trial?: number;
  attempt?: number;
  started_at: string;
  waiting_for: string;
  planned_turns?: number;
  turn_count?: number;
  is_turn_open?: boolean;
  turns?: Turn[];
}

export interface LiveRunState {
  progress: Progress;
  view: { at: string; trials: LiveTrial[]; limit: number; workers?: number | null } | null;
}
