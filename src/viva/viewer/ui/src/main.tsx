// The page: header, theme, keyboard help and the screen of each URL.
import { render } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { CaseScreen } from "./case";
import { CompareScreen } from "./compare";
import type { ViewerStatus } from "./data";
import { openSource, ServerSource, type Source } from "./source";
import { HistoryScreen } from "./history";
import { parseFilter } from "./filters";
import { useKeys } from "./keys";
import { MatrixScreen } from "./matrix";
import { LabelHistory } from "./labels";
import { useRun } from "./live";
import { useCasePosition } from "./rows";
import { RunLinks, useRoute, type Route } from "./route";
import { RunScreen } from "./run";
import { RunsScreen } from "./runs";
import { Line, escapeControls } from "./text";
import "./style.css";
import "./detail.css";

type Theme = "auto" | "light" | "dark";
const THEMES: Theme[] = ["auto", "light", "dark"];
const THEME_KEY = "viva-theme";
const TITLES: Record<string, string> = { compare: "Compare", history: "History" };

function loadTheme(): Theme {
  try {
    const saved = localStorage.getItem(THEME_KEY) as Theme;
    return THEMES.includes(saved) ? saved : "auto";
  } catch {
    return "auto"; // a page opened from disk may have no storage
  }
}

function useTheme(): [Theme, () => void] {
  const [theme, setTheme] = useState<Theme>(loadTheme);
  useLayoutEffect(() => {
    if (theme === "auto") delete document.documentElement.dataset["theme"];
    else document.documentElement.dataset["theme"] = theme;
    try {
      localStorage.setItem(THEME_KEY, theme);
    } catch {
      // the theme lasts for this visit
    }
  }, [theme]);
  return [theme, () => setTheme(THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length] ?? "auto")];
}

/** Does the system prefer dark? The canvas is drawn again when that changes. */
function useDark(): boolean {
  const query = matchMedia("(prefers-color-scheme: dark)");
  const [dark, setDark] = useState(query.matches);
  useEffect(() => {
    const changed = () => setDark(query.matches);
    query.addEventListener("change", changed);
    return () => query.removeEventListener("change", changed);
  }, []);
  return dark;
}

function App({ source }: { source: Source }) {
  const route = useRoute();
  const [theme, nextTheme] = useTheme();
  const dark = useDark();
  const [viewer, setViewer] = useState<ViewerStatus>({ allow_run: false, live: [] });
  const help = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    if (source.served) (source as ServerSource).status().then(setViewer, () => {});
  }, [source]);
  useEffect(() => {
    const [screen = "", run] = route.path;
    if (source.served && !(screen === "runs" && run)) document.title = `${TITLES[screen] ?? "Runs"} · Viva`;
  }, [route.path.join("/")]);
  useEffect(() => {
    // The focused element may be gone with its screen: move the focus to the new one.
    if (document.activeElement === document.body) document.getElementById("content")?.focus({ preventScroll: true });
  }, [route.path.join("/")]);
  useKeys({ "?": () => (help.current?.open ? help.current.close() : help.current?.showModal()) });
  return (
    <>
      <a class="skip" href="#content" onClick={skip}>
        Skip to content
      </a>
      <header class="bar-top">
        <a class="wordmark" href="#/" aria-label="Viva, start">
          viva
        </a>
        {source.served && <Nav at={route.path[0] ?? "runs"} />}
        <span class="spacer" />
        <button type="button" class="button quiet" id="theme" onClick={nextTheme} aria-label={`Theme: ${theme}`}>
          {theme === "auto" ? "Auto" : theme === "light" ? "Light" : "Dark"}
        </button>
        <button type="button" class="button quiet" id="help" onClick={() => help.current?.showModal()} aria-label="Keyboard shortcuts">
          ?
        </button>
      </header>
      <main id="content" tabIndex={-1}>
        <Screen source={source} route={route} theme={`${theme}-${dark}`} viewer={viewer} />
      </main>
      <Help dialog={help} />
    </>
  );
}

function skip(event: Event): void {
  event.preventDefault();
  document.getElementById("content")?.focus();
}

function Nav({ at }: { at: string }) {
  const current = (name: string) => (at === name ? "page" : undefined);
  return (
    <nav aria-label="Screens">
      <a href="#/runs" aria-current={current("runs")}>
        Runs
      </a>
      <a href="#/compare/latest~1/latest" aria-current={current("compare")}>
        Compare
      </a>
      <a href="#/history" aria-current={current("history")}>
        History
      </a>
    </nav>
  );
}

