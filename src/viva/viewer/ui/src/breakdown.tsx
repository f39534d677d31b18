// Where a run fails: equal failures as groups, and pass rates by tag, suite and type of assertion. Each opens its cases.
import { useState } from "preact/hooks";
import type { FailureGroup, NamedRate, Overview } from "./data";
import type { Filter } from "./filters";
import { formatCount, formatNumber, formatPercent } from "./format";
import { countCases } from "./rows";
import { StatusIcon } from "./status";
import { formatSpan, RateBar } from "./sure";
import { Line } from "./text";

const SHOWN = 8;
const TABS = { groups: "Failures", tags: "By tag", suites: "By suite", types: "By check", tools: "By tool" } as const;
type Tab = keyof typeof TABS;

interface Props {
  overview: Overview;
  filter: Filter;
  change: (part: Partial<Filter>) => void;
}

export function BreakdownPanel({ overview, filter, change }: Props) {
  const groups = (overview.groups ?? []).map((group, at) => ({ group, at })).sort((a, b) => b.group.cases - a.group.cases || a.at - b.at);
  const rates = overview.breakdown ?? {};
  const has: Record<Tab, boolean> = {
    groups: groups.length > 0,
    tags: (rates.tags ?? []).length > 0,
    suites: (rates.suites ?? []).length > 0,
    types: (rates.types ?? []).length > 0,
    tools: (rates.tools ?? []).length > 0,
  };
  const tabs = (Object.keys(TABS) as Tab[]).filter((tab) => has[tab]);
  const [wanted, setTab] = useState<Tab>("groups");
  const tab = has[wanted] ? wanted : tabs[0];
  const isRepeated = groups.some(({ group }) => group.cases > 1);
  const [isOpen, setOpen] = useState(() => isRepeated && innerWidth > 640);
  if (tab === undefined || (groups.length === 0 && countCases(overview) < 2)) return null;
  const failing = groups.reduce((sum, { group }) => sum + group.cases, 0);
  const title = groups.length ? `${formatCount(failing, "case")} in ${formatCount(groups.length, "kind")} of failure` : "Pass rates";
  return (
    <details class="breakdown" id="breakdown" open={isOpen} onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>
        {title} {!isOpen && <span class="muted">{tabs.filter((each) => each !== "groups").map((each) => TABS[each].toLowerCase()).join(" · ")}</span>}
      </summary>
      {tabs.length > 1 && (
        <div class="chips" role="group" aria-label="Show failures">
          {tabs.map((each) => (
            <button key={each} type="button" class="chip" id={`breakdown-${each}`} aria-pressed={each === tab} onClick={() => setTab(each)}>
              {TABS[each]}
            </button>
          ))}
        </div>
      )}
      {tab === "groups" && <Groups groups={groups} chosen={filter.group} choose={(group) => change({ group })} />}
      {tab === "tags" && <Rates rates={rates.tags ?? []} noun="case" chosen={filter.tag} choose={(tag) => change({ tag })} />}
      {tab === "suites" && <Rates rates={rates.suites ?? []} noun="case" chosen={filter.suite} choose={(suite) => change({ suite })} />}
      {tab === "types" && <Rates rates={rates.types ?? []} noun="check" chosen={filter.type} choose={(type) => change({ type })} />}
      {tab === "tools" && <Rates rates={rates.tools ?? []} noun="call" chosen={filter.text} choose={(text) => change({ text })} />}
    </details>
  );
}

/** Shows the rates of the tools. They are always in the page, maybe folded. */
export function openToolRates(): void {
  const panel = document.getElementById("breakdown") as HTMLDetailsElement | null;
  if (panel === null) return;
  panel.open = true;
  document.getElementById("breakdown-tools")?.click();
  panel.scrollIntoView({ block: "start" });
  (document.getElementById("breakdown-tools") ?? panel.querySelector("summary"))?.focus({ preventScroll: true });
}

function Groups({ groups, chosen, choose }: { groups: { group: FailureGroup; at: number }[]; chosen: string; choose: (group: string) => void }) {
  const [isWhole, setWhole] = useState(false);
  return (
    <>
      <ul id="groups">
        {groups.slice(0, isWhole ? undefined : SHOWN).map(({ group, at }) => (
          <li key={at}>
            <button type="button" class="group" aria-pressed={chosen === String(at)} onClick={() => choose(chosen === String(at) ? "" : String(at))}>
              <b>{formatNumber(group.cases)} ×</b>
              <StatusIcon status={group.status} size={14} />
              <Line text={group.title} />
            </button>
          </li>
        ))}
      </ul>
      {groups.length > SHOWN && <More isWhole={isWhole} many={groups.length} toggle={() => setWhole(!isWhole)} />}
    </>
  );
}

function Rates({ rates, noun, chosen, choose }: { rates: NamedRate[]; noun: string; chosen: string; choose: (name: string) => void }) {
  const [isWhole, setWhole] = useState(false);
  return (
    <>
      <ul id="rates">
        {rates.slice(0, isWhole ? undefined : SHOWN).map((each) => (noun === "call" ? turnOver(each) : each)).map(({ name, passed, decided, interval }) => (
          <li key={name}>
            <button type="button" class={`group rate ${noun === "call" && passed > 0 ? "bad" : ""}`} aria-pressed={chosen === name} onClick={() => choose(chosen === name ? "" : name)}>
              <span class="name">
                <Line text={name} />
              </span>
              <b>{formatPercent(passed / decided, 0)}</b>
              <RateBar rate={passed / decided} interval={interval} />
              <span class="muted">
                {`${formatNumber(passed)} of ${formatCount(decided, noun)} ${noun === "call" ? "failed" : "passed"}`}
                {interval && `, ${formatSpan(interval)}`}
              </span>
            </button>
          </li>
        ))}
      </ul>
      {rates.length > SHOWN && <More isWhole={isWhole} many={rates.length} toggle={() => setWhole(!isWhole)} />}
    </>
  );
}

/** The share of failed calls of a tool, from the share of those that passed. */
function turnOver({ name, passed, decided, interval }: NamedRate): NamedRate {
  return { name, decided, passed: decided - passed, ...(interval ? { interval: { low: 1 - interval.high, high: 1 - interval.low } } : {}) };
}

function More({ isWhole, many, toggle }: { isWhole: boolean; many: number; toggle: () => void }) {
  return (
    <button type="button" class="link" onClick={toggle}>
      {isWhole ? "Show fewer" : `Show all ${formatNumber(many)}`}
    </button>
  );
}
