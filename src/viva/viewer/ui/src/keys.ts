// Keyboard shortcuts of a screen; inactive while an input has the focus.
import { useEffect } from "preact/hooks";

export function useKeys(keys: Record<string, () => void>): void {
  useEffect(() => {
    const onKey = (event: KeyboardEvent) => {
      const target = event.target as HTMLElement | null;
      if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
      if (target !== null && /^(INPUT|SELECT|TEXTAREA)$/.test(target.tagName)) return;
      if (event.key !== "?" && document.querySelector("dialog[open]") !== null) return;
      const act = keys[event.key];
      if (act === undefined) return;
      event.preventDefault();
      act();
    };
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  });
}
