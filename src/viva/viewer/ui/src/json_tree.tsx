// A JSON value as a tree that folds. Deep and long parts are rendered when they are opened.
import { useState } from "preact/hooks";
import type { ComponentChildren } from "preact";
import { formatCount } from "./format";
import { escapeControls, formatInline, TextBlock } from "./text";

const OPEN_DEPTH = 2;
const OPEN_ITEMS = 30;
const MAX_ITEMS = 200;

export function JsonTree({ value, label }: { value: unknown; label: string }) {
  return (
    <div class="json value" role="group" aria-label={label} tabIndex={0}>
      <Node value={value} depth={0} />
    </div>
  );
}

function Node({ value, depth, name }: { value: unknown; depth: number; name?: string }) {
  const key = name === undefined ? null : <span class="key">{escapeControls(name)}: </span>;
  if (typeof value !== "object" || value === null) {
    return (
      <div class="leaf">
        {key}
        <Scalar value={value} />
      </div>
    );
  }
  const items: [string, unknown][] = Array.isArray(value) ? value.map((item, at) => [String(at), item]) : Object.entries(value);
  if (items.length === 0) {
    return (
      <div class="leaf">
        {key}
        {Array.isArray(value) ? "[]" : "{}"}
      </div>
    );
  }
  return <Branch name={key} items={items} isList={Array.isArray(value)} value={value} depth={depth} />;
}

interface BranchProps {
  name: ComponentChildren;
  items: [string, unknown][];
  isList: boolean;
  value: unknown;
  depth: number;
}

function Branch({ name, items, isList, value, depth }: BranchProps) {
  const [isOpen, setOpen] = useState(depth < OPEN_DEPTH && items.length <= OPEN_ITEMS);
  const [room, setRoom] = useState(MAX_ITEMS);
  return (
    <details open={isOpen} onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>
        {name}
        <span class="muted">{isOpen ? (isList ? `[${items.length}]` : "{…}") : escapeControls(formatInline(value, 70))}</span>
      </summary>
      {isOpen && (
        <div class="branch">
          {items.slice(0, room).map(([key, item]) => (
            <Node key={key} name={key} value={item} depth={depth + 1} />
          ))}
          {items.length > room && (
            <button type="button" class="link" onClick={() => setRoom(room + 1000)}>
              {formatCount(items.length - room, "more item")}
            </button>
          )}
        </div>
      )}
    </details>
  );
}

function Scalar({ value }: { value: unknown }) {
  if (typeof value === "string") {
    return value.includes("\n") || value.length > 200 ? <TextBlock text={value} /> : <span class="string">"{escapeControls(value)}"</span>;
  }
  return <span class="scalar">{String(value)}</span>;
}
