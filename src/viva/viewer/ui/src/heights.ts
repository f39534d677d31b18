// The heights of the rows of a list: a long id takes more lines, and the rows below move down.
const LINE = 21;
const WIDEST_LETTER = 12;
const FONT = "600 15px system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', sans-serif";

let pen: CanvasRenderingContext2D | null = null;

/** How many lines an id takes in this width; lines break anywhere. */
export function countLines(id: string, width: number): number {
  if (width <= 0 || id.length * WIDEST_LETTER <= width) return 1;
  pen ??= document.createElement("canvas").getContext("2d");
  if (pen === null) return 1;
  pen.font = FONT;
  const needed = pen.measureText(id).width * 1.03;
  return needed <= width ? 1 : Math.ceil(needed / Math.max(60, width - WIDEST_LETTER));
}

/** The positions of rows: all of one height, but for those with ids of several lines. */
export class RowHeights {
  private readonly tops: Float64Array | null;

  constructor(
    ids: readonly string[],
    readonly height: number,
    width: number,
  ) {
    const lines = ids.map((id) => countLines(id, width));
    if (lines.every((many) => many === 1)) {
      this.tops = null;
    } else {
      this.tops = new Float64Array(ids.length + 1);
      for (let at = 0; at < ids.length; at++) this.tops[at + 1] = (this.tops[at] ?? 0) + height + ((lines[at] ?? 1) - 1) * LINE;
    }
    this.count = ids.length;
  }

  readonly count: number;

  top(at: number): number {
    return this.tops === null ? at * this.height : (this.tops[at] ?? 0);
  }

  /** The height of a row. */
  of(at: number): number {
    return this.top(at + 1) - this.top(at);
  }

  /** The row at a position. */
  find(y: number): number {
    if (this.tops === null) return Math.floor(y / this.height);
    let [low, high] = [0, this.count];
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.top(middle) <= y) low = middle;
      else high = middle - 1;
    }
    return low;
  }
}
