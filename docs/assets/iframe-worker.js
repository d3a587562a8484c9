// A page that was opened as a file may start no worker: there the search runs in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.title = "search";
      document.body.append(frame);
      this.inside = frame.contentWindow;
      this.inside.postMessage = data => this.deliver(this, data);
      this.inside.importScripts = (...urls) => Promise.all(urls.map(next => this.load(next)));
      this.ready = this.load(url);
    }
    load(url) {
      const script = this.inside.document.createElement("script");
      script.src = new URL(url, location.href);
      return new Promise((resolve, reject) => {
        script.onload = resolve;
        script.onerror = reject;
        this.inside.document.body.append(script);
      });
    }
    deliver(to, data) {
      const event = new MessageEvent("message", { data });
      to.dispatchEvent(event);
      if (to === this && this.onmessage) this.onmessage(event);
    }
    postMessage(data) {
      this.ready.then(() => this.deliver(this.inside, data));
    }
    terminate() {
      this.inside.frameElement.remove();
    }
  };
}
