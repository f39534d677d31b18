// One turn: the user's message and its source, the agent's tool calls and reply, and the checks beside them.
import type { ComponentChildren } from "preact";
import type { Attachment, Checkpoint, FileChange, Message, Part, Status, ToolCall, Turn } from "./data";
import { CheckCard, getStatus, type CheckLink } from "./check";
import { formatCount, formatCost, formatNumber, formatMs } from "./format";
import { Readable, ValueView } from "./readable";
import { formatInline, Line, TextBlock, escapeControls, type Mark } from "./text";
import { StatusIcon } from "./status";

const SPEAKERS: Record<string, string> = {
  static: "script",
  initial: "first message",
  simulated: "simulator",
  interactive: "person",
};

interface Props {
  turn: Turn;
  marks: Mark[];
  /** data: URLs of attachments that can be shown, by source. */
  attachments: Record<string, string>;
  /** Checkpoints that this turn reached. */
  reached: Checkpoint[];
  link?: { href: string; onClick: () => void };
  id?: string;
  /** The links of its checks: `2-1` is the first one of turn 2. */
  checkLink?: (name: string) => CheckLink;
  /** Base or Head, where two conversations are shown side by side. */
  side?: string;
  /** Folds the turn. */
  fold?: () => void;
}

/** The class of a turn's element: by it the keyboard finds failures and tools. */
function turnClass(turn: Turn): string {
  return `turn ${getTurnStatus(turn) ? "not-passed" : ""} ${turn.tool_calls.length ? "uses-tools" : ""}`;
}

/** A turn in one line. */
export function FoldedTurn({ turn, id, unfold }: { turn: Turn; id: string; unfold: () => void }) {
  const tools = turn.tool_calls.map((call) => call.name).join(", ");
  return (
    <section class={`${turnClass(turn)} folded`} id={id} tabIndex={-1} aria-label={`Turn ${turn.turn}, folded`}>
      <button type="button" class="unfold" aria-expanded="false" onClick={unfold}>
        <b>Turn {turn.turn}</b>
        <span class="time">{formatMs(turn.duration_ms)}</span>
        <span class="gist">
          <Line text={turn.input} room={120} />
          <span aria-hidden="true"> → </span>
          {tools && (
            <code>
              <Line text={tools} room={60} />
            </code>
          )}{" "}
          <Line text={turn.output || formatInline(turn.data, 100)} room={160} />
        </span>
      </button>
    </section>
  );
}

