/**
 * What rules allow: the decisions of `tidelog.acl`, which the tests hold these against. A rule is `{principal, operation,
 * resource, deny}`.
 */

import { OPERATIONS } from "./operations.js";

const INTERNAL = "topic:__";

/**
 * Whether the rules allow a principal the operation on the resource: some rule allows it, and none denies it. `heirs` are
 * the principals to whom a rule that allows them to administer the cluster also gives `security`.
 */
export function decide(rules, principal, operation, resource, heirs = []) {
  if (operation === "security" && heirs.length && decideByRules(rules, principal, "cluster", resource)) {
    const inherited = rules.filter((rule) => !rule.deny && rule.operation === "cluster" && rule.resource === "cluster" && heirs.includes(rule.principal));
    return decideByRules([...rules, ...inherited.map((rule) => ({ ...rule, operation: "security" }))], principal, operation, resource);
  }
  return decideByRules(rules, principal, operation, resource);
}

/**
 * What who asked for `access` may do with the rule's resource by the rules before, and no longer by those after, as
 * `read topic:orders`; none where rules do not bind them. Of a resource with `*` its beginning is asked for.
 */
export function lostRights({ principal, superuser, authorization, heirs }, { resource }, before, after, heirsAfter = heirs) {
  if (!authorization || superuser) return [];
  const [kind] = resource.split(":");
  const one = resource.replace(/\*$/, "");
  const lost = (OPERATIONS[kind] ?? []).filter((operation) => decide(before, principal, operation, one, heirs) && !decide(after, principal, operation, one, heirsAfter));
  return lost.map((operation) => `${operation} ${resource}`);
}

/** Whether a rule is about this principal, operation and resource, be it that it allows or denies. */
export function concerns(rule, principal, operation, resource) {
  if (rule.principal !== "*" && rule.principal !== principal) return false;
  if (!covers(rule.resource, resource)) return false;
  return rule.operation === "*" || rule.operation === operation || (operation === "describe" && !rule.deny);
}

function decideByRules(rules, principal, operation, resource) {
  const found = rules.filter((rule) => concerns(rule, principal, operation, resource));
  return found.length > 0 && !found.some(({ deny }) => deny);
}

/** Whether a resource, perhaps with `*` at its end, covers another. The cluster's own topics have to be named. */
function covers(pattern, resource) {
  if (!pattern.endsWith("*")) return pattern === resource;
  const start = pattern.slice(0, -1);
  return resource.startsWith(start) && (start.startsWith(INTERNAL) || !resource.startsWith(INTERNAL));
}

/** A rule in words, as the command line writes it. */
export function ruleWords({ principal, operation, resource, deny }) {
  return `${deny ? "deny" : "allow"} ${principal} ${operation} ${resource}`;
}
