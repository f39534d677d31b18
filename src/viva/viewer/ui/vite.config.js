// Builds one file with scripts and styles inline, and a content security policy that allows only them, by digest.
import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { defineConfig } from "vite";

const ENTRY = '<script type="module" src="/src/main.tsx"></script>';
const POLICY = "<!--viva:policy-->";

function digest(text) {
  return `'sha256-${createHash("sha256").update(text, "utf8").digest("base64")}'`;
}

function policy(script, style) {
  return [
    "default-src 'none'",
    `script-src ${digest(script)}`,
    `style-src ${digest(style)}`,
    "img-src data:",
    "media-src data:",
    "connect-src 'self'",
    "base-uri 'none'",
    "form-action 'none'",
    "require-trusted-types-for 'script'",
    "trusted-types 'none'",
  ].join("; ");
}

function singleFile() {
  return {
    name: "single-file",
    enforce: "post",
    generateBundle(_options, bundle) {
      let script = "";
      let style = "";
      for (const [name, item] of Object.entries(bundle)) {
        if (item.type === "chunk") script += item.code;
        else if (name.endsWith(".css")) style += item.source;
        delete bundle[name];
      }
      script = script.trim();
      style = style.trim();
      if (/<\/script|<!--/i.test(script) || /<\//.test(style)) this.error("a script or style contains an end tag");
      const template = readFileSync(new URL("index.html", import.meta.url), "utf8");
      const parts = template.split(ENTRY);
      if (parts.length !== 2 || !template.includes(POLICY)) this.error("index.html lacks its placeholders");
      const meta = `<meta http-equiv="Content-Security-Policy" content="${policy(script, style)}">\n<style>${style}</style>`;
      const head = parts[0].split(POLICY).join(meta);
      this.emitFile({ type: "asset", fileName: "page.html", source: `${head}<script>${script}</script>${parts[1]}` });
    },
  };
}

export default defineConfig({
  plugins: [singleFile()],
  build: {
    target: "es2022",
    cssTarget: ["chrome123", "firefox121", "safari17.5"], // support for light-dark()
    outDir: "../../reporters",
    emptyOutDir: false, // it holds other files
    copyPublicDir: false,
    cssCodeSplit: false,
    modulePreload: false,
    rolldownOptions: { input: "src/main.tsx", output: { format: "iife", codeSplitting: false } },
  },
});