export function TurnView({ turn, marks, attachments, reached, link, id, checkLink, side, fold }: Props) {
  const hasChecks = turn.assertions.length > 0;
  const status = getTurnStatus(turn);
  return (
    <section class={turnClass(turn)} id={id} tabIndex={id ? -1 : undefined} aria-label={[`Turn ${turn.turn}`, side].filter(Boolean).join(", ")}>
      <header>
        {status && <StatusIcon status={status} size={14} />}
        <h3>
          {link ? <a {...link}>Turn {turn.turn}</a> : `Turn ${turn.turn}`}
          {side && <span class="which"> · {side}</span>}
        </h3>
        <TurnFacts turn={turn} />
        {fold && (
          <button type="button" class="link fold-turn" onClick={fold} aria-label={`Fold turn ${turn.turn}`}>
            Fold
          </button>
        )}
      </header>
      <div class="messages">
        <div class="message user">
          <p class="who">
            User <span>{SPEAKERS[turn.input_source] ?? turn.input_source}</span>
          </p>
          <TextBlock text={turn.input} marks={marks} label="User message" />
          {(turn.attachments ?? []).map((each, at) => (
            <AttachmentView key={at} attachment={each} address={attachments[each.source]} />
          ))}
          {turn.comment && (
            <p class="comment">
              <Line text={turn.comment} room={1000} />
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
      {hasChecks && (
        <div class="checks" role="group" aria-label={`Checks of turn ${turn.turn}`}>
          {turn.assertions.map((check, at) => (
            <CheckCard key={at} check={check} checkLink={checkLink?.(`${turn.turn}-${at + 1}`)} />
          ))}
        </div>
      )}
    </section>
  );
}

/** The messages before the first turn, from the case's history; judges quote them as turn 0. */
export function HistoryView({ messages, marks }: { messages: Message[]; marks: Mark[] }) {
  return (
    <section class="turn history" id="turn-0" tabIndex={-1} aria-label="History">
      <header>
        <h3>History</h3>
        <p class="turn-facts">
          <span>{formatCount(messages.length, "message")} from the case</span>
        </p>
      </header>
      <div class="messages">
        {messages.map(({ role, content = "", name }, at) => {
          const parts: Part[] = typeof content === "string" ? [{ type: "text", text: content }] : content;
          return (
            <div class={`message ${role === "user" ? "user" : "agent"}`} key={at}>
              <p class="who">
                <Line text={[role, name].filter(Boolean).join(" ")} />
              </p>
              {parts.map((part, n) =>
                "text" in part ? <TextBlock key={n} text={part.text} marks={marks} /> : <AttachmentView key={n} attachment={part} address={undefined} />,
              )}
            </div>
          );
        })}
      </div>
    </section>
  );
}

/** The status of a turn that did not pass, or null. A failure beats a check that could not be evaluated. */
export function getTurnStatus(turn: Turn): Status | null {
  const verdicts = turn.assertions.map(getStatus);
  if (verdicts.includes("failed") || (turn.error && !verdicts.includes("error"))) return "failed";
  return verdicts.includes("error") ? "error" : null;
}

function TurnFacts({ turn }: { turn: Turn }) {
  const usage = turn.usage;
  const facts = [formatMs(turn.duration_ms)];
  if (typeof turn.first_token_ms === "number") facts.push(`first token ${formatMs(turn.first_token_ms)}`);
  if (usage) {
    facts.push(`${formatNumber(usage.input_tokens ?? 0)} in, ${formatNumber(usage.output_tokens ?? 0)} out`);
    if ((usage.calls ?? 1) > 1) facts.push(formatCount(usage.calls ?? 1, "model call"));
  }
  if (typeof turn.cost_usd === "number") facts.push(formatCost(turn.cost_usd));
  if (turn.finish_reason && turn.finish_reason !== "stop") facts.push(turn.finish_reason);
  return (
    <p class="turn-facts">
      {facts.map((fact, at) => (
        <span key={at}>{escapeControls(fact)}</span>
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
        (turn.parts ?? [turn.output]).map((text, at) => <Readable key={at} text={text} marks={marks} label="Agent reply" />)
      ) : (
        !turn.error && !hasData && <p class="muted">no text</p>
      )}
      {turn.error && (
        <div class="turn-error" role="group" aria-label="Error">
          <TextBlock text={turn.error} />
        </div>
      )}
      {hasData && (
        <details class="fold" open={!turn.output}>
          <summary>
            Data <code>{escapeControls(formatInline(turn.data, 60))}</code>
          </summary>
          <ValueView value={turn.data} label="Data of the reply" />
        </details>
      )}
      <AwaitingState turn={turn} />
    </div>
  );
}

function AwaitingState({ turn }: { turn: Turn }) {
  if (!turn.awaiting_input && !turn.awaiting_reason) return null;
  const confidence = turn.awaiting_confidence;
  const details = [
    turn.awaiting_reason === "completed" ? "" : turn.awaiting_reason?.replace(/_/g, " "),
    typeof confidence === "number" && confidence < 1 ? `heuristic, ${Math.round(confidence * 100)} %` : "",
  ].filter(Boolean);
  return (
    <p class={`awaiting ${turn.awaiting_input ? "waits" : ""}`}>
      <span class="state">{turn.awaiting_input ? "Awaiting input" : "Turn complete"}</span>
      {details.length > 0 && <span>({details.join(", ")})</span>}
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
        <code>{escapeControls(formatInline(call.args))}</code>
        {failed && <span class="tool-failed">failed</span>}
      </summary>
      <Part label="Arguments">
        <ValueView value={call.args} label={`Arguments of ${call.name}`} />
      </Part>
      {failed && (
        <Part label="Error">
          <ValueView value={call.error} label={`Error of ${call.name}`} />
        </Part>
      )}
      {ended && (
        <Part label="Result">
          <ValueView value={call.result} label={`Result of ${call.name}`} />
        </Part>
      )}
      {!ended && !failed && <p class="muted">no result recorded</p>}
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

function AttachmentView({ attachment, address }: { attachment: Attachment; address: string | undefined }) {
  const url = address ?? (attachment.source.startsWith("data:") ? attachment.source : undefined);
  const name = attachment.name ?? (attachment.source.startsWith("data:") ? attachment.type : attachment.source);
  return (
    <figure class="attached">
      {url?.startsWith("data:image/") && <img src={url} alt={escapeControls(name)} loading="lazy" />}
      {url?.startsWith("data:audio/") && <audio src={url} controls aria-label={escapeControls(name)} />}
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

const MAX_LINES = 2000;

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
      {lines.slice(0, MAX_LINES).map((line, at) => (
        <span class={kind(line)} key={at}>
          {escapeControls(line)}
          {"\n"}
        </span>
      ))}
      {lines.length > MAX_LINES && `… ${formatCount(lines.length - MAX_LINES, "more line")}`}
    </pre>
  );
}
