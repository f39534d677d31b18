// Where the data comes from: the page itself (report.html) or a server (viva view).
import type { CaseRow, CaseTrials, Comparison, ViewerStatus, Overview, RunHistory, RunRow } from "./data";
import type { LabelPoint, LabelSummary, LabelValue, RunLabels } from "./label_data";
import type { LiveRunState } from "./live_data";

export interface Source {
  /** Is it a server, with all runs of a project? */
  readonly served: boolean;
  overview(run: string): Promise<Overview>;
  trials(run: string, row: CaseRow): Promise<CaseTrials>;
  /** What people said of its verdicts. A report has those of the time when it was written. */
  labels(run: string): Promise<RunLabels>;
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
}

function documentReady(): Promise<void> {
  if (document.readyState !== "loading") return Promise.resolve();
  return new Promise((resolve) => document.addEventListener("DOMContentLoaded", () => resolve(), { once: true }));
}

async function inflateRecords(packed: string): Promise<CaseTrials[]> {
  const bytes = Uint8Array.from(atob(packed), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return (await new Response(stream).json()) as CaseTrials[];
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

  runs(): Promise<RunRow[]> {
    return get("api/runs");
  }

  compare(base: string, head: string): Promise<Comparison> {
    return get(`api/compare?base=${encodeURIComponent(base)}&head=${encodeURIComponent(head)}`);
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
