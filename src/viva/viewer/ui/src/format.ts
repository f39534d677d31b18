// Numbers and times for display, in the same form as Viva's other reports.

export function formatMs(ms: number): string {
  if (ms < 999.5) return `${Math.round(ms)} ms`;
  if (ms < 59_950) return `${(ms / 1000).toFixed(1)} s`;
  const whole = Math.round(ms / 1000);
  if (whole < 3600) return `${Math.floor(whole / 60)}m ${padTwo(whole % 60)}s`;
  return `${Math.floor(whole / 3600)}h ${padTwo(Math.floor((whole % 3600) / 60))}m`;
}

export function formatNumber(value: number): string {
  return value.toLocaleString("en-US");
}

export function formatCount(value: number, noun: string): string {
  return `${formatNumber(value)} ${noun}${value === 1 ? "" : "s"}`;
}

export function formatCost(usd: number): string {
  if (usd === 0) return "$0";
  if (usd >= 10) return `$${usd.toLocaleString("en-US", { minimumFractionDigits: 2, maximumFractionDigits: 2 })}`;
  if (usd < 0.001) return `$${Number(usd.toPrecision(2)).toFixed(6).replace(/\.?0+$/, "")}`; // as format_cost in viva/reporters/formatting.py
  return `$${usd.toFixed(4)}`;
}

/** Only a full score reads 1.00. */
export function formatScore(score: number): string {
  return (score < 1 ? Math.min(score, 0.99) : score).toFixed(2);
}

export function formatPercent(share: number, digits = 1): string {
  return `${(share * 100).toFixed(digits)} %`;
}

/** 12,345 as `12.3k`. */
export function formatShort(value: number): string {
  if (value < 1000) return String(Math.round(value));
  if (value < 1_000_000) return `${(value / 1000).toFixed(value < 9950 ? 1 : 0)}k`;
  return `${(value / 1_000_000).toFixed(1)}M`;
}

export function formatLength(length: number): string {
  if (length < 1000) return `${length} characters`;
  if (length < 1_000_000) return `${(length / 1000).toFixed(0)} k characters`;
  return `${(length / 1_000_000).toFixed(1)} M characters`;
}

/** A time in the reader's time zone: `15 Nov 2026, 14:03`. */
export function formatTime(at: string | null | undefined): string {
  const date = at ? new Date(at) : null;
  if (date === null || Number.isNaN(date.getTime())) return at ?? "";
  const day = date.toLocaleDateString("en-GB", { day: "numeric", month: "short", year: "numeric" });
  return `${day}, ${padTwo(date.getHours())}:${padTwo(date.getMinutes())}`;
}

function padTwo(value: number): string {
  return String(value).padStart(2, "0");
}

/** The entries of counts by name, in the order of the names. Names that are not listed come last. */
export function sortByName(counts: Record<string, number>, names: string[]): [string, number][] {
  const rank = (name: string) => (names.includes(name) ? names.indexOf(name) : names.length);
  return Object.entries(counts).sort(([a], [b]) => rank(a) - rank(b));
}
