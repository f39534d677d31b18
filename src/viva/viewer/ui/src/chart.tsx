// A small line chart with axes: one value for each run, with its interval, marks and a link to the run.
import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { navigate } from "./route";

export interface Point {
  value: number | null;
  label: string;
  href: string;
  /** When, for the axis. */
  time: string;
  low?: number | null | undefined;
  high?: number | null | undefined;
  /** What changed since the point before. */
  changes?: string[];
  /** Is the run no fair point of the line? Then it is drawn hollow, and the line passes it by. */
  isLeftOut?: boolean;
}

interface Props {
  title: string;
  points: Point[];
  show: (value: number) => string;
  /** The top of the scale; without it, the largest value. */
  top?: number;
  /** What the line is about, for readers of the screen. */
  about: string;
}

const HEIGHT = 168;
const PAD = { left: 54, right: 10, top: 14, bottom: 26 };

/** The next of 1, 2, 4, 6, 8 or 10 times a power of ten: half of it is round, too. */
export function roundUp(value: number): number {
  const power = 10 ** Math.floor(Math.log10(value));
  return power * ([1, 2, 4, 6, 8].find((step) => value <= step * power) ?? 10);
}

export function Chart({ title, points, show, top, about }: Props) {
  const frame = useRef<HTMLDivElement>(null);
  const [width, setWidth] = useState(320);
  const [over, setOver] = useState(-1);
  useLayoutEffect(() => {
    const element = frame.current;
    if (!element) return;
    setWidth(element.clientWidth);
    const watch = new ResizeObserver(() => setWidth(element.clientWidth));
    watch.observe(element);
    return () => watch.disconnect();
  }, []);
  const values = points.flatMap((point) => (point.value === null ? [] : [point.value]));
  const max = top ?? roundUp(Math.max(0, ...values) || 1);
  const x = (at: number) =>
    points.length < 2 ? width / 2 : PAD.left + (at / (points.length - 1)) * (width - PAD.left - PAD.right);
  const y = (value: number) => PAD.top + (1 - value / max) * (HEIGHT - PAD.top - PAD.bottom);
  const onLine = points.flatMap((point, at) => (point.value === null || point.isLeftOut ? [] : [{ ...point, at, value: point.value }]));
  const place = (at: number, value: number) => `${x(at).toFixed(1)},${y(Math.min(max, value)).toFixed(1)}`;
  const line = onLine.map((point) => place(point.at, point.value)).join(" ");
  const sure = onLine.flatMap((point) => (typeof point.low === "number" && typeof point.high === "number" ? [{ at: point.at, low: point.low, high: point.high }] : []));
  const band = [...sure.map((each) => place(each.at, each.high)), ...[...sure].reverse().map((each) => place(each.at, each.low))].join(" ");
  const last = points.findLastIndex((point) => point.value !== null);
  const at = over >= 0 ? over : last;
  const shown = points[at];
  const valueText = shown?.value === null || shown === undefined ? "unknown" : show(shown.value);
  const nearest = (event: MouseEvent) =>
    points.length < 2 ? 0 : Math.max(0, Math.min(points.length - 1, Math.round(((event.offsetX - PAD.left) / (width - PAD.left - PAD.right)) * (points.length - 1))));
  return (
    <figure class="chart">
      <figcaption>
        <span>{title}</span>
        <b>{valueText}</b>
        <small>{shown?.label}</small>
      </figcaption>
      <div ref={frame}>
        <svg
          width={width}
          height={HEIGHT}
          tabIndex={0}
          role="slider"
          aria-label={`${title} of ${about} over ${points.length} runs; Enter opens the run`}
          aria-valuemin={1}
          aria-valuemax={points.length}
          aria-valuenow={at + 1}
          aria-valuetext={`${valueText}, ${shown?.label ?? ""}`}
          onKeyDown={(event) => {
            const by = { ArrowLeft: -1, ArrowRight: 1, Home: -points.length, End: points.length }[event.key];
            if (by !== undefined) {
              event.preventDefault();
              setOver(Math.max(0, Math.min(points.length - 1, at + by)));
            } else if (event.key === "Enter" && shown) {
              navigate(shown.href);
            }
          }}
          onBlur={() => setOver(-1)}
          onMouseMove={(event) => setOver(nearest(event))}
          onMouseLeave={() => setOver(-1)}
          onClick={(event) => {
            const point = points[nearest(event)];
            if (point) navigate(point.href);
          }}
        >
          {[0, 0.5, 1].map((share) => (
            <g key={share}>
              <line class="grid" x1={PAD.left} x2={width} y1={y(max * share)} y2={y(max * share)} />
              <text class="tick" x={PAD.left - 6} y={y(max * share) + 4} text-anchor="end">{show(max * share)}</text>
            </g>
          ))}
          <text class="tick" x={PAD.left} y={HEIGHT - 6}>{points[0]?.time}</text>
          {points.length > 1 && <text class="tick" x={width - PAD.right} y={HEIGHT - 6} text-anchor="end">{points[points.length - 1]?.time}</text>}
          {points.map((point, i) => (point.changes ?? []).length > 0 && (
            <g key={`change-${i}`} class="change">
              <line x1={x(i)} x2={x(i)} y1={PAD.top} y2={HEIGHT - PAD.bottom} />
              <path d={`M${x(i) - 4},${PAD.top - 8} h8 l-4,7 z`} />
            </g>
          ))}
          {sure.length > 1 && <polygon class="band" points={band} />}
          {sure.length === 1 && sure.map((each) => <line key="band" class="whisker" x1={x(each.at)} x2={x(each.at)} y1={y(each.low)} y2={y(each.high)} />)}
          <polyline points={line} />
          {points.length <= 60 &&
            points.map((point, i) => point.value !== null && <circle key={i} class={point.isLeftOut ? "left-out" : ""} cx={x(i)} cy={y(point.value)} r="2.5" />)}
          {shown && shown.value !== null && <circle class="at" cx={x(at)} cy={y(shown.value)} r="4.5" />}
        </svg>
      </div>
    </figure>
  );
}
