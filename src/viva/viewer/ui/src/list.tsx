// The list of cases. Only the rows in view are in the page.
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import type { CaseRow } from "./data";
import { formatCount, formatCost, formatMs, formatScore } from "./format";
import { RowHeights } from "./heights";
import type { RowSet } from "./rows";
import type { Hit } from "./search";
import { Repeats } from "./sure";
import { Line } from "./text";
import { TrialDots, StatusIcon, describeTrials } from "./status";

const EXTRA_ROWS = 8;

interface Props {
  rows: RowSet;
  /** The row selected by keyboard, or -1. */
  at: number;
  href: (row: CaseRow) => string;
  /** Suites with a threshold: their scores are shown. */
  scored: Set<string>;
}

export function CaseList({ rows, at, href, scored }: Props) {
  const list = useRef<HTMLDivElement>(null);
  const [{ height, width }, setSize] = useState({ height: 56, width: 0 });
  const heights = useMemo(() => new RowHeights(rows.ids, height, width), [rows.ids, height, width]);
  const measuredWidth = useRef(0);
  const room = useRef(0);
  const [range, setRange] = useState<[number, number]>([0, 40]);
  const [isPrinting, setPrinting] = useState(false); // printing shows all rows

  useLayoutEffect(() => {
    const paper = matchMedia("print");
    const measure = () => {
      if (paper.matches) return;
      const row = list.current?.querySelector<HTMLElement>(".probe");
      const rowHeight = row ? row.getBoundingClientRect().height : 56;
      const texts = [...(list.current?.querySelectorAll<HTMLElement>(".place .what") ?? [])].map((text) => text.clientWidth);
      // In a list of the same width the room for ids only shrinks, so that measuring comes to an end.
      const listWidth = list.current?.clientWidth ?? 0;
      const least = Math.min(...texts, ...(listWidth === measuredWidth.current ? [room.current] : []), listWidth);
      [measuredWidth.current, room.current] = [listWidth, least];
      setSize((old) => (old.height === rowHeight && old.width === least ? old : { height: rowHeight, width: least }));
      const top = -(list.current?.getBoundingClientRect().top ?? 0);
      const first = Math.max(0, heights.find(top) - EXTRA_ROWS);
      const last = heights.find(top + innerHeight) + 1 + EXTRA_ROWS;
      setRange((old) => (old[0] === first && old[1] === last ? old : [first, last]));
    };
    measure();
    addEventListener("scroll", measure, { passive: true });
    addEventListener("resize", measure);
    return () => {
      removeEventListener("scroll", measure);
      removeEventListener("resize", measure);
    };
  }, [heights, rows.total]);
  useEffect(() => rows.need(...range), [range, rows.total]);

  useEffect(() => {
    const change = (event: Event) => setPrinting(event.type === "beforeprint");
    for (const name of ["beforeprint", "afterprint"]) addEventListener(name, change);
    return () => {
      for (const name of ["beforeprint", "afterprint"]) removeEventListener(name, change);
    };
  }, []);

  useLayoutEffect(() => {
    if (at < 0) return;
    const top = (list.current?.getBoundingClientRect().top ?? 0) + heights.top(at);
    if (top < 80 || top + heights.of(at) > innerHeight - 16) scrollBy({ top: top - innerHeight / 3, behavior: "instant" });
    list.current?.querySelector<HTMLElement>(`[data-at="${at}"]`)?.focus({ preventScroll: true });
  }, [at, heights]);

  const [first, last] = isPrinting ? [0, rows.total] : [range[0], Math.min(range[1], rows.total)];
  const places = Array.from({ length: Math.max(0, last - first) }, (_, i) => first + i);
  if (at >= 0 && at < rows.total && !places.includes(at)) places.push(at); // it gets the focus before it is scrolled into view
  return (
    <div
      class="cases"
      id="cases"
      role="list"
      aria-label={formatCount(rows.total, "case")}
      ref={list}
      style={{ height: `${heights.top(rows.total)}px` }}
    >
      <div class="case-row probe" aria-hidden="true" />
      {places.map((place) => {
        const row = rows.get(place);
        return (
          <div
            class="place"
            key={row?.index ?? `place-${place}`}
            role="listitem"
            aria-setsize={rows.total}
            aria-posinset={place + 1}
            style={{ transform: `translateY(${heights.top(place)}px)` }}
          >
            {row ? (
              <Row
                tall={heights.of(place) > height ? heights.of(place) : 0}
                row={row}
                href={href(row)}
                at={place}
                scored={scored.has(row.suite)}
                hit={rows.hits.get(row.index)?.[0]}
              />
            ) : (
              <div class="case-row muted">…</div>
            )}
          </div>
        );
      })}
    </div>
  );
}

interface RowProps {
  row: CaseRow;
  href: string;
  at: number;
  scored: boolean;
  hit: Hit | undefined;
  /** Its height, if its id takes several lines. */
  tall: number;
}

function Row({ row, href, at, scored, hit, tall }: RowProps) {
  const many = row.trials.length > 1;
  return (
    <a class={`case-row ${row.status} ${tall ? "tall" : ""}`} style={tall ? { height: `${tall}px` } : {}} href={href} data-at={at} data-case={row.id}>
      <StatusIcon status={row.status} />
      <span class="what">
        <span class="title">
          <b>
            <Line text={row.id} room={2000} />
          </b>
          {row.agent && (
            <span class="tag agent-tag">
              <Line text={row.agent} room={40} />
            </span>
          )}
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
          {scored && typeof row.score === "number" && <span class="tag">score {formatScore(row.score)}</span>}
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
          {hit ? <HitLine hit={hit} /> : row.reason ? <Line text={row.reason} /> : <Line text={row.suite} />}
        </span>
      </span>
      <span class="facts">
        {many && (
          <span class="repeats">
            <TrialDots trials={row.trials} label={describeTrials(row.trials)} />
            <Repeats row={row} />
          </span>
        )}
        <span class="fact" title="turns">
          {formatCount(row.turns, "turn")}
        </span>
        {row.checks ? (
          <span class="fact checks" title="checks passed">
            {row.checks_passed ?? 0}/{row.checks}
            <span class="visually-hidden"> checks passed</span>
          </span>
        ) : (
          <span class="fact checks">{row.turns > 0 && "no check ran"}</span>
        )}
        <span class="fact cost">{row.cost_usd ? formatCost(row.cost_usd) : ""}</span>
        <span class="fact time">{formatMs(row.duration_ms)}</span>
      </span>
    </a>
  );
}

/** The place of a search's first hit, and the words around it. */
function HitLine({ hit }: { hit: Hit }) {
  const where = hit.place.replace(/^check-(\d+).*/, "turn $1").replace(/^check-.*/, "end").replace("-", " ");
  return (
    <span class="hit">
      <b>
        <Line text={[where, hit.kind].filter((part) => part !== "why").join(" · ")} room={80} />
      </b>{" "}
      <Line text={hit.snippet} />
    </span>
  );
}
