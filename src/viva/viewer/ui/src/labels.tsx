// What people say of verdicts: they agree, disagree or are unsure, with a note. It never changes a verdict.
import { createContext, type ComponentChildren } from "preact";
import { useContext, useEffect, useState } from "preact/hooks";
import type { Trial } from "./data";
import type { Agreement, Label, LabelPoint, LabelSummary, LabelValue } from "./label_data";
import type { ServerSource, Source } from "./source";
import { formatCount, formatNumber, formatPercent, formatTime } from "./format";
import { useLoaded } from "./loading";
import { buildHash } from "./route";
import { Line, TextBlock } from "./text";
import "./labels.css";

const VALUES: [LabelValue, string][] = [
  ["agree", "Agree"],
  ["disagree", "Disagree"],
  ["unsure", "Unsure"],
];

interface LabelState {
  labels: Label[];
  who: string;
  /** Null where labels can only be read: in a report. */
  give: ((check: string, label: LabelValue | null, note: string) => Promise<void>) | null;
}

const Labels = createContext<LabelState | null>(null);

interface ProviderProps {
  source: Source;
  run: string;
  index: number;
  trial: Trial | undefined;
  children: ComponentChildren;
}

/** Gives the controls below it the labels of one trial. */
export function LabelProvider({ source, run, index, trial, children }: ProviderProps) {
  const [known, setKnown] = useState<{ who: string; summary: LabelSummary } | null>(null);
  useEffect(() => {
    let isCurrent = true;
    source.labels(run).then((loaded) => isCurrent && setKnown(loaded), () => isCurrent && setKnown(null));
    return () => {
      isCurrent = false;
    };
  }, [source, run]);
  if (known === null || trial === undefined) return <>{children}</>;
  const ofTrial = (each: Label) =>
    each.suite === trial.suite && each.case === trial.id && (each.trial ?? 1) === trial.trial && (each.agent ?? "") === (trial.agent ?? "");
  const give = async (check: string, label: LabelValue | null, note: string) =>
    setKnown(await (source as ServerSource).addLabel(run, index, { label, trial: trial.trial, check, note }));
  const state = { labels: known.summary.labels.filter(ofTrial), who: known.who, give: source.served ? give : null };
  return <Labels.Provider value={state}>{children}</Labels.Provider>;
}

/** Agree, Disagree, Unsure and a note, for one check (`2-1`, `end-1`, `checkpoint-1`) or, without one, for the case. */
export function LabelControl({ check = "", name, isJudge = false }: { check?: string; name: string; isJudge?: boolean }) {
  const state = useContext(Labels);
  const [isOpen, setOpen] = useState(isJudge);
  const [isNoting, setNoting] = useState(false);
  const [error, setError] = useState("");
  if (state === null) return null;
  const here = state.labels.filter((each) => (each.check ?? "") === check);
  const mine = here.find((each) => each.who === state.who);
  const others = here.filter((each) => each !== mine || state.give === null);
  const give = (label: LabelValue | null, note: string) =>
    state.give?.(check, label, note).then(
      () => setError(""),
      (broken: Error) => setError(broken.message),
    );
  return (
    <div class="labels" data-check={check || "case"}>
      {state.give && !isOpen && !mine && (
        <button type="button" class="link label-open" aria-label={`Label: is the verdict right? ${name}`} onClick={() => setOpen(true)}>
          Label
        </button>
      )}
      {state.give && (isOpen || mine) && (
        <div class="label-buttons" role="group" aria-label={`Is the verdict right? ${name}`}>
          <span class="muted" aria-hidden="true">Verdict right?</span>
          {VALUES.map(([value, text]) => (
            <button
              key={value}
              type="button"
              class={`label-button ${value}`}
              aria-pressed={mine?.label === value}
              onClick={() => {
                const isSame = mine?.label === value;
                setNoting(!isSame);
                void give(isSame ? null : value, isSame ? "" : (mine?.note ?? ""));
              }}
            >
              {text}
            </button>
          ))}
          {mine && !isNoting && (
            <button type="button" class="link" onClick={() => setNoting(true)}>
              {mine.note ? "Change note" : "Add note"}
            </button>
          )}
        </div>
      )}
      {state.give && mine && isNoting && <Note key={mine.at} label={mine} name={name} save={(note) => give(mine.label, note)?.then(() => setNoting(false))} close={() => setNoting(false)} />}
      {mine?.note && !isNoting && state.give && <TextBlock text={mine.note} label="Your note" />}
      {others.map((each) => (
        <div class="label-given" key={each.who}>
          <b><Line text={each.who} room={60} /></b> {each.label === "unsure" ? "is unsure" : `${each.label}s`} <span class="muted">{formatTime(each.at)}</span>
          {each.note && <TextBlock text={each.note} label={`Note of ${each.who}`} />}
        </div>
      ))}
      {error && <p role="alert" class="label-error">{error}</p>}
    </div>
  );
}

