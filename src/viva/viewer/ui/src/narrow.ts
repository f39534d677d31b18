// Is there no room for two columns? So it is on phones and small tablets.
import { useEffect, useState } from "preact/hooks";

export function useNarrow(): boolean {
  const query = matchMedia("(max-width: 66rem)");
  const [isNarrow, setNarrow] = useState(query.matches);
  useEffect(() => {
    const changed = () => setNarrow(query.matches);
    query.addEventListener("change", changed);
    return () => query.removeEventListener("change", changed);
  }, []);
  return isNarrow;
}
