// One turn: what the user said and who spoke for them, what the agent did and answered, and its checks beside it.
import type { ComponentChildren } from "preact";
import type { Attachment, Checkpoint, FileChange, Message, Part, Status, ToolCall, Turn } from "./data";
import { CheckCard, verdictOf, type Placed } from "./check";
import { counted, money, number, seconds } from "./figures";
import { brief, Line, Said, Value, visible, type Mark } from "./said";
import { Sign } from "./signs";

const SPEAKERS: Record<string, string> = {
  static: "script",
  initial: "first line",
  simulated: "simulator",
  interactive: "person",
};

interface Props {
  turn: Turn;
  marks: Mark[];
  /** Addresses of attachments that can be shown. */
  attachments: Record<string, string>;
  /** Checkpoints that this turn reached. */
  reached: Checkpoint[];
  link?: { href: string; onClick: () => void };
  id?: string;
  /** Where its checks stand: `2-1` is the first one of turn 2. */
  placed?: (name: string) => Placed;
  /** Whose turn it is, where two conversations stand side by side. */
  side?: string;
}

export function TurnView({ turn, marks, attachments, reached, link, id, placed, side }: Props) {
  const checked = turn.assertions.length > 0;
  const missed = missedIn(turn);
  return (
    <section class="turn" id={id} tabIndex={id ? -1 : undefined} aria-label={[`Turn ${turn.turn}`, side].filter(Boolean).join(", ")}>
      <header>
        {missed && <Sign status={missed} size={14} />}
        <h3>
          {link ? <a {...link}>Turn {turn.turn}</a> : `Turn ${turn.turn}`}
          {side && <span class="which"> · {side}</span>}
        </h3>
        <TurnFacts turn={turn} />
      </header>
      <div class="talk">
        <div class="message user">
          <p class="who">
            User <span>{SPEAKERS[turn.input_source] ?? turn.input_source}</span>
          </p>
          <Said text={turn.input} marks={marks} label="User said" />
          {(turn.attachments ?? []).map((each, at) => (
            <Attached key={at} attachment={each} address={attachments[each.source]} />
          ))}
          {turn.remark && (
            <p class="remark">
              <Line text={turn.remark} room={1000} />
            </p>
          )}
        </div>
        {turn.tool_calls.length > 0 && (
          <div class="tools" role="group" aria-label="Tool calls">
            {turn.tool_calls.map((call, at) => (
              <Tool key={at} call={call} />
            ))}
          </div>
        )}
        <Reply turn={turn} marks={marks} />
        {(turn.files ?? []).length > 0 && <Files files={turn.files ?? []} />}
        {reached.map((each) => (
          <p class="reached" key={each.id}>
            <span class="diamond" aria-hidden="true" />
            <span>
              Checkpoint <b><Line text={each.id} /></b> reached
              {each.reason && (
                <span class="muted">
                  {" "}
                  · <Line text={each.reason} room={300} />
                </span>
              )}
            </span>
          </p>
        ))}
      </div>
      {checked && (
        <div class="checks" role="group" aria-label={`Checks of turn ${turn.turn}`}>
          {turn.assertions.map((check, at) => (
            <CheckCard key={at} check={check} placed={placed?.(`${turn.turn}-${at + 1}`)} />
          ))}
        </div>
      )}
    </section>
  );
}

/** What the case says had been said before its first turn; judges quote it as turn 0. */
export function Before({ said, marks }: { said: Message[]; marks: Mark[] }) {
  return (
    <section class="turn before" id="turn-0" tabIndex={-1} aria-label="Said before">
      <header>
        <h3>Before</h3>
        <p class="turn-facts">
          <span>{counted(said.length, "message")} of the case</span>
        </p>
      </header>
      <div class="talk">
        {said.map(({ role, content = "", name }, at) => {
          const parts: Part[] = typeof content === "string" ? [{ type: "text", text: content }] : content;
          return (
            <div class={`message ${role === "user" ? "user" : "agent"}`} key={at}>
              <p class="who">
                <Line text={[role, name].filter(Boolean).join(" ")} />
              </p>
              {parts.map((part, n) =>
                "text" in part ? <Said key={n} text={part.text} marks={marks} /> : <Attached key={n} attachment={part} address={undefined} />,
              )}
            </div>
          );
        })}
      </div>
    </section>
  );
}

/** What went wrong in a turn, if anything did: a failure beats a check that could not be evaluated. */
function missedIn(turn: Turn): Status | null {
  const verdicts = turn.assertions.map(verdictOf);
  if (verdicts.includes("failed") || (turn.error && !verdicts.includes("error"))) return "failed";
  return verdicts.includes("error") ? "error" : null;
}

function TurnFacts({ turn }: { turn: Turn }) {
  const usage = turn.usage;
  const facts = [seconds(turn.duration_ms)];
  if (usage) {
    facts.push(`${number(usage.input_tokens ?? 0)} in, ${number(usage.output_tokens ?? 0)} out`);
    if ((usage.calls ?? 1) > 1) facts.push(counted(usage.calls ?? 1, "model call"));
  }
  if (typeof turn.cost_usd === "number") facts.push(money(turn.cost_usd));
  if (turn.finish_reason && turn.finish_reason !== "stop") facts.push(turn.finish_reason);
  return (
    <p class="turn-facts">
      {facts.map((fact, at) => (
        <span key={at}>{visible(fact)}</span>
      ))}
    </p>
  );
}

