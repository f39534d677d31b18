// One square for each case, in input order, coloured by status. Filtered cases are faint.
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import type { CaseRow, Status } from "./data";
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
  shown: Set<number>;
  planned: number;
  theme: string;
  open: (row: CaseRow) => void;
}

export function CaseGrid({ rows, shown, planned, theme, open }: Props) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const [width, setWidth] = useState(0);
  const [over, setOver] = useState<{ row: CaseRow; x: number; y: number } | null>(null);
  const ordered = useRef<CaseRow[]>([]);
  const count = Math.max(rows.length, planned);

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
    if (canvas.current && width) draw(canvas.current, ordered.current, shown, count, width);
  }, [rows, shown, width, theme, count]);

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
        aria-label={describeGrid(rows)}
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

function describeGrid(rows: CaseRow[]): string {
  const counts = new Map<Status, number>();
  for (const row of rows) counts.set(row.status, (counts.get(row.status) ?? 0) + 1);
  return `Cases by status: ${[...counts].map(([status, many]) => `${many} ${status}`).join(", ")}`;
}

function draw(canvas: HTMLCanvasElement, rows: CaseRow[], shown: Set<number>, count: number, width: number): void {
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
    const row = rows[at];
    pen.globalAlpha = row === undefined || shown.has(row.index) ? 1 : 0.16;
    pen.fillStyle = colours[row?.status ?? "pending"] ?? "";
    const x = (at % columns) * size;
    const y = Math.floor(at / columns) * size;
    if (size >= 8 && row?.status === "skipped") {
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
