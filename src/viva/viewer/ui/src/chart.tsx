// A small line chart: one value for each run, with a link to the run.
import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { navigate } from "./route";

export interface Point {
  value: number | null;
  label: string;
  href: string;
}

interface Props {
  title: string;
  points: Point[];
  show: (value: number) => string;
  /** The top of the scale; without it, the largest value. */
  top?: number;
}

const HEIGHT = 132;
const PAD = { left: 8, right: 8, top: 14, bottom: 10 };

export function Chart({ title, points, show, top }: Props) {
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
  const max = top ?? (Math.max(0, ...values) * 1.1 || 1);
  const x = (at: number) =>
    points.length < 2 ? width / 2 : PAD.left + (at / (points.length - 1)) * (width - PAD.left - PAD.right);
  const y = (value: number) => PAD.top + (1 - value / max) * (HEIGHT - PAD.top - PAD.bottom);
  const line = points
    .flatMap((point, at) => (point.value === null ? [] : [`${x(at).toFixed(1)},${y(point.value).toFixed(1)}`]))
    .join(" ");
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
          aria-label={`${title} over ${points.length} runs; Enter opens the run`}
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
            <line class="grid" key={share} x1="0" x2={width} y1={y(max * share)} y2={y(max * share)} />
          ))}
          <polyline points={line} />
          {points.length <= 60 &&
            points.map((point, i) => point.value !== null && <circle key={i} cx={x(i)} cy={y(point.value)} r="2.5" />)}
          {shown && shown.value !== null && <circle class="at" cx={x(at)} cy={y(shown.value)} r="4.5" />}
        </svg>
      </div>
    </figure>
  );
}
