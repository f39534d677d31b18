// Where the data comes from: the page itself (report.html) or a server (viva view).
import type { CaseRow, CaseTrials, ViewerStatus, Overview, RunHistory, RunRow } from "./data";
import type { RunsMatrix, TwoRuns } from "./compare_data";
import type { LabelPoint, LabelSummary, LabelValue, RunLabels } from "./label_data";
import type { LiveRunState } from "./live_data";
import { saveFile } from "./download";
import { splitWords } from "./filters";
import type { CasePosition, RowPiece, WantedCase } from "./rows";
import { encodeWord, searchCase, type Hit } from "./search";

export interface Source {
  /** Is it a server, with all runs of a project? */
  readonly served: boolean;
  overview(run: string): Promise<Overview>;
  trials(run: string, row: CaseRow): Promise<CaseTrials>;
  /** What people said of its verdicts. A report has those of the time when it was written. */
  labels(run: string): Promise<RunLabels>;
  /** The cases whose conversations have all words, with the first places. */
  search(run: string, text: string, signal: AbortSignal): Promise<Map<number, Hit[]>>;
  /** Saves all records of the run as a file. */
  saveRecords(run: string): Promise<void>;
}

const OVERVIEW = "viva-overview";

/** The run inside the page. Records are deflated in pieces of a few cases, inflated when a case is opened. */
class EmbeddedSource implements Source {
  readonly served = false;
  private readonly run: Overview;
  private inflated: { first: number; cases: Promise<CaseTrials[]> } | null = null;

  constructor(element: Element) {
    this.run = JSON.parse(element.textContent ?? "") as Overview;
  }

  overview(): Promise<Overview> {
    return Promise.resolve(this.run);
  }

  labels(): Promise<RunLabels> {
    const element = document.getElementById("viva-labels");
    const summary = element === null ? { labels: [] } : (JSON.parse(element.textContent ?? "") as LabelSummary);
    return Promise.resolve({ who: "", summary });
  }

  async trials(_run: string, row: CaseRow): Promise<CaseTrials> {
    await documentReady();
    let piece: HTMLElement | null = null;
    for (const each of document.querySelectorAll<HTMLElement>("script.viva-records")) {
      if (Number(each.dataset["first"]) > row.index) break;
      piece = each;
    }
    if (piece === null) throw new Error("The report file is incomplete: it ends before this case");
    const first = Number(piece.dataset["first"]);
    if (this.inflated?.first !== first) this.inflated = { first, cases: inflateRecords(piece.textContent ?? "") };
    const trials = (await this.inflated.cases)[row.index - first];
    if (trials === undefined) throw new Error("The report has no record of this case");
    return trials;
  }

  /** Looks for the words in the inflated text of each piece first; only pieces that have them all are parsed. */
  async search(_run: string, text: string, signal: AbortSignal): Promise<Map<number, Hit[]>> {
    const words = splitWords(text);
    const encoded = words.map(encodeWord);
    const found = new Map<number, Hit[]>();
    for await (const { first, json, lower } of this.pieces()) {
      if (signal.aborted) break;
      if (!encoded.every((word) => lower.includes(word))) continue;
      for (const [at, trials] of (JSON.parse(json) as CaseTrials[]).entries()) {
        const hits = searchCase(trials, words);
        if (hits !== null) found.set(first + at, hits);
      }
    }
    return found;
  }

  async saveRecords(): Promise<void> {
    const lines: string[] = [];
    for await (const { json } of this.pieces()) {
      for (const { trials } of JSON.parse(json) as CaseTrials[]) lines.push(...trials.map((trial) => `${JSON.stringify(trial)}\n`));
    }
    saveFile(`${this.run.run}.jsonl`, lines, "application/jsonl");
  }

  private texts: { first: number; json: string; lower: string }[] | null = null;

  /** The pieces as text. They stay in memory for the next search unless they are too long. */
  private async *pieces(): AsyncGenerator<{ first: number; json: string; lower: string }> {
    if (this.texts !== null) {
      yield* this.texts;
      return;
    }
    await documentReady();
    const elements = [...document.querySelectorAll<HTMLElement>("script.viva-records")];
    const texts: { first: number; json: string; lower: string }[] = [];
    let length = 0;
    for (let at = 0; at < elements.length; at += BATCH) {
      const batch = elements.slice(at, at + BATCH);
      const inflated = await Promise.all(batch.map((each) => inflate(each.textContent ?? "")));
      for (const [n, json] of inflated.entries()) {
        const piece = { first: Number(batch[n]?.dataset["first"]), json, lower: json.toLowerCase() };
        length += json.length;
        if (length < MAX_CACHED) texts.push(piece);
        yield piece;
      }
    }
    if (length < MAX_CACHED) this.texts = texts;
  }
}

