// Browsers refuse web workers on pages that are opened from disk. This one runs the search in a hidden frame there.
// The theme looks for this name (and the build for this file name) to tell that workers are replaced.
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.appendChild(frame);
      const inner = frame.contentWindow;
      inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const script = inner.document.createElement("script");
      script.src = url;
      this.ready = new Promise((resolve) => { script.onload = resolve; });
      this.post = (data) => inner.dispatchEvent(new inner.MessageEvent("message", { data }));
      inner.document.body.appendChild(script);
    }
    postMessage(data) { this.ready.then(() => this.post(data)); }
    terminate() {}
  };
  window.Worker = window.IFrameWorker;
}
