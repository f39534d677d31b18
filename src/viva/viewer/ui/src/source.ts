// Where it comes from: data inside the page (report.html) or a server (viva view).
import type { CaseRow, CaseTrials, Comparison, Me, Overview, PastRuns, RunLine } from "./data";

export interface Source {
  /** Is there a server behind it, with more than this one run? */
  readonly served: boolean;
  overview(run: string): Promise<Overview>;
  trials(run: string, row: CaseRow): Promise<CaseTrials>;
}

const OVERVIEW = "viva-overview";

/** The run inside the page. Records come in deflated pieces of a few cases each, unpacked when they are asked for. */
class Embedded implements Source {
  readonly served = false;
  private readonly run: Overview;
  private unpacked: { first: number; cases: Promise<CaseTrials[]> } | null = null;

  constructor(element: Element) {
    this.run = JSON.parse(element.textContent ?? "") as Overview;
  }

  overview(): Promise<Overview> {
    return Promise.resolve(this.run);
  }

  async trials(_run: string, row: CaseRow): Promise<CaseTrials> {
    await parsed();
    let piece: HTMLElement | null = null;
    for (const each of document.querySelectorAll<HTMLElement>("script.viva-records")) {
      if (Number(each.dataset["first"]) > row.index) break;
      piece = each;
    }
    if (piece === null) throw new Error("this report ends before the case's record: it is not complete");
    const first = Number(piece.dataset["first"]);
    if (this.unpacked?.first !== first) this.unpacked = { first, cases: inflated(piece.textContent ?? "") };
    const found = (await this.unpacked.cases)[row.index - first];
    if (found === undefined) throw new Error("this report has no record of the case");
    return found;
  }
}

function parsed(): Promise<void> {
  if (document.readyState !== "loading") return Promise.resolve();
  return new Promise((resolve) => document.addEventListener("DOMContentLoaded", () => resolve(), { once: true }));
}

async function inflated(packed: string): Promise<CaseTrials[]> {
  const bytes = Uint8Array.from(atob(packed), (sign) => sign.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return (await new Response(stream).json()) as CaseTrials[];
}

/** Runs of a project, from `viva view`. */
export class Server implements Source {
  readonly served = true;

  overview(run: string): Promise<Overview> {
    return get(`api/runs/${encodeURIComponent(run)}`);
  }

  trials(run: string, row: CaseRow): Promise<CaseTrials> {
    return get(`api/runs/${encodeURIComponent(run)}/cases/${row.index}`);
  }

  runs(): Promise<RunLine[]> {
    return get("api/runs");
  }

  compare(base: string, head: string): Promise<Comparison> {
    return get(`api/compare?base=${encodeURIComponent(base)}&head=${encodeURIComponent(head)}`);
  }

  history(): Promise<PastRuns> {
    return get("api/history");
  }

  me(): Promise<Me> {
    return get("api/me");
  }

  events(run: string): EventSource {
    return new EventSource(`api/runs/${encodeURIComponent(run)}/events`);
  }

  rerun(run: string, row: CaseRow): Promise<{ run: string }> {
    return send(`api/runs/${encodeURIComponent(run)}/cases/${row.index}/rerun`, {});
  }

  again(run: string): Promise<{ run: string }> {
    return send(`api/runs/${encodeURIComponent(run)}/rerun`, {});
  }
}

async function get<T>(address: string): Promise<T> {
  return answer(await fetch(address, { headers: { accept: "application/json" } }));
}

async function send<T>(address: string, body: unknown): Promise<T> {
  const headers = { accept: "application/json", "content-type": "application/json" };
  return answer(await fetch(address, { method: "POST", headers, body: JSON.stringify(body) }));
}

async function answer<T>(response: Response): Promise<T> {
  if (response.ok) return (await response.json()) as T;
  const said = (await response.text()).slice(0, 500);
  let error = "";
  try {
    error = String((JSON.parse(said) as { error?: unknown }).error ?? "");
  } catch {
    error = said;
  }
  throw new Error(error || `the server answers ${response.status}`);
}

export function openSource(): Embedded | Server {
  const element = document.getElementById(OVERVIEW);
  return element === null ? new Server() : new Embedded(element);
}
