/** Who is connected with whom, as a picture: gateways above, replica servers between, controllers below. */

import { h } from "../page/dom.js";

const WIDTH = 480;
const ROW = 84;
const RADIUS = 20;
const ROWS = ["gateways", "servers", "controllers"];

/**
 * The links of a cluster: `{from, to}`. `served`: by server, the gateways that are connected to it, as far as it has told.
 * A server that is heard of has a link to the active controller, and so have the other controllers.
 */
export function linksOf({ gateways, servers, controllers, active }, served) {
  const live = servers.filter(({ fenced }) => !fenced).map(({ node }) => node);
  const others = controllers.filter(({ node, lost }) => node !== active && !lost).map(({ node }) => node);
  return [
    ...live.flatMap((node) => (served.get(node) ?? []).map((gateway) => ({ from: gateway, to: node }))),
    ...(active ? [...gateways, ...live, ...others].map((node) => ({ from: node, to: active })) : []),
  ];
}

/** The picture, and in words what it shows. */
export function picture(cluster, served) {
  const links = linksOf(cluster, served);
  const gateways = [...new Set([...cluster.gateways, ...[...served.values()].flat()])].sort();
  const rows = [gateways, cluster.servers.map(({ node }) => node), cluster.controllers.map(({ node }) => node)];
  const gone = new Set(cluster.servers.filter(({ fenced }) => fenced).map(({ node }) => node));
  const places = new Map(rows.flatMap((row, y) => row.map((node, i) => [node, { x: (WIDTH * (i + 0.5)) / row.length, y: ROW * (y + 0.5) }])));
  const words = [...new Set(links.map(({ to }) => to))].map((to) => `to ${to}: ${links.filter((one) => one.to === to).map(({ from }) => from).join(", ")}`);
  return h(
    "figure",
    { class: "graph linked", role: "img", "aria-label": `Connections ${words.join("; ") || "are not known"}` },
    h(
      "svg",
      { viewBox: `0 0 ${WIDTH} ${ROW * rows.length}`, "aria-hidden": "true" },
      links.map(({ from, to }) => line(places.get(from), places.get(to), `${from} ${to}`, WIDTH / (rows[1].length || 1))),
      rows.flatMap((row, y) => row.map((node) => dot(node, places.get(node), `${ROWS[y]} ${gone.has(node) ? "bad" : ""} ${node === cluster.active ? "active" : ""}`))),
    ),
  );
}

/** Straight to the next row; else bent, so that it does not run through others: `aside` is as far as the next of them. */
function line(from, to, key, aside) {
  const [x, y] = [(from.x + to.x) / 2, (from.y + to.y) / 2];
  const bend = from.y === to.y ? { x, y: y + ROW / 2 } : { x: Math.abs(to.y - from.y) > ROW ? x + aside : x, y };
  return h("path", { key, class: "link", d: `M ${from.x} ${from.y} Q ${bend.x} ${bend.y} ${to.x} ${to.y}` });
}

function dot(node, { x, y }, kind) {
  return h(
    "g",
    { key: node, class: `dot ${kind}`, transform: `translate(${x} ${y})` },
    h("circle", { r: RADIUS }),
    h("text", { y: 5, "text-anchor": "middle" }, node.length > 6 ? `${node.slice(0, 5)}…` : node),
  );
}
