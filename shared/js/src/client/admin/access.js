/** Administration of tokens, rules and quotas (docs/security.md). `Log` has all of these methods. */

import { ConfigError } from "../../errors.js";
import { Moving } from "./partitions.js";
import * as messages from "../../wire/messages.js";
import { some, unless } from "../../wire/shapes.js";

const TOKEN_BYTES = 32;
const ID_BYTES = 8;

export class Securing extends Moving {
  /**
   * Create a bearer token of a principal and resolve with it. It is made here and stored nowhere: the cluster keeps
   * its SHA-256 only. Without `lifetimeS` it never expires. Rejects with `INVALID_CONFIG`.
   */
  async createToken(principal, { lifetimeS = null } = {}) {
    return this.#putToken({ principal, lifetime_ms: lifetimeMs(lifetimeS) });
  }

  /**
   * Create a new token for the principal of an existing one, and resolve with it; the old one expires `graceS` later.
   * Rejects with `UNKNOWN_TOKEN`.
   */
  async rotateToken(tokenId, { graceS = 0, lifetimeS = null } = {}) {
    const graceMs = unless(0, Math.round(graceS * 1000));
    return this.#putToken({ replaces: tokenId, grace_ms: graceMs, lifetime_ms: lifetimeMs(lifetimeS) });
  }

  /** Revoke a token at once, and close the connections that were opened with it. Rejects with `UNKNOWN_TOKEN`. */
  async revokeToken(tokenId) {
    await this.ask({ op: "revoke_tokens", token_id: tokenId }, messages.done, { again: false });
  }

  /** Revoke all tokens of a principal at once, and close the connections that were opened with them. */
  async revokeTokensOf(principal) {
    await this.ask({ op: "revoke_tokens", principal }, messages.done, { again: false });
  }

  /**
   * Make the cluster sign the tickets of producer ids with a new key. Tickets of the key before stay valid until the
   * next rotation. Rejects with `UNSUPPORTED_LEVEL` below feature level 4.
   */
  async rotateTicketKeys() {
    await this.ask({ op: "rotate_ticket_keys" }, messages.done, { again: false });
  }

  /**
   * Add the rules in `add` and remove the rules in `remove`: `{principal, operation, resource, deny}`. Rejects with
   * `INVALID_CONFIG`.
   */
  async alterAcls({ add = [], remove = [] } = {}) {
    await this.ask({ op: "alter_acls", add: some([...add].map(rule)), remove: some([...remove].map(rule)) });
  }

  /**
   * Allow only superusers, and principals with the right `security`, to change tokens and rules from now on. Rejects
   * with `UNSUPPORTED_LEVEL` below feature level 5.
   */
  async dropInheritedSecurity() {
    await this.ask({ op: "alter_acls", drop_inherited: true });
  }

  /**
   * Set what these principals may use at each gateway: `{principal, bytesInS, bytesOutS, requestsS, connections}`; a
   * number that is left out, or -1, is not bounded. Rejects with `INVALID_CONFIG`.
   */
  async alterQuotas(quotas) {
    await this.ask({ op: "alter_quotas", quotas: some([...quotas].map(quota)) });
  }

  /**
   * Resolve with all `tokens` (without their secret parts), `acls`, `quotas`, and `heirs`: the principals that
   * inherit `security`.
   */
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

/**
 * Resolve with the platform's Web Crypto API; in an older Node with that of its module. Rejects with `ConfigError` on
 * a page that did not come by https, which has none.
 */
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
