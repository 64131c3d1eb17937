"""Every panel of the console, in wide and narrow windows, in light and dark: it can be read, and used without a
mouse (WCAG 2.2: 1.4.3, 1.4.10, 1.4.11, 2.1.1, 2.4.7, 4.1.2)."""

from __future__ import annotations

import json
from pathlib import Path

import tidelog
from support.js_tools import needs_chromium
from tidelog.types import Acl, Quota

from cluster.console.reader import Reader, reading
from cluster.harness import running

pytestmark = needs_chromium

WIDTHS = (1440, 390)
SCHEMES = ("light", "dark")
PREVIEWS = {
    "cluster": ("Drain a server", {"server": "r1"}),
    "topics/orders": ("Settings", {"unclean_election": "true"}),
    "partition/orders/0": ("Reassign", {"servers": "r1, r2, r3"}),
}
"""By page a form, and fields for which it shows a preview."""
LOADED = {
    "groups": "[aria-label=Groups]",
    "groups/billing": "[aria-label=Partitions]",
    "transactions": "[aria-label=Transactions]",
    "transactions/etl": "[aria-label=Transactions] button",
    "security": "[aria-label=Quotas]",
}
"""What a page shows when it has got its answers, by its place; of the others the heading is waited for."""
MOST_STEPS = 400
"""Most times that Tab is pressed on a page."""

COLOURS = """
const parts = (text) => (text.match(/[\\d.]+/g) ?? []).map(Number);
const over = ([r, g, b, a = 1], [R, G, B]) => [r * a + R * (1 - a), g * a + G * (1 - a), b * a + B * (1 - a)];
const groundOf = (node) => {
  const layers = [];
  for (let at = node; at; at = at.parentElement) {
    const colour = parts(getComputedStyle(at).backgroundColor);
    if (colour.length === 3 || colour[3] > 0) layers.push(colour);
    if (colour.length === 3) break;
  }
  const canvas = matchMedia('(prefers-color-scheme: dark)').matches ? [18, 18, 18] : [255, 255, 255];
  return layers.reverse().reduce((ground, layer) => over(layer, ground), canvas);
};
const linear = (one) => (one <= 10 ? one / 255 / 12.92 : ((one / 255 + 0.055) / 1.055) ** 2.4);
const luminance = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
const contrast = (colour, ground) => {
  const [low, high] = [luminance(over(parts(colour), ground)), luminance(ground)].sort((a, b) => a - b);
  return (high + 0.05) / (low + 0.05);
};
const visible = { opacityProperty: true, visibilityProperty: true };
const isShown = (node) => node.checkVisibility(visible) && node.getClientRects().length > 0;
const told = (node) => `${node.tagName} ${node.getAttribute('class')}: ${(node.innerText ?? node.name).slice(0, 40)}`;
"""
"""JavaScript that computes contrasts from the styles of the page."""

FAULTS = f"""(() => {{
  {COLOURS}
  const faults = [];
  const width = document.documentElement.scrollWidth;
  if (width > innerWidth) faults.push(`the page is ${{width}} px wide`);
  const nodes = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const texts = new Set();
  while (nodes.nextNode()) if (nodes.currentNode.data.trim()) texts.add(nodes.currentNode.parentElement);
  for (const node of texts) {{
    if (node.closest('svg, :disabled, .unseen, .skip, noscript, option') || !isShown(node)) continue;
    const ratio = contrast(getComputedStyle(node).color, groundOf(node));
    if (ratio < 4.5) faults.push(`contrast ${{ratio.toFixed(1)}} of ${{told(node)}}`);
  }}
  const fields = 'input:not([type=checkbox], [type=radio], [type=range]), select, textarea';
  for (const field of document.querySelectorAll(fields)) {{
    if (field.disabled || !isShown(field)) continue;
    const ratio = contrast(getComputedStyle(field).borderTopColor, groundOf(field.parentElement));
    if (ratio < 3) faults.push(`contrast ${{ratio.toFixed(1)}} of the border of ${{told(field)}}`);
  }}
  return faults;
}})()"""
"""Yields descriptions of what is wider than the window, and of texts and fields with too little contrast."""