function Reply({ turn, marks }: { turn: Turn; marks: Mark[] }) {
  const hasData = turn.data !== null && turn.data !== undefined;
  return (
    <div class={`message agent ${turn.error ? "broken" : ""}`}>
      <p class="who">Agent</p>
      {turn.output ? (
        <Said text={turn.output} marks={marks} label="Agent said" />
      ) : (
        !turn.error && !hasData && <p class="muted">no text</p>
      )}
      {turn.error && (
        <div class="turn-error" role="group" aria-label="Error">
          <Said text={turn.error} />
        </div>
      )}
      {hasData && (
        <details class="fold" open={!turn.output}>
          <summary>
            Data <code>{visible(brief(turn.data, 60))}</code>
          </summary>
          <Value value={turn.data} label="Data of the reply" />
        </details>
      )}
      <Awaiting turn={turn} />
    </div>
  );
}

function Awaiting({ turn }: { turn: Turn }) {
  if (!turn.awaiting_input && !turn.awaiting_reason) return null;
  const reason = turn.awaiting_reason?.replace(/_/g, " ");
  const sure = turn.awaiting_confidence;
  return (
    <p class={`awaiting ${turn.awaiting_input ? "waits" : ""}`}>
      <span class="state">{turn.awaiting_input ? "waits for input" : "does not wait"}</span>
      {reason && (
        <span>
          {reason}
          {typeof sure === "number" && sure < 1 ? ` (${Math.round(sure * 100)} % sure)` : ""}
        </span>
      )}
      {turn.input_hint && (
        <span>
          hint: <Line text={turn.input_hint} />
        </span>
      )}
    </p>
  );
}

function Tool({ call }: { call: ToolCall }) {
  const failed = typeof call.error === "string";
  const ended = "result" in call;
  return (
    <details class={`fold tool ${failed ? "failed" : ""}`}>
      <summary>
        <span class="tool-name">
          <Line text={call.name} room={100} />
        </span>
        <code>{visible(brief(call.args))}</code>
        {failed && <span class="tool-failed">failed</span>}
      </summary>
      <Part label="Arguments">
        <Value value={call.args} label={`Arguments of ${call.name}`} />
      </Part>
      {failed && (
        <Part label="Error">
          <Value value={call.error} label={`Error of ${call.name}`} />
        </Part>
      )}
      {ended && (
        <Part label="Result">
          <Value value={call.result} label={`Result of ${call.name}`} />
        </Part>
      )}
      {!ended && !failed && <p class="muted">no result is known</p>}
    </details>
  );
}

function Part({ label, children }: { label: string; children: ComponentChildren }) {
  return (
    <div class="part">
      <p class="label">{label}</p>
      {children}
    </div>
  );
}

function Attached({ attachment, address }: { attachment: Attachment; address: string | undefined }) {
  const url = address ?? (attachment.source.startsWith("data:") ? attachment.source : undefined);
  const name = attachment.name ?? (attachment.source.startsWith("data:") ? attachment.type : attachment.source);
  return (
    <figure class="attached">
      {url?.startsWith("data:image/") && <img src={url} alt={visible(name)} loading="lazy" />}
      {url?.startsWith("data:audio/") && <audio src={url} controls aria-label={visible(name)} />}
      <figcaption>
        <Line text={`${attachment.type} ${name}`} room={200} />
      </figcaption>
    </figure>
  );
}

function Files({ files }: { files: FileChange[] }) {
  return (
    <div class="files" role="group" aria-label="Files changed">
      {files.map((file) =>
        file.diff ? (
          <details class="fold" key={file.path}>
            <summary>
              <span class={`change ${file.change}`}>{file.change}</span> <Line text={file.path} room={200} />
            </summary>
            <Patch diff={file.diff} />
          </details>
        ) : (
          <p class="fold plain" key={file.path}>
            <span class={`change ${file.change}`}>{file.change}</span> <Line text={file.path} room={200} />
          </p>
        ),
      )}
    </div>
  );
}

const MOST_LINES = 2000;

function Patch({ diff }: { diff: string }) {
  const lines = diff.split("\n");
  const kind = (line: string) =>
    line.startsWith("+") && !line.startsWith("+++")
      ? "added"
      : line.startsWith("-") && !line.startsWith("---")
        ? "removed"
        : line.startsWith("@@")
          ? "at"
          : undefined;
  return (
    <pre class="patch" tabIndex={0} aria-label="Diff">
      {lines.slice(0, MOST_LINES).map((line, at) => (
        <span class={kind(line)} key={at}>
          {visible(line)}
          {"\n"}
        </span>
      ))}
      {lines.length > MOST_LINES && `… ${counted(lines.length - MOST_LINES, "more line")}`}
    </pre>
  );
}
