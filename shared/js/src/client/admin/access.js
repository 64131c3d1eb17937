/** What a client can do about who may do what: tokens, rules, quotas (docs/security.md). `Log` has all of it. */

import { ConfigError } from "../../errors.js";
import { Moving } from "./partitions.js";
import * as messages from "../../wire/messages.js";
import { some, unless } from "../../wire/shapes.js";

const TOKEN_BYTES = 32;
const ID_BYTES = 8;

export class Securing extends Moving {
  /**
   * A new bearer token of a principal. It is made here and nowhere kept: the cluster knows its SHA-256 only. Without
   * `lifetimeS` it never expires. Rejects with `INVALID_CONFIG`.
   */
  async createToken(principal, { lifetimeS = null } = {}) {
    return this.#putToken({ principal, lifetime_ms: lifetimeMs(lifetimeS) });
  }

  /** A new token of the same principal; the former ends `graceS` later. Rejects with `UNKNOWN_TOKEN`. */
  async rotateToken(tokenId, { graceS = 0, lifetimeS = null } = {}) {
    const graceMs = unless(0, Math.round(graceS * 1000));
    return this.#putToken({ replaces: tokenId, grace_ms: graceMs, lifetime_ms: lifetimeMs(lifetimeS) });
  }

  /** It ends now, and so do the connections that were opened with it. Rejects with `UNKNOWN_TOKEN`. */
  async revokeToken(tokenId) {
    await this.ask({ op: "revoke_tokens", token_id: tokenId }, messages.done, { again: false });
  }

  /** The same for all tokens of a principal. */
  async revokeTokensOf(principal) {
    await this.ask({ op: "revoke_tokens", principal }, messages.done, { again: false });
  }

  /**
   * Have the cluster sign the tickets of producer ids with a new key. Tickets of the key before stay valid until the next
   * rotation. Rejects with `UNSUPPORTED_LEVEL` below feature level 4.
   */
  async rotateTicketKeys() {
    await this.ask({ op: "rotate_ticket_keys" }, messages.done, { again: false });
  }

  /**
   * The rules in `add` are there from now on, those in `remove` are not: `{principal, operation, resource, deny}`. Rejects
   * with `INVALID_CONFIG`.
   */
  async alterAcls({ add = [], remove = [] } = {}) {
    await this.ask({ op: "alter_acls", add: some([...add].map(rule)), remove: some([...remove].map(rule)) });
  }

  /**
   * Nobody decides about tokens and rules any more but superusers and whom a rule allows `security`. Rejects with
   * `UNSUPPORTED_LEVEL` below feature level 5.
   */
  async dropInheritedSecurity() {
    await this.ask({ op: "alter_acls", drop_inherited: true });
  }

  /**
   * What these principals may have at each gateway: `{principal, bytesInS, bytesOutS, requestsS, connections}`; what is
   * left out, or -1, is not bounded. Rejects with `INVALID_CONFIG`.
   */
  async alterQuotas(quotas) {
    await this.ask({ op: "alter_quotas", quotas: some([...quotas].map(quota)) });
  }

  /** `tokens` (without what would help to use them), `acls`, `quotas`, and `heirs`: who inherits `security`. */
  async access() {
    return this.ask({ op: "describe_access" }, messages.accessAnswer);
  }

  async #putToken(wish) {
    const crypto = await findCrypto();
    const [id, secret] = [ID_BYTES, TOKEN_BYTES].map((size) => crypto.getRandomValues(new Uint8Array(size)));
    const token = `tide_${toHex(id)}_${toBase64Url(secret)}`;
    const digest = toHex(new Uint8Array(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(token))));
    await this.ask({ op: "put_token", token_id: toHex(id), digest, ...wish }, messages.done, { again: false });
    return token;
  }
}

/** The platform's; in an older Node that of its module. Pages that did not come by https have none. */
async function findCrypto() {
  if (globalThis.crypto?.subtle) return globalThis.crypto;
  try {
    return (await import("node:crypto")).webcrypto;
  } catch {
    throw new ConfigError("tokens are made by the Web Crypto API, which pages have that come by https or from localhost");
  }
}

function toHex(bytes) {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

function toBase64Url(bytes) {
  return btoa(String.fromCharCode(...bytes)).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

function lifetimeMs(lifetimeS) {
  return lifetimeS === null ? undefined : Math.max(1, Math.round(lifetimeS * 1000));
}

function rule({ principal, operation, resource, deny = false }) {
  return { principal, operation, resource, deny: unless(false, deny) };
}

function quota({ principal, bytesInS = -1, bytesOutS = -1, requestsS = -1, connections = -1 }) {
  return {
    principal,
    bytes_in_s: unless(-1, bytesInS),
    bytes_out_s: unless(-1, bytesOutS),
    requests_s: unless(-1, requestsS),
    connections: unless(-1, connections),
  };
}
