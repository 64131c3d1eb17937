/**
 * A page from descriptions: `h` says what is to be there, `render` changes the document until it is. What stays the same
 * is not touched: focus, selections, scrolling and what was typed are kept. A description that is the very object of the
 * last time is not even looked at, so whoever keeps it saves the work. Texts are texts: there is no way to HTML.
 */

const SVG = "http://www.w3.org/2000/svg";
/** Set as properties, and only when what is wanted changes: the reader may have changed them since. */
const PROPERTIES = new Set(["value", "defaultValue", "checked", "selected", "disabled", "open", "hidden"]);

/** An element: its tag, attributes (`on…`: listeners; `key`: the same element wherever it moves), and children. */
export function h(tag, props, ...children) {
  return { tag, props: props ?? {}, children: children.flat(Infinity).filter((one) => one !== null && one !== undefined && one !== false) };
}

/** Make these the children of `parent`. */
export function render(parent, ...wanted) {
  const nodes = wanted.flat(Infinity).filter((one) => one !== null && one !== undefined && one !== false);
  const keyed = new Map([...parent.childNodes].filter((node) => node.wanted?.key !== undefined).map((node) => [node.wanted.key, node]));
  const kept = new Set(nodes.map((one) => keyed.get(one.props?.key)).filter(Boolean));
  let at = parent.firstChild;
  for (const one of nodes) {
    const key = one.props?.key;
    let node = key === undefined ? at : keyed.get(key);
    if (key === undefined) while (node && kept.has(node)) node = node.nextSibling;
    if (!fits(node, one)) node = create(one, parent);
    if (node !== at) parent.insertBefore(node, at);
    else at = at.nextSibling;
    update(node, one);
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

/** With escapes for what would not be seen, or would turn the text beside it round. Newlines and tabs are spaces of HTML. */
export function escaped(text) {
  return text.replace(/[^\P{C}\n\t]|[\u2028\u2029]/gu, (one) => `\\u{${one.codePointAt(0).toString(16)}}`);
}

function fits(node, wanted) {
  if (!node) return false;
  if (wanted.tag === undefined) return node.nodeType === Node.TEXT_NODE;
  return node.wanted?.tag === wanted.tag && node.wanted.key === wanted.props.key;
}

function create(wanted, parent) {
  if (wanted.tag === undefined) return document.createTextNode("");
  const inSvg = wanted.tag === "svg" || parent.namespaceURI === SVG;
  const node = inSvg ? document.createElementNS(SVG, wanted.tag) : document.createElement(wanted.tag);
  node.wanted = { tag: wanted.tag, key: wanted.props.key, props: {} };
  return node;
}

function update(node, wanted) {
  if (wanted.tag === undefined) {
    const text = escaped(String(wanted));
    if (node.data !== text) node.data = text;
    return;
  }
  if (node.drawn === wanted) return;
  node.drawn = wanted;
  const before = node.wanted.props;
  const after = wanted.props;
  for (const name of Object.keys(before)) if (!(name in after)) set(node, name, before[name], null);
  const late = [];
  for (const [name, value] of Object.entries(after)) {
    if (before[name] === value) continue;
    if (name === "value") late.push([name, value]);
    else set(node, name, before[name], value);
  }
  node.wanted.props = after;
  if (!after.own) render(node, wanted.children);
  for (const [name, value] of late) set(node, name, before[name], value);
}

function set(node, name, before, value) {
  if (name === "key" || name === "own") return;
  if (name.startsWith("on")) node[name.toLowerCase()] = value;
  else if (name === "style") for (const [rule, to] of Object.entries(value ?? {})) node.style.setProperty(rule, to);
  else if (PROPERTIES.has(name)) node[name] = value ?? (name === "value" ? "" : false);
  else if (value === null || value === undefined || value === false) node.removeAttribute(name);
  else node.setAttribute(name, value === true ? "" : String(value));
}
