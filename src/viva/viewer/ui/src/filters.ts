// Which cases are shown and in which order. The filter is part of the URL.
import type { CaseRow, Status } from "./data";

export const SORTS = {
  input: "Input order",
  outcome: "Not passed first",
  slow: "Slowest first",
  costly: "Most expensive first",
  turns: "Most turns first",
  name: "By id",
} as const;
export type Sort = keyof typeof SORTS;

export interface Filter {
  statuses: Set<Status>;
  fault: string;
  tag: string;
  text: string;
  /** A suite, a type of assertion that did not pass, a group of equal failures. */
  suite: string;
  type: string;
  group: string;
  sort: Sort;
}

const RANK: Record<Status, number> = { failed: 0, error: 1, skipped: 2, passed: 3 };

export function parseFilter(query: Record<string, string>): Filter {
  const statuses = (query["status"] ?? "").split(",").filter(Boolean) as Status[];
  const sort = query["sort"] ?? "";
  return {
    statuses: new Set(statuses),
    fault: query["fault"] ?? "",
    tag: query["tag"] ?? "",
    text: query["q"] ?? "",
    suite: query["suite"] ?? "",
    type: query["type"] ?? "",
    group: query["group"] ?? "",
    sort: sort in SORTS ? (sort as Sort) : "outcome",
  };
}

export function buildQuery(filter: Filter): Record<string, string> {
  return {
    status: [...filter.statuses].sort().join(","),
    fault: filter.fault,
    tag: filter.tag,
    q: filter.text,
    suite: filter.suite,
    type: filter.type,
    group: filter.group,
    sort: filter.sort === "outcome" ? "" : filter.sort,
  };
}

export function isEmpty(filter: Filter): boolean {
  return filter.statuses.size === 0 && !filter.fault && !filter.tag && !filter.text && !filter.suite && !filter.type && !filter.group;
}

/** `found` are the cases whose conversations have the words. */
export function selectRows(rows: CaseRow[], filter: Filter, found?: ReadonlySet<number>): CaseRow[] {
  const words = splitWords(filter.text);
  const matching = rows.filter(
    (row) =>
      (filter.statuses.size === 0 || filter.statuses.has(row.status)) &&
      (!filter.fault || row.fault === filter.fault) &&
      (!filter.tag || (row.tags ?? []).includes(filter.tag)) &&
      (!filter.suite || row.suite === filter.suite) &&
      (!filter.type || (row.failed_types ?? []).includes(filter.type)) &&
      (!filter.group || String(row.group) === filter.group) &&
      (words.length === 0 || found?.has(row.index) || matchesWords(row, words)),
  );
  const by = order(filter.sort);
  return by === null ? matching : matching.sort((a, b) => by(a, b) || a.index - b.index);
}

/** The words of a search in lower case; "several words" in quotation marks are one. */
export function splitWords(text: string): string[] {
  return [...text.toLowerCase().matchAll(/"([^"]+)"|[^\s"]+/g)].map((match) => (match[1] ?? match[0]).trim()).filter(Boolean);
}

function matchesWords(row: CaseRow, words: string[]): boolean {
  const text = `${row.id} ${row.agent ?? ""} ${row.name ?? ""} ${row.suite} ${(row.tags ?? []).join(" ")} ${(row.findings ?? []).join(" ")} ${row.reason ?? ""}`.toLowerCase();
  return words.every((word) => text.includes(word));
}

function order(sort: Sort): ((a: CaseRow, b: CaseRow) => number) | null {
  switch (sort) {
    case "input":
      return null;
    case "outcome":
      return (a, b) => RANK[a.status] - RANK[b.status] || isFlaky(b) - isFlaky(a);
    case "slow":
      return (a, b) => b.duration_ms - a.duration_ms;
    case "costly":
      return (a, b) => (b.cost_usd ?? -1) - (a.cost_usd ?? -1);
    case "turns":
      return (a, b) => b.turns - a.turns;
    case "name":
      return (a, b) => (a.id < b.id ? -1 : a.id > b.id ? 1 : 0);
  }
}

/** 1 if trials of the case ended in different ways. */
function isFlaky(row: CaseRow): number {
  return row.trials.some((status) => status !== row.trials[0]) ? 1 : 0;
}
