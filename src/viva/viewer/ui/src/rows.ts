// The rows of a run under a filter. Those of a large run stay on the server and come in pieces.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import type { CaseRow, Overview } from "./data";
import { buildQuery, selectRows, type Filter } from "./filters";
import type { Hit } from "./search";
import type { ServerSource, Source } from "./source";
import { useSearch } from "./use_search";

export interface RowSet {
  total: number;
  /** The row at a position; undefined until its piece has arrived. */
  get(at: number): CaseRow | undefined;
  /** Loads the rows of these positions. */
  need(first: number, last: number): void;
  /** Where the words of the search were found, by the index of the case. */
  hits: ReadonlyMap<number, Hit[]>;
  /** The indexes of the rows; null if only the server knows them. */
  shown: ReadonlySet<number> | null;
  ids: string[];
  isBusy: boolean;
}

/** The answer of `api/runs/{run}/rows`. */
export interface RowPiece {
  total: number;
  offset: number;
  rows: CaseRow[];
  hits?: Record<string, Hit[]>;
}

/** The answer of `api/runs/{run}/rows/case`. */
export interface CasePosition {
  row: CaseRow;
  total: number;
  position?: number;
  before?: CaseRow;
  after?: CaseRow;
}

const PIECE = 200;

export function isLarge(overview: Overview): boolean {
  return (overview.counts ?? null) !== null;
}

export function countCases(overview: Overview): number {
  return overview.counts?.statuses.length ?? overview.cases.length;
}

export function useRows(source: Source, overview: Overview, filter: Filter): RowSet {
  const large = isLarge(overview);
  const local = useLocalRows(source, overview, filter, large);
  const remote = useRemoteRows(source, overview, filter, large);
  return large ? remote : local;
}

function useLocalRows(source: Source, overview: Overview, filter: Filter, isOff: boolean): RowSet {
  const key = JSON.stringify(buildQuery(filter));
  const search = useSearch(source, overview.run, isOff ? "" : filter.text);
  const found = useMemo(() => new Set(search.found.keys()), [search.found]);
  const rows = useMemo(() => selectRows(overview.cases, filter, found), [overview.cases, key, found]);
  const shown = useMemo(() => new Set(rows.map((row) => row.index)), [rows]);
  const ids = useMemo(() => rows.map((row) => row.id), [rows]);
  return { total: rows.length, get: (at) => rows[at], need: () => {}, hits: search.found, shown, ids, isBusy: search.isBusy };
}

const NO_IDS: string[] = [];

function useRemoteRows(source: Source, overview: Overview, filter: Filter, isOn: boolean): RowSet {
  const key = JSON.stringify(buildQuery(filter));
  const pieces = useRef<{ key: string; rows: Map<number, CaseRow>; asked: Set<number>; hits: Map<number, Hit[]>; total: number | null }>({
    key: "",
    rows: new Map(),
    asked: new Set(),
    hits: new Map(),
    total: null,
  });
  const lastTotal = useRef(countCases(overview));
  const [, redraw] = useState(0);
  if (pieces.current.key !== key) pieces.current = { key, rows: new Map(), asked: new Set(), hits: new Map(), total: null };
  const now = pieces.current;
  const load = (piece: number) => {
    if (!isOn || now.asked.has(piece)) return;
    now.asked.add(piece);
    (source as ServerSource).rows(overview.run, buildQuery(filter), piece * PIECE, PIECE).then(
      (answer) => {
        answer.rows.forEach((row, at) => now.rows.set(answer.offset + at, row));
        for (const [index, hits] of Object.entries(answer.hits ?? {})) now.hits.set(Number(index), hits);
        now.total = answer.total;
        lastTotal.current = answer.total;
        redraw((n) => n + 1);
      },
      () => now.asked.delete(piece), // it is asked for again at the next scroll
    );
  };
  useEffect(() => {
    if (!isOn) return;
    const timer = setTimeout(() => load(0), filter.text ? 200 : 0);
    return () => clearTimeout(timer);
  }, [isOn, key]);
  return {
    total: now.total ?? lastTotal.current,
    get: (at) => now.rows.get(at),
    need: (first, last) => {
      if (now.total === null) return;
      for (let piece = Math.floor(Math.max(0, first) / PIECE); piece * PIECE < Math.min(last, now.total); piece++) load(piece);
    },
    hits: now.hits,
    shown: null,
    ids: NO_IDS,
    isBusy: now.total === null,
  };
}

/** A case by its suite and id and, in a run of several, its agent. */
export interface WantedCase {
  suite: string;
  name: string;
  agent: string;
}

export function findRow(rows: CaseRow[], { suite, name, agent }: WantedCase): CaseRow | undefined {
  return rows.find((each) => each.suite === suite && each.id === name && (!agent || !each.agent || each.agent === agent));
}

/** A case with its neighbours under a filter: null while it is loading, undefined if the run has no such case. */
export function useCasePosition(source: Source, overview: Overview | null, wanted: WantedCase, filter: Filter): CasePosition | null | undefined {
  const { suite, name, agent } = wanted;
  const key = JSON.stringify([suite, name, agent, buildQuery(filter), overview?.run ?? ""]);
  const large = overview !== null && isLarge(overview);
  const [remote, setRemote] = useState<{ key: string; found: CasePosition | undefined } | null>(null);
  const search = useSearch(source, overview?.run ?? "", large || !name ? "" : filter.text);
  useEffect(() => {
    if (!large || !name) return;
    let isCurrent = true;
    (source as ServerSource).findCase(overview.run, buildQuery(filter), wanted).then(
      (found) => isCurrent && setRemote({ key, found }),
      () => isCurrent && setRemote({ key, found: undefined }),
    );
    return () => {
      isCurrent = false;
    };
  }, [large, key]);
  const local = useMemo(() => {
    if (overview === null || large || !name) return undefined;
    const row = findRow(overview.cases, wanted);
    if (row === undefined) return undefined;
    const rows = selectRows(overview.cases, filter, new Set(search.found.keys()));
    const at = rows.findIndex((each) => each.index === row.index);
    const [before, after] = [rows[at - 1], rows[at + 1]];
    return { row, total: rows.length, ...(at >= 0 ? { position: at, ...(before ? { before } : {}), ...(after ? { after } : {}) } : {}) };
  }, [overview?.cases, large, key, search.found]);
  if (!large) return local;
  return remote?.key === key ? remote.found : null;
}
