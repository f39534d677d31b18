// Keys that work anywhere on a screen, unless somebody is writing.
import { useEffect } from "preact/hooks";

export function useKeys(keys: Record<string, () => void>): void {
  useEffect(() => {
    const pressed = (event: KeyboardEvent) => {
      const at = event.target as HTMLElement | null;
      if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
      if (at !== null && /^(INPUT|SELECT|TEXTAREA)$/.test(at.tagName)) return;
      if (event.key !== "?" && document.querySelector("dialog[open]") !== null) return; // it is what the reader looks at
      const act = keys[event.key];
      if (act === undefined) return;
      event.preventDefault();
      act();
    };
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  });
}
