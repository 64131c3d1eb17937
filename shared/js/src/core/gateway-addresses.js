/**
 * The addresses of gateways that a client tries, in which order: what it was given, and what it has found. The rules
 * are those of the Python client (`tidelog/client/core/gateway_addresses.py`), which says why.
 *
 * Addresses are tried in rounds: all given ones in turn, from the one after the address whose link was lost, then one
 * found address. A found address is as safe as what was given, at least; a page that came over https has to use TLS.
 */

/** Number of gateways, and characters of a URL, that a gateway can name at most. */
const MAX_FOUND = 64;
const MAX_URL = 255;
/** Hosts that mean every address of a machine. */
const EVERYWHERE = ["0.0.0.0", "[::]"];

export class GatewayAddresses {
  /** The found addresses, the next one to be tried first. None of them means the same as a given one. */
  found = [];
  #shuffle;
  #round;
  #secure;
  #inClear;

  /** `secure`: only `wss:` addresses may be found. `shuffle` puts an array into a random order, in place. */
  constructor(given, { discover = true, secure = false, shuffle = shuffled } = {}) {
    this.given = [...given];
    this.discover = discover;
    this.#shuffle = shuffle;
    this.#round = [...given];
    this.#secure = secure || given.some(isSecure);
    this.#inClear = given.some((url) => !isSecure(url) && !isLoopback(url));
  }

  /** Whether every address of this round has been tried, so that the client pauses. */
  get roundOver() {
    return !this.#round.length;
  }

  /** Return the address to try now. Begins a new round if this one is over. */
  next() {
    if (!this.#round.length) this.#beginRound(this.given);
    return this.#round.shift();
  }

  /** Begin a new round, because the link to this address was lost. */
  onLost(url) {
    const turn = this.given.indexOf(url) + 1;
    this.#beginRound([...this.given.slice(turn), ...this.given.slice(0, turn)]);
  }

  #beginRound(given) {
    this.#round = [...given];
    if (!this.found.length) return;
    this.#round.push(this.found[0]);
    this.found.push(this.found.shift());
  }

  /**
   * Replace the found addresses by those that a gateway has named over the link to the address `over`, as far as they
   * follow the rules. Does nothing if none is named, or without `discover`.
   */
  learn(named, over) {
    const urls = named.slice(0, MAX_FOUND);
    if (!urls.length || !this.discover) return;
    const known = new Set(this.given.map(meaningOf));
    const kept = new Set(urls.filter((url) => this.#mayUse(url, over) && !known.has(meaningOf(url))));
    const fresh = [...kept].filter((url) => !this.found.includes(url));
    this.#shuffle(fresh);
    this.found = [...fresh, ...this.found.filter((url) => kept.has(url))];
  }

  #mayUse(url, over) {
    if (!isValid(url) || (isLoopback(url) && !isLoopback(over))) return false;
    return isSecure(url) || (!this.#secure && (this.#inClear || isLoopback(url)));
  }
}

function isValid(url) {
  if (url.length > MAX_URL || !/^wss?:\/\/[!"$->@-~]+$/.test(url)) return false;
  const parsed = parse(url);
  return parsed !== null && !parsed.username && !parsed.password && !EVERYWHERE.includes(parsed.hostname);
}

function isSecure(url) {
  return parse(url)?.protocol === "wss:";
}

/** Whether a URL means the client's own machine. */
function isLoopback(url) {
  return /^(localhost|127\.\d+\.\d+\.\d+|\[::1\])$/.test(parse(url)?.hostname ?? "");
}

/** Return what is equal for two URLs that differ in capitals or in a default port only. */
function meaningOf(url) {
  return parse(url)?.href ?? url;
}

/** Return the parts of a URL; null for a text that is none. */
function parse(url) {
  try {
    return new URL(url);
  } catch {
    return null;
  }
}

function shuffled(list) {
  for (let last = list.length - 1; last > 0; last--) {
    const other = Math.floor(Math.random() * (last + 1));
    [list[last], list[other]] = [list[other], list[last]];
  }
}