interface NoteProps {
  label: Label;
  name: string;
  save: (note: string) => void;
  close: () => void;
}

function Note({ label, name, save, close }: NoteProps) {
  const [text, setText] = useState(label.note ?? "");
  return (
    <form
      class="label-note"
      onSubmit={(event) => {
        event.preventDefault();
        save(text);
      }}
    >
      <input
        type="text"
        value={text}
        maxLength={10_000}
        placeholder="Why? (optional)"
        aria-label={`Note on ${name}`}
        onInput={(event) => setText(event.currentTarget.value)}
        onKeyDown={(event) => event.key === "Escape" && close()}
      />
      <button type="submit" class="button small">Save note</button>
    </form>
  );
}

/** The agreement of a run's judges with people, among the figures of the run. */
export function AgreementFigures({ source, run }: { source: Source; run: string }) {
  const loaded = useLoaded(() => source.labels(run), [run]);
  if (loaded === null || !("value" in loaded)) return null;
  const { judges, all } = loaded.value.summary;
  return (
    <>
      {judges && <AgreementFigure name="Judges and people agree" agreement={judges} />}
      {all && (!judges || all.decided + all.unsure > judges.decided + judges.unsure) && <AgreementFigure name="Verdicts and people agree" agreement={all} />}
    </>
  );
}

function AgreementFigure({ name, agreement }: { name: string; agreement: Agreement }) {
  return (
    <div class="agreement">
      <dt>{name}</dt>
      <dd>
        {formatNumber(agreement.agreed)}/{formatNumber(agreement.decided)}
      </dd>
      <dd class="note">{describeAgreement(agreement).join(" · ") || "no label on a verdict"}</dd>
    </div>
  );
}

function describeAgreement(agreement: Agreement): string[] {
  const { interval, kappa } = agreement;
  return [
    interval ? `${formatPercent(interval.low, 0)} to ${formatPercent(interval.high, 0)}` : "",
    agreement.false_passes ? formatCount(agreement.false_passes, "false pass").replace("passs", "passes") : "",
    agreement.false_failures ? formatCount(agreement.false_failures, "false failure") : "",
    agreement.unsure ? `${formatNumber(agreement.unsure)} unsure` : "",
    typeof kappa === "number" ? `kappa ${kappa.toFixed(2)}` : "",
  ].filter(Boolean);
}

/** The agreement of people with verdicts over time: one row for each run with labels. */
export function LabelHistory({ server }: { server: ServerSource }) {
  const loaded = useLoaded(() => server.labelPoints(), []);
  if (loaded === null || !("value" in loaded) || loaded.value.length === 0) return null;
  return (
    <section aria-labelledby="agreement-title" class="label-history">
      <h2 id="agreement-title">Agreement with people</h2>
      <div class="scroll" tabIndex={0} role="region" aria-label="Agreement with people, by run">
        <table class="table">
          <thead>
            <tr>
              <th scope="col">Run</th>
              <th scope="col">Agent</th>
              <th scope="col">Judges</th>
              <th scope="col">All verdicts</th>
            </tr>
          </thead>
          <tbody>
            {loaded.value.map((point) => (
              <Point key={point.run} point={point} />
            ))}
          </tbody>
        </table>
      </div>
    </section>
  );
}

function Point({ point }: { point: LabelPoint }) {
  return (
    <tr>
      <th scope="row">
        <a href={buildHash(["runs", point.run])}>{formatTime(point.at)}</a>
      </th>
      <td>
        <Line text={point.agent} room={60} />
      </td>
      <td>{point.judges && <Rate agreement={point.judges} />}</td>
      <td>{point.all && <Rate agreement={point.all} />}</td>
    </tr>
  );
}

function Rate({ agreement }: { agreement: Agreement }) {
  const { rate, interval } = agreement;
  if (typeof rate !== "number" || !interval) return <span class="muted">{formatNumber(agreement.unsure)} unsure</span>;
  return (
    <span class="label-rate">
      <svg class="interval" viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">
        <line class="scale" x1="0" x2="100" y1="5" y2="5" />
        <rect x={interval.low * 100} width={Math.max(1.5, (interval.high - interval.low) * 100)} y="2.5" height="5" rx="1" />
        <line class="point" x1={rate * 100} x2={rate * 100} y1="0" y2="10" />
      </svg>
      {formatPercent(rate, 0)} <span class="muted">({formatNumber(agreement.agreed)}/{formatNumber(agreement.decided)}{describeAgreement({ ...agreement, interval: null }).map((text) => `, ${text}`).join("")})</span>
    </span>
  );
}
