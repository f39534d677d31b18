// The icon of a status: each has a shape of its own, so that colour is not needed to tell them apart.
import type { Status } from "./data";

export const STATUSES: Status[] = ["failed", "error", "passed", "skipped"];

/** Statuses as letters, as the server writes those of a large run. */
export const LETTERS: Record<string, Status> = { p: "passed", f: "failed", e: "error", s: "skipped" };

const PATHS: Record<Status, string> = {
  passed: "M4.6 8.3l2.3 2.3 4.5-5",
  failed: "M5.4 5.4l5.2 5.2M10.6 5.4l-5.2 5.2",
  error: "M8 4.4v4.4M8 11.3v.1",
  skipped: "M5 8h6",
};

export function StatusIcon({ status, label = true, size = 16 }: { status: Status; label?: boolean; size?: number }) {
  const named = label ? { role: "img" as const, "aria-label": status } : { "aria-hidden": true as const };
  return (
    <svg class={`sign ${status}`} width={size} height={size} viewBox="0 0 16 16" {...named}>
      <circle cx="8" cy="8" r="7.5" />
      <path d={PATHS[status]} />
    </svg>
  );
}

/** One dot for each trial of a case. */
export function TrialDots({ trials, label }: { trials: Status[]; label: string }) {
  return (
    <span class="dots" role="img" aria-label={label}>
      {trials.slice(0, 30).map((status, at) => (
        <i class={status} key={at} />
      ))}
      {trials.length > 30 && <small>+{trials.length - 30}</small>}
    </span>
  );
}

export function describeTrials(trials: Status[]): string {
  const passed = trials.filter((status) => status === "passed").length;
  return `${passed} of ${trials.length} trials passed`;
}
