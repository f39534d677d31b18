// Where the reader is: everything that can be looked at has an address, kept in the part after `#`.
import { useEffect, useState } from "preact/hooks";

export interface Route {
  /** The path's parts: `runs`, an id, `case`, a suite, a case. */
  path: string[];
  query: Record<string, string>;
}

export function read(hash: string): Route {
  const [path = "", query = ""] = hash.replace(/^#\/?/, "").split("?", 2);
  return {
    path: path.split("/").filter(Boolean).map(decoded),
    query: Object.fromEntries(new URLSearchParams(query)),
  };
}

function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

export function address(path: string[], query: Record<string, string | number | null | undefined> = {}): string {
  const said = Object.entries(query).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const search = new URLSearchParams(said.map(([key, value]) => [key, String(value)])).toString();
  return `#/${path.map(encodeURIComponent).join("/")}${search ? `?${search}` : ""}`;
}

/** Goes somewhere. With `replace`, `back` does not come here again. */
export function go(to: string, replace = false): void {
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
  return read(hash);
}

/** Addresses inside one run: a report has only one, and does not name it. */
export class Places {
  constructor(
    private readonly run: string,
    private readonly served: boolean,
  ) {}

  private within(...parts: string[]): string[] {
    return this.served ? ["runs", this.run, ...parts] : parts;
  }

  list(query: Record<string, string> = {}): string {
    return address(this.within(), query);
  }

  case(suite: string, id: string, query: Record<string, string | number | null | undefined> = {}): string {
    return address(this.within("case", suite, id), query);
  }
}
