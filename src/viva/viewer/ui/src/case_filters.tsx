// The filters above the list of cases: status, fault, tag, words, and the order.
import { useMemo } from "preact/hooks";
import type { Overview, Status } from "./data";
import { SORTS, type Filter, type Sort } from "./filters";
import { formatCount, formatNumber } from "./format";
import { countCases } from "./rows";
import { LETTERS, StatusIcon, STATUSES } from "./status";
import { escapeControls } from "./text";

interface FiltersProps {
  overview: Overview;
  filter: Filter;
  change: (part: Partial<Filter>) => void;
  count: number;
  isSearching: boolean;
}

export function Filters({ overview, filter, change, count, isSearching }: FiltersProps) {
  const counts = useMemo(() => countRows(overview), [overview.cases]);
  const all = countCases(overview);
  const toggle = (status: Status) => {
    const statuses = new Set(filter.statuses);
    if (!statuses.delete(status)) statuses.add(status);
    change({ statuses });
  };
  return (
    <div class="filters" role="search" aria-label="Filter cases">
      <div class="chips" role="group" aria-label="Status">
        {STATUSES.filter((status) => counts.statuses[status] || filter.statuses.has(status)).map((status) => (
          <button
            key={status}
            type="button"
            class={`chip ${status}`}
            id={`filter-${status}`}
            aria-pressed={filter.statuses.has(status)}
            onClick={() => toggle(status)}
          >
            <StatusIcon status={status} label={false} size={14} />
            {status} <b>{formatNumber(counts.statuses[status] ?? 0)}</b>
          </button>
        ))}
      </div>
      <FilterSelect id="filter-fault" label="Fault" value={filter.fault} options={counts.faults} change={(fault) => change({ fault })} />
      <FilterSelect id="filter-tag" label="Tag" value={filter.tag} options={counts.tags} change={(tag) => change({ tag })} />
      <input
        type="search"
        id="search"
        placeholder="Search conversations  ( / )"
        aria-label="Search cases and conversations"
        value={filter.text}
        onInput={(event) => change({ text: event.currentTarget.value })}
        onKeyDown={(event) => {
          if (event.key === "Escape") event.currentTarget.blur();
        }}
      />
      <label class="sort">
        <span class="visually-hidden">Sort</span>
        <select id="sort" value={filter.sort} onChange={(event) => change({ sort: event.currentTarget.value as Sort })}>
          {Object.entries(SORTS).map(([value, label]) => (
            <option key={value} value={value}>
              {label}
            </option>
          ))}
        </select>
      </label>
      <span class="found" role="status" id="found">
        {count === all ? formatCount(count, "case") : `${formatNumber(count)} of ${formatCount(all, "case")}`}
        {isSearching && "…"}
      </span>
    </div>
  );
}

function FilterSelect(props: { id: string; label: string; value: string; options: [string, number][]; change: (value: string) => void }) {
  if (props.options.length === 0 && !props.value) return null;
  return (
    <label>
      <span class="visually-hidden">{props.label}</span>
      <select id={props.id} value={props.value} onChange={(event) => props.change(event.currentTarget.value)}>
        <option value="">Any {props.label.toLowerCase()}</option>
        {props.options.map(([value, many]) => (
          <option key={value} value={value}>
            {escapeControls(value)} ({many})
          </option>
        ))}
      </select>
    </label>
  );
}

function countRows({ cases: rows, counts }: Overview) {
  const statuses: Partial<Record<Status, number>> = {};
  if (counts) {
    for (const letter of counts.statuses) statuses[LETTERS[letter] ?? "error"] = (statuses[LETTERS[letter] ?? "error"] ?? 0) + 1;
    return { statuses, faults: counts.faults, tags: counts.tags };
  }
  const faults = new Map<string, number>();
  const tags = new Map<string, number>();
  for (const row of rows) {
    statuses[row.status] = (statuses[row.status] ?? 0) + 1;
    if (row.fault) faults.set(row.fault, (faults.get(row.fault) ?? 0) + 1);
    for (const tag of row.tags ?? []) tags.set(tag, (tags.get(tag) ?? 0) + 1);
  }
  const rank = (counts: Map<string, number>) => [...counts].sort((a, b) => b[1] - a[1]).slice(0, 200);
  return { statuses, faults: rank(faults), tags: rank(tags) };
}
