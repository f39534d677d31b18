// A value that is loaded asynchronously: null while loading, then the value or an error.
import { useEffect, useState } from "preact/hooks";

export type Loaded<T> = { value: T } | { error: string } | null;

export function useLoaded<T>(load: () => Promise<T>, keys: unknown[]): Loaded<T> {
  const [state, setState] = useState<{ keys: string; loaded: Loaded<T> }>({ keys: "", loaded: null });
  const now = JSON.stringify(keys);
  useEffect(() => {
    let isCurrent = true;
    load().then(
      (value) => isCurrent && setState({ keys: now, loaded: { value } }),
      (error: unknown) => isCurrent && setState({ keys: now, loaded: { error: String((error as Error)?.message ?? error) } }),
    );
    return () => {
      isCurrent = false;
    };
  }, [now]);
  return state.keys === now ? state.loaded : null;
}
