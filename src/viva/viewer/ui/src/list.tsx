// The list of cases. Only the rows in view are in the page.
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import type { CaseRow } from "./data";
import { formatCount, formatCost, formatMs } from "./format";
import { Line } from "./text";
import { TrialDots, StatusIcon, describeTrials } from "./status";

const EXTRA_ROWS = 8;

interface Props {
  rows: CaseRow[];
  /** The row selected by keyboard, or -1. */
  at: number;
  href: (row: CaseRow) => string;
  /** Suites with a threshold: their scores are shown. */
  scored: Set<string>;
}

export function CaseList({ rows, at, href, scored }: Props) {
  const list = useRef<HTMLDivElement>(null);
  const [height, setHeight] = useState(56);
  const [range, setRange] = useState<[number, number]>([0, 40]);
  const [isPrinting, setPrinting] = useState(false); // printing shows all rows

  useLayoutEffect(() => {
    const paper = matchMedia("print");
    const measure = () => {
      if (paper.matches) return;
      const row = list.current?.querySelector<HTMLElement>(".probe");
      const rowHeight = row ? row.getBoundingClientRect().height : 56;
      setHeight(rowHeight);
      const top = -(list.current?.getBoundingClientRect().top ?? 0);
      const first = Math.max(0, Math.floor(top / rowHeight) - EXTRA_ROWS);
      const last = Math.ceil((top + innerHeight) / rowHeight) + EXTRA_ROWS;
      setRange((old) => (old[0] === first && old[1] === last ? old : [first, last]));
    };
    measure();
    addEventListener("scroll", measure, { passive: true });
    addEventListener("resize", measure);
    return () => {
      removeEventListener("scroll", measure);
      removeEventListener("resize", measure);
    };
  }, [rows]);

  useEffect(() => {
    const change = (event: Event) => setPrinting(event.type === "beforeprint");
    for (const name of ["beforeprint", "afterprint"]) addEventListener(name, change);
    return () => {
      for (const name of ["beforeprint", "afterprint"]) removeEventListener(name, change);
    };
  }, []);

  useLayoutEffect(() => {
    if (at < 0) return;
    const top = (list.current?.getBoundingClientRect().top ?? 0) + at * height;
    if (top < 80 || top + height > innerHeight - 16) scrollBy({ top: top - innerHeight / 3, behavior: "instant" });
    list.current?.querySelector<HTMLElement>(`[data-at="${at}"]`)?.focus({ preventScroll: true });
  }, [at, height]);

  const places = isPrinting ? rows.map((_, i) => i) : rows.slice(...range).map((_, i) => range[0] + i);
  if (rows[at] !== undefined && !places.includes(at)) places.push(at); // it gets the focus before it is scrolled into view
  return (
    <div
      class="cases"
      id="cases"
      role="list"
      aria-label={formatCount(rows.length, "case")}
      ref={list}
      style={{ height: `${rows.length * height}px` }}
    >
      <div class="case-row probe" aria-hidden="true" />
      {places.map((place) => {
        const row = rows[place] as CaseRow;
        return (
          <div
            class="place"
            key={row.index}
            role="listitem"
            aria-setsize={rows.length}
            aria-posinset={place + 1}
            style={{ transform: `translateY(${place * height}px)` }}
          >
            <Row row={row} href={href(row)} at={place} scored={scored.has(row.suite)} />
          </div>
        );
      })}
    </div>
  );
}

function Row({ row, href, at, scored }: { row: CaseRow; href: string; at: number; scored: boolean }) {
  const many = row.trials.length > 1;
  return (
    <a class={`case-row ${row.status}`} href={href} data-at={at} data-case={row.id}>
      <StatusIcon status={row.status} />
      <span class="what">
        <span class="title">
          <b>
            <Line text={row.id} room={120} />
          </b>
          {row.name && (
            <span class="name">
              <Line text={row.name} room={160} />
            </span>
          )}
          {(row.tags ?? []).slice(0, 4).map((tag) => (
            <span class="tag" key={tag}>
              <Line text={tag} room={30} />
            </span>
          ))}
          {scored && typeof row.score === "number" && <span class="tag">score {row.score.toFixed(2)}</span>}
          {row.reason && (
            <span class="suite">
              <Line text={row.suite} room={80} />
            </span>
          )}
        </span>
        <span class="why">
          {row.fault && row.fault !== "agent" && <span class="fault">{row.fault}</span>}
          {(row.findings ?? []).map((finding) => (
            <span class="fault" key={finding}>
              {finding}
            </span>
          ))}
          {row.reason ? <Line text={row.reason} /> : <Line text={row.suite} />}
        </span>
      </span>
      <span class="facts">
        {many && <TrialDots trials={row.trials} label={describeTrials(row.trials)} />}
        <span class="fact" title="turns">
          {formatCount(row.turns, "turn")}
        </span>
        {row.checks ? (
          <span class="fact checks" title="checks passed">
            {row.checks_passed ?? 0}/{row.checks}
            <span class="visually-hidden"> checks passed</span>
          </span>
        ) : (
          <span class="fact checks">no checks</span>
        )}
        <span class="fact cost">{row.cost_usd ? formatCost(row.cost_usd) : ""}</span>
        <span class="fact time">{formatMs(row.duration_ms)}</span>
      </span>
    </a>
  );
}
