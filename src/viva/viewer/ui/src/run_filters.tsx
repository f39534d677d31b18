// The filter of the list of runs: by text, agent, model, branch and tag. It is part of the URL.
import type { RunRow } from "./data";
import { buildHash, navigate } from "./route";
import { escapeControls } from "./text";
import "./run_filters.css";

const NAMES = { agent: "Agent", model: "Model", branch: "Branch", tag: "Tag" } as const;
type Name = keyof typeof NAMES;

export interface RunFilter {
  text: string;
  values: Partial<Record<Name, string>>;
}

export function parseRunFilter(query: Record<string, string>): RunFilter {
  const values = Object.fromEntries((Object.keys(NAMES) as Name[]).map((name) => [name, query[name] ?? ""]));
  return { text: query["text"] ?? "", values };
}

export function selectRuns(runs: RunRow[], { text, values }: RunFilter): RunRow[] {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const chosen = Object.entries(values).filter(([, value]) => value) as [Name, string][];
  if (words.length === 0 && chosen.length === 0) return runs;
  return runs.filter((run) => {
    if (!chosen.every(([name, value]) => listValues(run, name).includes(value))) return false;
    const all = [run.id, ...run.inputs, run.commit ?? "", ...(Object.keys(NAMES) as Name[]).flatMap((name) => listValues(run, name))];
    const line = all.join(" ").toLowerCase();
    return words.every((word) => line.includes(word));
  });
}

function listValues(run: RunRow, name: Name): string[] {
  return name === "tag" ? (run.tags ?? []) : [run[name] ?? ""].filter(Boolean);
}

export function RunFilters({ runs, filter, count }: { runs: RunRow[]; filter: RunFilter; count: number }) {
  const change = (part: Partial<RunFilter>) => {
    const { text, values } = { ...filter, ...part };
    navigate(buildHash(["runs"], { text, ...values }), true);
  };
  return (
    <div class="filters run-filters" role="search" aria-label="Filter runs">
      <input
        type="search"
        id="search"
        placeholder="Agent, model, commit, tag, input, id  ( / )"
        aria-label="Search runs"
        value={filter.text}
        onInput={(event) => change({ text: event.currentTarget.value })}
        onKeyDown={(event) => event.key === "Escape" && event.currentTarget.blur()}
      />
      {(Object.keys(NAMES) as Name[]).map((name) => {
        const options = [...new Set(runs.flatMap((run) => listValues(run, name)))].sort();
        const value = filter.values[name] ?? "";
        if (options.length < 2 && !value) return null;
        return (
          <label key={name}>
            <span class="visually-hidden">{NAMES[name]}</span>
            <select
              id={`runs-${name}`}
              value={value}
              onChange={(event) => change({ values: { ...filter.values, [name]: event.currentTarget.value } })}
            >
              <option value="">{NAMES[name]}: all</option>
              {options.map((option) => (
                <option key={option} value={option}>
                  {escapeControls(option)}
                </option>
              ))}
            </select>
          </label>
        );
      })}
      <span class="found" role="status" id="found">
        {count === runs.length ? "" : `${count} of ${runs.length} runs`}
      </span>
    </div>
  );
}