UNREACHED = f"""(() => {{
  {COLOURS}
  const all = document.querySelectorAll('a[href], button, input, select, textarea, summary, [tabindex="0"]');
  return [...all].filter((one) => !one.disabled && !one.reached && isShown(one)).map(told);
}})()"""
"""Yields the controls that Tab has not reached."""

STEP = """(() => {
  const node = document.activeElement;
  if (node === document.body) return 'end';
  if (node === window.focusedBefore) return '';
  if (node.reached) return 'again';
  [window.focusedBefore, node.reached] = [node, true];
  const { outlineStyle, outlineWidth } = getComputedStyle(node);
  const isSeen = outlineStyle !== 'none' && parseFloat(outlineWidth) >= 2;
  return isSeen ? '' : `${node.tagName} ${node.className} ${node.innerText}`;
})()"""
"""Marks the focused element as reached. Yields ``end`` between the last and the first element, ``again`` at one that
was reached before, and a description of one whose focus cannot be seen. A field with a date takes several steps."""


async def places(reader: Reader) -> list[str]:
    """Return the panels of the navigation, and pages within them."""
    await reader.see("document.querySelectorAll('nav a').length > 5")
    panels = await reader.do("[...document.querySelectorAll('nav a')].map((one) => one.hash.slice(2))")
    assert isinstance(panels, list)
    return [*panels, "topics/orders", "partition/orders/0", "groups/billing", "transactions/etl"]


async def faults_of_keyboard(reader: Reader) -> list[str]:
    """Press Tab until the focus has gone round the page. Returns descriptions of controls whose focus is not seen, or
    that it does not reach."""
    faults: list[str] = []
    await reader.do(
        "document.activeElement.blur(); document.querySelectorAll('*').forEach((one) => delete one.reached)"
    )
    for _ in range(MOST_STEPS):
        await reader.press("Tab")
        found = str(await reader.do(STEP))
        if found == "again":
            break
        faults += [f"the focus is not seen: {found}"] if found not in ("", "end") else []
    unreached = await reader.do(UNREACHED)
    assert isinstance(unreached, list)
    return faults + [f"not reached by Tab: {one}" for one in unreached]


async def test_every_panel_can_be_read_and_used_without_a_mouse(tmp_path: Path) -> None:
    faults: list[str] = []
    async with running(tmp_path, replicas=3) as cluster, tidelog.connect(cluster.gateway) as log:
        await log.topics.create("orders", partitions=2)
        async with log.producer("orders") as producer:
            for number in range(20):
                await producer.send(json.dumps({"n": number}).encode(), key=b"%d" % number)
        async with log.consume("orders", group="billing", start="earliest") as member:
            async for record in member:
                if record.offset:
                    break
        async with log.stage("etl") as staged:
            await staged.send("orders", b"1")
        await log.access.create_token("ada")
        await log.access.alter_acls([Acl("ada", "read", "topic:orders"), Acl("ada", "delete", "topic:*", deny=True)])
        await log.access.alter_quotas([Quota("ada", requests_s=50)])
        async with reading(cluster.gateway) as reader:
            for place in await places(reader):
                await reader.go(place)
                loaded = LOADED.get(place, "main h1")
                await reader.see(f"!!document.querySelector({loaded!r}) && text('.phase').startsWith('live')")
                await reader.do("document.querySelectorAll('main details').forEach((one) => (one.open = true))")
                if place in PREVIEWS:
                    form, fields = PREVIEWS[place]
                    await reader.preview(form, **fields)
                for width in WIDTHS:
                    for scheme in SCHEMES:
                        await reader.look_like(width, scheme)
                        await reader.do("new Promise((done) => setTimeout(() => requestAnimationFrame(done), 0))")
                        found = await reader.do(FAULTS)
                        assert isinstance(found, list)
                        faults += [f"{place}, {width} px, {scheme}: {one}" for one in found]
                faults += [f"{place}: {one}" for one in await faults_of_keyboard(reader)]
                faults += [f"{place}: no name: {role}" for role in await reader.nameless()]
    assert not faults, "\n".join(faults)
