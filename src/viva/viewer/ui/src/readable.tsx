// A text in the form in which it reads best: JSON as a tree, Markdown rendered, with a switch to the plain text.
import { useMemo, useState } from "preact/hooks";
import { JsonTree } from "./json_tree";
import { canMark, Markdown, hasMarkdown } from "./markdown";
import { formatValue, TextBlock, type Mark } from "./text";

const MAX_RENDERED = 60_000;

interface Props {
  text: string;
  marks?: Mark[];
  label: string;
}

/** A value of any type: a text in its best form, anything else as a tree. */
export function ValueView({ value, label }: { value: unknown; label: string }) {
  const text = typeof value === "string" ? value : formatValue(value);
  return (
    <div class="value-view">
      <Readable text={text} label={label} />
    </div>
  );
}

type Form = "json" | "markdown" | "plain";

export function Readable({ text, marks = [], label }: Props) {
  const { form, value } = useMemo(() => chooseForm(text), [text]);
  const [isPlain, setPlain] = useState(() => form === "markdown" && !canMark(text, marks));
  if (form === "plain") return <TextBlock text={text} marks={marks} label={label} />;
  const rich = form === "json" ? "Tree" : "Formatted";
  return (
    <div class="readable">
      <button type="button" class="form" aria-pressed={isPlain} onClick={() => setPlain(!isPlain)} aria-label={`${label}: plain text`}>
        {isPlain ? rich : "Plain"}
      </button>
      {isPlain ? (
        <TextBlock text={text} marks={marks} label={label} />
      ) : form === "json" ? (
        <JsonTree value={value} label={label} />
      ) : (
        <Markdown text={text} marks={marks} label={label} />
      )}
    </div>
  );
}

function chooseForm(text: string): { form: Form; value?: unknown } {
  if (text.length > MAX_RENDERED) return { form: "plain" };
  const trimmed = text.trim();
  if (/^[[{]/.test(trimmed)) {
    try {
      const value: unknown = JSON.parse(trimmed);
      if (typeof value === "object" && value !== null) return { form: "json", value };
    } catch {
      // it only looks like JSON
    }
  }
  return { form: hasMarkdown(text) ? "markdown" : "plain" };
}
