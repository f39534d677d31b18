// A safe subset of Markdown: headings, lists, quotes, tables, code, bold, italic, links as text with their address.
// Nothing is loaded and nothing runs: no images, no HTML, no link that leaves the page.
import { escapeControls, findQuote, highlightQuotes, type Mark } from "./text";

// No pattern here backtracks over long texts: a reply is hostile.
const SIGNS = /^#{1,6} |^[ \t]{0,8}[-*+] |^[ \t]{0,8}\d{1,6}[.)] |^```|^> |\*\*[^*\n]+\*\*|`[^`\n]+`|^\|.{1,2000}\|$|\[[^[\]\n]+\]\([^()\s]+\)/m;
const MAX_TABLE_LINE = 2000;

export function hasMarkdown(text: string): boolean {
  return SIGNS.test(text);
}

export function Markdown({ text, marks = [], label }: { text: string; marks?: Mark[]; label: string }) {
  return (
    <div class="markdown" dir="auto" role="group" aria-label={label}>
      {parseBlocks(text).map((block, at) => (
        <BlockView key={at} block={block} marks={marks} />
      ))}
    </div>
  );
}

type Block =
  | { kind: "code"; text: string; language: string }
  | { kind: "heading" | "paragraph"; text: string }
  | { kind: "quote"; text: string }
  | { kind: "list"; items: { text: string; depth: number; marker: string }[] }
  | { kind: "table"; head: string[]; rows: string[][] }
  | { kind: "rule" };

const FENCE = /^\s*(`{3,}|~{3,})\s*([\w+-]*)/;
const HEADING = /^#{1,6}[ \t]+([^\n]+)$/; // not (.+), which is slow on U+2028
const ITEM = /^(\s*)([-*+]|\d{1,6}[.)])\s+([^\n]*)$/;
const RULE = /^\s*([-*_])(\s*\1){2,}\s*$/;
const QUOTE = /^\s*>\s?/;

function isTableLine(line: string): boolean {
  const trimmed = line.trim();
  return trimmed.length < MAX_TABLE_LINE && trimmed.length > 1 && trimmed.startsWith("|") && trimmed.endsWith("|");
}

function isTableRule(line: string): boolean {
  return isTableLine(line) && /^[\s:|-]+$/.test(line) && line.includes("-");
}

export function parseBlocks(text: string): Block[] {
  const lines = text.replace(/\r\n/g, "\n").split("\n");
  const blocks: Block[] = [];
  let paragraph: string[] = [];
  const flush = () => {
    if (paragraph.length) blocks.push({ kind: "paragraph", text: paragraph.join("\n") });
    paragraph = [];
  };
  for (let at = 0; at < lines.length; at++) {
    const line = lines[at] ?? "";
    const fence = FENCE.exec(line);
    if (fence) {
      flush();
      const body: string[] = [];
      while (++at < lines.length && !(lines[at] ?? "").trim().startsWith(fence[1] ?? "```")) body.push(lines[at] ?? "");
      blocks.push({ kind: "code", text: body.join("\n"), language: fence[2] ?? "" });
    } else if (line.trim() === "") {
      flush();
    } else if (HEADING.test(line)) {
      flush();
      blocks.push({ kind: "heading", text: HEADING.exec(line)?.[1] ?? "" });
    } else if (RULE.test(line)) {
      flush();
      blocks.push({ kind: "rule" });
    } else if (isTableLine(line) && isTableRule(lines[at + 1] ?? "")) {
      flush();
      const rows: string[][] = [];
      const head = splitCells(line);
      at += 1;
      while (isTableLine(lines[at + 1] ?? "")) rows.push(splitCells(lines[++at] ?? ""));
      blocks.push({ kind: "table", head, rows });
    } else if (QUOTE.test(line)) {
      flush();
      const body = [line.replace(QUOTE, "")];
      while (QUOTE.test(lines[at + 1] ?? "")) body.push((lines[++at] ?? "").replace(QUOTE, ""));
      blocks.push({ kind: "quote", text: body.join("\n") });
    } else if (ITEM.test(line) && paragraph.length === 0) {
      const items: { text: string; depth: number; marker: string }[] = [];
      at -= 1;
      while (at + 1 < lines.length) {
        const item = ITEM.exec(lines[at + 1] ?? "");
        const next = lines[at + 1] ?? "";
        const last = items[items.length - 1];
        const marker = /\d/.test(item?.[2] ?? "") ? (item?.[2] ?? "") : "•";
        if (item) items.push({ text: item[3] ?? "", depth: Math.min(4, Math.floor((item[1] ?? "").length / 2)), marker });
        else if (last && /^\s+\S/.test(next)) last.text += `\n${next.trim()}`;
        else break;
        at += 1;
      }
      blocks.push({ kind: "list", items });
    } else {
      paragraph.push(line);
    }
  }
  flush();
  return blocks;
}

