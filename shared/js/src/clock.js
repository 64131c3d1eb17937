/** Time, timers, and letting other tasks run. */

/** Return the seconds of a clock that only goes forward. */
export function now() {
  return performance.now() / 1000;
}

/** Return the wall-clock time, in milliseconds since 1970. */
export function wallMs() {
  return Date.now();
}

/** A timer that is set again and again, and calls `call` when its time has come (Infinity: never). */
export class Timer {
  #call;
  #handle = null;
  #due = Infinity;

  constructor(call) {
    this.#call = call;
  }

  /** Let the timer fire at this time of `now()`, instead of the time that was set before. */
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

/** Resolve after this many seconds, or as soon as `signal` is aborted. */
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

/** Return a promise with its `resolve` and `reject`. */
export function deferred() {
  const made = {};
  made.promise = new Promise((resolve, reject) => Object.assign(made, { resolve, reject }));
  return made;
}

/** Resolve after everything else that waits has run: timers, sockets, the page. */
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