const BATCH = 8;
const MAX_CACHED = 50_000_000;

function documentReady(): Promise<void> {
  if (document.readyState !== "loading") return Promise.resolve();
  return new Promise((resolve) => document.addEventListener("DOMContentLoaded", () => resolve(), { once: true }));
}

async function inflateRecords(packed: string): Promise<CaseTrials[]> {
  return JSON.parse(await inflate(packed)) as CaseTrials[];
}

function inflate(packed: string): Promise<string> {
  const bytes = Uint8Array.from(atob(packed), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).text();
}

/** Runs of a project, from `viva view`. */
export class ServerSource implements Source {
  readonly served = true;

  overview(run: string): Promise<Overview> {
    return get(`api/runs/${encodeURIComponent(run)}`);
  }

  trials(run: string, row: CaseRow): Promise<CaseTrials> {
    return get(`api/runs/${encodeURIComponent(run)}/cases/${row.index}`);
  }

  async search(run: string, text: string, signal: AbortSignal): Promise<Map<number, Hit[]>> {
    const url = `api/runs/${encodeURIComponent(run)}/search?q=${encodeURIComponent(text)}`;
    const found = await readResponse<{ index: number; hits?: Hit[] }[]>(await fetch(url, { headers: { accept: "application/json" }, signal }));
    return new Map(found.map(({ index, hits }) => [index, hits ?? []]));
  }

  async saveRecords(run: string): Promise<void> {
    const link = document.createElement("a");
    link.href = `api/runs/${encodeURIComponent(run)}/records`;
    link.download = "";
    link.click();
  }

  rows(run: string, filter: Record<string, string>, offset: number, limit: number): Promise<RowPiece> {
    return get(`api/runs/${encodeURIComponent(run)}/rows?${new URLSearchParams({ ...filter, offset: String(offset), limit: String(limit) })}`);
  }

  findCase(run: string, filter: Record<string, string>, { suite, name, agent }: WantedCase): Promise<CasePosition> {
    return get(`api/runs/${encodeURIComponent(run)}/rows/case?${new URLSearchParams({ ...filter, of: suite, case: name, on: agent })}`);
  }

  runs(): Promise<RunRow[]> {
    return get("api/runs");
  }

  compare(base: string, head: string, agents: { base_agent: string; head_agent: string }): Promise<TwoRuns> {
    return get(`api/compare?${new URLSearchParams({ base, head, ...agents })}`);
  }

  matrix(runs: string[]): Promise<RunsMatrix> {
    return get(`api/matrix?${new URLSearchParams(runs.map((run) => ["run", run]))}`);
  }

  history(): Promise<RunHistory> {
    return get("api/history");
  }

  status(): Promise<ViewerStatus> {
    return get("api/status");
  }

  labels(run: string): Promise<RunLabels> {
    return get(`api/runs/${encodeURIComponent(run)}/labels`);
  }

  labelPoints(): Promise<LabelPoint[]> {
    return get("api/labels");
  }

  addLabel(run: string, index: number, label: { label: LabelValue | null; trial: number; check: string; note: string }): Promise<RunLabels> {
    return send(`api/runs/${encodeURIComponent(run)}/cases/${index}/labels`, label);
  }

  live(run: string): Promise<LiveRunState | null> {
    return get(`api/runs/${encodeURIComponent(run)}/live`);
  }

  events(run: string): EventSource {
    return new EventSource(`api/runs/${encodeURIComponent(run)}/events`);
  }

  rerunCase(run: string, row: CaseRow): Promise<{ run: string }> {
    return send(`api/runs/${encodeURIComponent(run)}/cases/${row.index}/rerun`, {});
  }

  rerun(run: string): Promise<{ run: string }> {
    return send(`api/runs/${encodeURIComponent(run)}/rerun`, {});
  }
}

async function get<T>(url: string): Promise<T> {
  return readResponse(await fetch(url, { headers: { accept: "application/json" } }));
}

async function send<T>(url: string, body: unknown): Promise<T> {
  const headers = { accept: "application/json", "content-type": "application/json" };
  return readResponse(await fetch(url, { method: "POST", headers, body: JSON.stringify(body) }));
}

async function readResponse<T>(response: Response): Promise<T> {
  if (response.ok) return (await response.json()) as T;
  const body = (await response.text()).slice(0, 500);
  let error = "";
  try {
    error = String((JSON.parse(body) as { error?: unknown }).error ?? "");
  } catch {
    error = body;
  }
  throw new Error(error || `The server answered with status ${response.status}`);
}

export function openSource(): EmbeddedSource | ServerSource {
  const element = document.getElementById(OVERVIEW);
  return element === null ? new ServerSource() : new EmbeddedSource(element);
}
