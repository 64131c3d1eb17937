/** Time, and how others get their turn. */

/** Seconds on a clock that only goes forward. */
export function now() {
  return performance.now() / 1000;
}

/** Milliseconds since 1970. */
export function wallMs() {
  return Date.now();
}

/** One timer, set again and again. `call` is called when its time has come (Infinity: never). */
export class Timer {
  #call;
  #handle = null;
  #due = Infinity;

  constructor(call) {
    this.#call = call;
  }

  /** At this time of `now()`, and at no other. */
  set(due) {
    if (due === this.#due) return;
    this.clear();
    this.#due = due;
    if (due === Infinity) return;
    const wait = Math.min(Math.max(0, Math.ceil((due - now()) * 1000)), 0x7fffffff);
    this.#handle = setTimeout(() => {
      this.clear();
      this.#call();
    }, wait);
  }

  clear() {
    clearTimeout(this.#handle);
    this.#handle = null;
    this.#due = Infinity;
  }
}

/** So much later, in seconds; or as soon as `signal`, if there is one, says. */
export function sleep(seconds, signal = new AbortController().signal) {
  return new Promise((resolve) => {
    const wake = () => {
      clearTimeout(handle);
      signal.removeEventListener("abort", wake);
      resolve();
    };
    const handle = setTimeout(wake, Math.min(seconds * 1000, 0x7fffffff));
    signal.addEventListener("abort", wake);
    if (signal.aborted) wake();
  });
}

/** A promise, and its `resolve` and `reject`. */
export function deferred() {
  const made = {};
  made.promise = new Promise((resolve, reject) => Object.assign(made, { resolve, reject }));
  return made;
}

/** Let everything else that waits have its turn: timers, sockets, the page. */
export function turn() {
  if (globalThis.setImmediate) return new Promise((resolve) => setImmediate(resolve));
  const { port1, port2 } = new MessageChannel();
  return new Promise((resolve) => {
    port1.onmessage = () => {
      port1.close();
      resolve();
    };
    port2.postMessage(null);
  });
}
