// The route of the page, kept in the URL after `#`: every screen has one.
import { useEffect, useState } from "preact/hooks";

export interface Route {
  /** The path's parts: `runs`, an id, `case`, a suite, a case. */
  path: string[];
  query: Record<string, string>;
}

export function parseHash(hash: string): Route {
  const [path = "", query = ""] = hash.replace(/^#\/?/, "").split("?", 2);
  return {
    path: path.split("/").filter(Boolean).map(decodePart),
    query: Object.fromEntries(new URLSearchParams(query)),
  };
}

function decodePart(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

export function buildHash(path: string[], query: Record<string, string | number | null | undefined> = {}): string {
  const values = Object.entries(query).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const search = new URLSearchParams(values.map(([key, value]) => [key, String(value)])).toString();
  return `#/${path.map(encodeURIComponent).join("/")}${search ? `?${search}` : ""}`;
}

/** Goes to a hash. With `replace`, no entry is added to the browser history. */
export function navigate(to: string, replace = false): void {
  if (to === location.hash || (to === "#/" && location.hash === "")) return;
  if (replace) {
    history.replaceState(null, "", to);
    dispatchEvent(new HashChangeEvent("hashchange"));
  } else {
    location.hash = to;
  }
}

export function useRoute(): Route {
  const [hash, setHash] = useState(location.hash);
  useEffect(() => {
    const changed = () => setHash(location.hash);
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  return parseHash(hash);
}

/** Links inside one run. A report holds only one run and does not name it. */
export class RunLinks {
  constructor(
    private readonly run: string,
    private readonly served: boolean,
  ) {}

  private within(...parts: string[]): string[] {
    return this.served ? ["runs", this.run, ...parts] : parts;
  }

  list(query: Record<string, string> = {}): string {
    return buildHash(this.within(), query);
  }

  /** `on` is the agent of the case, in a run of several. */
  case(row: { suite: string; id: string; agent?: string }, query: Record<string, string | number | null | undefined> = {}): string {
    return buildHash(this.within("case", row.suite, row.id), { ...query, on: row.agent });
  }
}