function splitCells(line: string): string[] {
  return line.trim().replace(/^\||\|$/g, "").split("|").map((cell) => cell.trim());
}

function BlockView({ block, marks }: { block: Block; marks: Mark[] }) {
  const inline = (text: string) => <InlineView text={text} marks={marks} />;
  switch (block.kind) {
    case "heading":
      return <p class="heading">{inline(block.text)}</p>;
    case "paragraph":
      return <p>{inline(block.text)}</p>;
    case "quote":
      return <blockquote>{inline(block.text)}</blockquote>;
    case "rule":
      return <hr />;
    case "code":
      return (
        <pre class="code" tabIndex={0} aria-label={block.language ? `Code: ${block.language}` : "Code"}>
          <code>{highlightQuotes(block.text, marks)}</code>
        </pre>
      );
    case "list":
      return (
        <ul>
          {block.items.map((item, at) => (
            <li key={at} class={`depth-${item.depth}`}>
              <span class="marker">{item.marker}</span> {inline(item.text)}
            </li>
          ))}
        </ul>
      );
    case "table":
      return (
        <div class="scroll" tabIndex={0} role="group" aria-label="Table">
          <table>
            <thead>
              <tr>
                {block.head.map((cell, at) => (
                  <th key={at}>{inline(cell)}</th>
                ))}
              </tr>
            </thead>
            <tbody>
              {block.rows.map((row, at) => (
                <tr key={at}>
                  {row.map((cell, n) => (
                    <td key={n}>{inline(cell)}</td>
                  ))}
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      );
  }
}

const INLINE = /(`{1,3})([^`\n]{1,400})\1(?!`)|\*\*([^*\n]+)\*\*|__([^_\n]+)__|(?<![\w*])\*([^*\s][^*\n]*)\*(?![\w*])|!?\[([^[\]\n]*)\]\(([^()\s]*)\)/g;

type Inline = { kind: "text" | "code" | "bold" | "italic"; text: string } | { kind: "link"; text: string; address: string };

function splitInline(text: string): Inline[] {
  const pieces: Inline[] = [];
  let at = 0;
  const addText = (until: number) => {
    if (until > at) pieces.push({ kind: "text", text: text.slice(at, until) });
  };
  for (const match of text.matchAll(INLINE)) {
    addText(match.index);
    const [whole, , code, bold, bold2, italic, link, address] = match;
    if (code !== undefined) pieces.push({ kind: "code", text: code });
    else if (bold !== undefined || bold2 !== undefined) pieces.push({ kind: "bold", text: bold ?? bold2 ?? "" });
    else if (italic !== undefined) pieces.push({ kind: "italic", text: italic });
    else pieces.push({ kind: "link", text: link ?? "", address: address ?? "" });
    at = match.index + whole.length;
  }
  addText(text.length);
  return pieces;
}

/** Bold, italic, code and links inside a line. A link stays text, with its address beside it. */
function InlineView({ text, marks }: { text: string; marks: Mark[] }) {
  return (
    <>
      {splitInline(text).map((piece, at) => {
        const shown = highlightQuotes(piece.text, marks);
        switch (piece.kind) {
          case "code":
            return <code key={at}>{shown}</code>;
          case "bold":
            return <strong key={at}>{shown}</strong>;
          case "italic":
            return <em key={at}>{shown}</em>;
          case "link":
            return (
              <span key={at}>
                <span class="linked">{shown}</span> <span class="address">({escapeControls(piece.address)})</span>
              </span>
            );
          case "text":
            return <span key={at}>{shown}</span>;
        }
      })}
    </>
  );
}

/** Can each quote of this text be marked in its rendered form? One that crosses formatting cannot. */
export function canMark(text: string, marks: Mark[]): boolean {
  const quoted = marks.filter((mark) => findQuote(text, mark.quote));
  if (quoted.length === 0) return true;
  const leaves = parseBlocks(text).flatMap((block) => {
    switch (block.kind) {
      case "rule":
        return [];
      case "code":
        return [block.text];
      case "list":
        return block.items.flatMap((item) => splitInline(item.text).map((piece) => piece.text));
      case "table":
        return [...block.head, ...block.rows.flat()].flatMap((cell) => splitInline(cell).map((piece) => piece.text));
      default:
        return splitInline(block.text).map((piece) => piece.text);
    }
  });
  return quoted.every((mark) => leaves.some((leaf) => findQuote(leaf, mark.quote)));
}
