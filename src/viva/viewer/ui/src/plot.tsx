// A scatter plot: quality against cost, one point with its interval for each agent.
import { useRef } from "preact/hooks";
import type { Matrix, MatrixColumn } from "./compare_data";
import { roundUp } from "./chart";
import { savePicture } from "./download";
import { formatCost, formatMs, formatPercent } from "./format";

const WIDTH = 560;
const HEIGHT = 300;
const RADIUS = 9;
const PAD = { left: 60, right: 44, top: 16, bottom: 52 };

interface Axis {
  label: string;
  value: (column: MatrixColumn) => number | null;
  show: (value: number) => string;
}

const COST: Axis = { label: "Cost per trial", value: (column) => column.cost_per_trial_usd, show: formatCost };
const TIME: Axis = { label: "Mean time per trial", value: (column) => column.mean_ms, show: formatMs };

export function letterOf(at: number): string {
  const letter = String.fromCharCode(65 + (at % 26));
  return at < 26 ? letter : letterOf(Math.floor(at / 26) - 1) + letter;
}

/** The cost if at least two agents have one, else the time. */
function chooseAxis(columns: MatrixColumn[]): Axis | null {
  const has = (axis: Axis) => columns.filter((column) => column.rate !== null && axis.value(column) !== null).length > 1;
  return has(COST) ? COST : has(TIME) ? TIME : null;
}

export function QualityPlot({ matrix, name }: { matrix: Matrix; name: string }) {
  const plot = useRef<SVGSVGElement>(null);
  const axis = chooseAxis(matrix.columns);
  if (axis === null) return null;
  const points = matrix.columns.flatMap((column, at) => {
    const value = axis.value(column);
    return value === null || column.rate === null ? [] : [{ column, at, value, rate: column.rate, shift: 0 }];
  });
  const most = roundUp(Math.max(...points.map((point) => point.value)) || 1);
  const x = (value: number) => PAD.left + (value / most) * (WIDTH - PAD.left - PAD.right);
  const place = (point: (typeof points)[number]) => x(point.value) + point.shift;
  const y = (rate: number) => PAD.top + (1 - rate) * (HEIGHT - PAD.top - PAD.bottom);
  points.forEach((point, number) => {
    const hides = (other: typeof point) => Math.hypot(place(other) - place(point), y(other.rate) - y(point.rate)) < 2 * RADIUS;
    while (points.slice(0, number).some(hides)) point.shift -= 2 * RADIUS + 1; // each letter stays readable
  });
  const title = `Pass rate against ${axis.label.toLowerCase()}`;
  return (
    <figure class="quality-plot">
      <figcaption>
        {title}{" "}
        <button type="button" class="link" onClick={() => plot.current && savePicture(plot.current, `${name}-agents.png`)}>
          Save picture
        </button>
      </figcaption>
      <svg ref={plot} viewBox={`0 0 ${WIDTH} ${HEIGHT}`} role="img" aria-label={`${title}: ${points.map(({ column, value, rate }) => `${column.name} ${formatPercent(rate)} at ${axis.show(value)}`).join("; ")}`}>
        {[0, 0.25, 0.5, 0.75, 1].map((rate) => (
          <g key={rate}>
            <line class="grid" x1={PAD.left} x2={WIDTH - PAD.right} y1={y(rate)} y2={y(rate)} />
            <text class="tick" x={PAD.left - 8} y={y(rate) + 4} text-anchor="end">{formatPercent(rate, 0)}</text>
          </g>
        ))}
        {[0, 0.5, 1].map((share) => (
          <text class="tick" key={share} x={x(most * share)} y={HEIGHT - PAD.bottom + 24} text-anchor="middle">
            {axis.show(most * share)}
          </text>
        ))}
        <text class="tick" x={(PAD.left + WIDTH - PAD.right) / 2} y={HEIGHT - 6} text-anchor="middle">{axis.label}</text>
        {points.map((point) => ({ ...point, left: place(point) })).map(({ column, at, value, rate, left }) => (
          <g key={at} class={`agent agent-${at % 6}`}>
            <line class="whisker" x1={left} x2={left} y1={y(column.low ?? rate)} y2={y(column.high ?? rate)} />
            <circle cx={left} cy={y(rate)} r={RADIUS} />
            <text class="letter" x={left} y={y(rate) + 4} text-anchor="middle">{letterOf(at)}</text>
            <title>{`${column.name}: ${formatPercent(rate)} at ${axis.show(value)}`}</title>
          </g>
        ))}
      </svg>
    </figure>
  );
}