interface ScreenProps {
  source: Source;
  route: Route;
  theme: string;
  viewer: ViewerStatus;
}

function Screen({ source, route, theme, viewer }: ScreenProps) {
  const [screen = "runs", first, second] = route.path;
  if (!source.served) return <RunArea source={source} id="" path={route.path} route={route} theme={theme} allowRun={false} />;
  const server = source as ServerSource;
  if (screen === "history") {
    return (
      <>
        <HistoryScreen server={server} query={route.query} />
        <LabelHistory server={server} />
      </>
    );
  }
  if (screen === "compare" && first && route.path.length !== 3) return <MatrixScreen server={server} runs={route.path.slice(1)} />;
  if (screen === "compare" && first && second) {
    return <CompareScreen server={server} base={first} head={second} query={route.query} />;
  }
  if (screen === "runs" && first) {
    return <RunArea key={first} source={source} id={first} path={route.path.slice(2)} route={route} theme={theme} allowRun={viewer.allow_run} />;
  }
  return <RunsScreen server={server} query={route.query} />;
}

interface RunAreaProps {
  source: Source;
  id: string;
  path: string[];
  route: Route;
  theme: string;
  allowRun: boolean;
}

/** The screens of one run; the run stays loaded between the list and a case. */
function RunArea({ source, id, path, route, theme, allowRun }: RunAreaProps) {
  const known = useRun(source, id);
  const scrolled = useRef(0);
  const lastOpened = useRef(-1);
  const [screen, suite, name] = path;
  const isCase = screen === "case";
  useLayoutEffect(() => {
    if (isCase || known === null) return;
    scrollTo(0, scrolled.current);
    const saveScroll = () => (scrolled.current = scrollY);
    addEventListener("scroll", saveScroll, { passive: true });
    return () => removeEventListener("scroll", saveScroll);
  }, [isCase, known === null]);
  const title = known && "run" in known ? known.run.overview.run : "";
  useEffect(() => {
    document.title = [isCase ? escapeControls(name ?? "") : "", title, "Viva"].filter(Boolean).join(" · ");
  }, [isCase, name, title]);
  const loaded = known && "run" in known ? known.run.overview : null;
  const found = useCasePosition(source, loaded, { suite: suite ?? "", name: isCase ? (name ?? "") : "", agent: route.query["on"] ?? "" }, parseFilter(route.query));
  if (known === null) return <p class="waiting">Opening…</p>;
  if ("error" in known) return <p class="waiting" role="alert">{known.error}</p>;
  const { run } = known;
  const places = new RunLinks(id, source.served);
  if (!isCase) {
    return (
      <RunScreen run={run} source={source} places={places} query={route.query} theme={theme} allowRun={allowRun} lastOpened={lastOpened.current} />
    );
  }
  if (found === null) return <p class="waiting">Opening…</p>;
  if (found === undefined) {
    return (
      <p class="waiting" role="alert">
        This run has no case <Line text={name ?? ""} />, or the case is still running. <a href={places.list()}>All cases</a>
      </p>
    );
  }
  lastOpened.current = found.row.index;
  return <CaseScreen run={run} found={found} source={source} places={places} query={route.query} allowRun={allowRun} />;
}

const KEYS: [string, string][] = [
  ["j", "next case"],
  ["k", "previous case"],
  ["Enter", "open the case"],
  ["n", "next turn"],
  ["p", "previous turn"],
  ["f", "next failure (F: previous)"],
  ["t", "next turn with a tool (T: previous)"],
  ["u", "back to all cases"],
  ["/", "search"],
  ["?", "this list"],
];

function Help({ dialog }: { dialog: { current: HTMLDialogElement | null } }) {
  return (
    <dialog ref={dialog} id="keys" aria-label="Keyboard shortcuts">
      <h2>Keyboard</h2>
      <dl>
        {KEYS.map(([key, meaning]) => (
          <div key={key}>
            <dt>
              <kbd>{key}</kbd>
            </dt>
            <dd>{meaning}</dd>
          </div>
        ))}
      </dl>
      <button type="button" class="button" onClick={() => dialog.current?.close()}>
        Close
      </button>
    </dialog>
  );
}

const root = document.getElementById("app");
if (root !== null) {
  root.replaceChildren();
  render(<App source={openSource()} />, root);
}
