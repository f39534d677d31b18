// One square for each case, in input order, coloured by status. Filtered cases are faint.
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import type { CaseRow, RowCounts, Status } from "./data";
import { LETTERS } from "./status";
import { Line } from "./text";

const SIZES = [16, 12, 10, 8, 6, 5, 4, 3, 2, 1.5, 1];
const MAX_HEIGHT = 96;
const COLOURS = ["passed", "failed", "error", "skipped", "pending"];

interface Layout {
  size: number;
  columns: number;
  height: number;
}

/** The largest squares that fit. */
function layout(count: number, width: number): Layout {
  const layouts = SIZES.map((size) => {
    const columns = Math.max(1, Math.floor(width / size));
    return { size, columns, height: Math.ceil(count / columns) * size };
  });
  return layouts.find(({ height }) => height <= MAX_HEIGHT) ?? (layouts[layouts.length - 1] as Layout);
}

interface Props {
  rows: CaseRow[];
  /** Of a large run: its squares have a status, but no row. */
  counts?: RowCounts | null | undefined;
  /** The cases that match the filter; null if only the server knows. */
  shown: ReadonlySet<number> | null;
  planned: number;
  theme: string;
  open: (row: CaseRow) => void;
}

export function CaseGrid({ rows, counts, shown, planned, theme, open }: Props) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const [width, setWidth] = useState(0);
  const [over, setOver] = useState<{ row: CaseRow; x: number; y: number } | null>(null);
  const ordered = useRef<CaseRow[]>([]);
  const statuses = useMemo(() => (counts ? [...counts.statuses].map((letter) => LETTERS[letter] as Status) : null), [counts]);
  const count = Math.max(rows.length, planned, statuses?.length ?? 0);

  useLayoutEffect(() => {
    const parent = canvas.current?.parentElement;
    if (!parent) return;
    setWidth(parent.clientWidth);
    const watch = new ResizeObserver(() => setWidth(parent.clientWidth));
    watch.observe(parent);
    return () => watch.disconnect();
  }, []);

  useEffect(() => {
    ordered.current = [...rows].sort((a, b) => a.index - b.index);
    const squares = statuses?.map((status) => ({ status, isShown: true }));
    const own = ordered.current.map((row) => ({ status: row.status, isShown: shown === null || shown.has(row.index) }));
    if (canvas.current && width) draw(canvas.current, squares ?? own, count, width);
  }, [rows, statuses, shown, width, theme, count]);

  const findRow = (event: MouseEvent): CaseRow | undefined => {
    const { size, columns } = layout(count, width);
    const column = Math.min(columns - 1, Math.floor(event.offsetX / size));
    return ordered.current[Math.floor(event.offsetY / size) * columns + column];
  };
  return (
    <div class="strip">
      <canvas
        ref={canvas}
        id="strip"
        role="img"
        aria-label={describeGrid(statuses ?? rows.map((row) => row.status))}
        onMouseMove={(event) => {
          const row = findRow(event);
          setOver(row ? { row, x: event.offsetX, y: event.offsetY } : null);
        }}
        onMouseLeave={() => setOver(null)}
        onClick={(event) => {
          const row = findRow(event);
          if (row) open(row);
        }}
      />
      {over && (
        <div class="tip" style={{ left: `${Math.min(over.x, Math.max(0, width - 260))}px`, top: `${over.y + 18}px` }}>
          <Line text={over.row.id} room={80} /> · {over.row.status}
        </div>
      )}
    </div>
  );
}

function describeGrid(statuses: Status[]): string {
  const counts = new Map<Status, number>();
  for (const status of statuses) counts.set(status, (counts.get(status) ?? 0) + 1);
  return `Cases by status: ${[...counts].map(([status, many]) => `${many} ${status}`).join(", ")}`;
}

function draw(canvas: HTMLCanvasElement, squares: { status: Status; isShown: boolean }[], count: number, width: number): void {
  const { size, columns, height } = layout(count, width);
  const scale = devicePixelRatio || 1;
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const pen = canvas.getContext("2d");
  if (pen === null) return;
  pen.scale(scale, scale);
  const colours = Object.fromEntries(COLOURS.map((name) => [name, resolveColour(canvas, `var(--strip-${name})`)]));
  const gap = size > 5 ? 2 : size > 3 ? 1 : size > 2 ? 0.5 : 0;
  for (let at = 0; at < count; at++) {
    const square = squares[at];
    pen.globalAlpha = square?.isShown === false ? 0.16 : 1;
    pen.fillStyle = colours[square?.status ?? "pending"] ?? "";
    const x = (at % columns) * size;
    const y = Math.floor(at / columns) * size;
    if (size >= 8 && square?.status === "skipped") {
      pen.fillRect(x, y + size / 2 - 2, size - gap, 2);
    } else if (size >= 8) {
      pen.beginPath();
      pen.roundRect(x, y, size - gap, size - gap, size > 10 ? 3 : 2);
      pen.fill();
    } else {
      pen.fillRect(x, y, size - gap, size - gap);
    }
  }
}

/** A colour of the style sheet, resolved for the canvas and the current theme. */
function resolveColour(element: HTMLElement, colour: string): string {
  element.style.color = colour;
  return getComputedStyle(element).color;
}
