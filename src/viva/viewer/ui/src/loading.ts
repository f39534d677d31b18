// Something that comes later: still on its way, here, or broken.
import { useEffect, useState } from "preact/hooks";

export type Loaded<T> = { value: T } | { error: string } | null;

export function useLoaded<T>(load: () => Promise<T>, keys: unknown[]): Loaded<T> {
  const [state, setState] = useState<{ keys: string; loaded: Loaded<T> }>({ keys: "", loaded: null });
  const now = JSON.stringify(keys);
  useEffect(() => {
    let wanted = true;
    load().then(
      (value) => wanted && setState({ keys: now, loaded: { value } }),
      (broken: unknown) => wanted && setState({ keys: now, loaded: { error: String((broken as Error)?.message ?? broken) } }),
    );
    return () => {
      wanted = false;
    };
  }, [now]);
  return state.keys === now ? state.loaded : null;
}
