"""A reader of the console: a headless Chromium that opens the page of a gateway."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio
from support.browser import Page, browser
from support.js_tools import CHROMIUM

PATIENCE_MS = 30_000


class Reader:
    """Somebody who looks at the page. The page runs beside the cluster: every look is a thread's."""

    def __init__(self, page: Page) -> None:
        self._page = page

    async def do(self, script: str) -> object:
        """Run it in the page; its value."""
        return await trio.to_thread.run_sync(self._page.evaluate, script)

    async def see(self, condition: str) -> None:
        """Wait until it is so: looked at whenever the page changes. ``text`` is what a selector's element says."""
        await self.do(f"""new Promise((resolve, reject) => {{
            const text = (selector) => document.querySelector(selector)?.innerText ?? '';
            const look = () => ({condition}) && (watching.disconnect(), resolve(true));
            const watching = new MutationObserver(look);
            watching.observe(document, {{subtree: true, childList: true, characterData: true, attributes: true}});
            setTimeout(() => reject(new Error(`the page says: ${{document.body.innerText}}`)), {PATIENCE_MS});
            look();
        }})""")

    async def nameless(self) -> list[str]:
        """Return roles without a name; see ``Page.nameless``."""
        return await trio.to_thread.run_sync(self._page.nameless)

    async def press(self, *keys: str) -> None:
        """Keys, one after the other."""
        for key in keys:
            await trio.to_thread.run_sync(self._page.press, key)

    async def click(self, words: str) -> None:
        """The button that says so."""
        await self.see(f"[...document.querySelectorAll('button:enabled')].some((one) => one.innerText === {words!r})")
        await self.do(f"[...document.querySelectorAll('button')].find((one) => one.innerText === {words!r}).click()")

    async def look_like(self, width: int, scheme: str = "light", height: int = 800) -> None:
        """In a window of that size, and in light or dark."""
        await trio.to_thread.run_sync(self._page.look_like, width, height, scheme)

    async def picture(self) -> bytes:
        """Return what is seen in the window, as PNG."""
        return await trio.to_thread.run_sync(self._page.screenshot)

    async def go(self, place: str) -> None:
        """To another panel."""
        await self.do(f"location.hash = '#/{place}'")

    async def fill(self, form: str, *said: str, **fields: str) -> None:
        """Wait for the form of that name, open it, fill it in and send it; returns when it was done, one of these was
        said, or the page has left the form."""
        await self._send(form, fields)
        done = said or ("Ackn", "Done", "is there")
        place = f"[data-name={json.dumps(form)}]"
        await self.see(
            f"{json.dumps(done)}.some((word) => text('{place}').includes(word)) || !document.querySelector('{place}')"
        )

    async def preview(self, form: str, **fields: str) -> str:
        """Fill in the form of that name and send it; returns what its preview says."""
        await self._send(form, fields)
        shown = f"document.querySelector('[data-name={json.dumps(form)}]')?.closest('details').querySelector('.plan')"
        await self.see(f"!!{shown}")
        return str(await self.do(f"{shown}.innerText"))

    async def carry_out(self, form: str, said: str) -> None:
        """Do what the form's preview shows; returns when the form says so."""
        place = f"[data-name={json.dumps(form)}]"
        await self.do(
            f"document.querySelector('{place}').closest('details').querySelector('.plan button.main').click()"
        )
        await self.see(f"text('{place}').startsWith({json.dumps(said)})")

    async def _send(self, form: str, fields: dict[str, str]) -> None:
        """Wait until the form of that name can be sent, open it, fill it in and send it. Its status is emptied, and
        gets the name."""
        named = f"[...document.querySelectorAll('details')].find((one) => one.innerText.startsWith({form!r}))"
        await self.see(f"!!{named}?.querySelector('button.main:enabled')")
        await self.do(f"""(() => {{
            const one = {named};
            one.open = true;
            const fields = {json.dumps(fields)};
            for (const name in fields) {{
                const field = one.querySelector(`[name="${{name}}"]`);
                if (field.type === 'checkbox') field.checked = fields[name] === 'on';
                else field.value = fields[name];
            }}
            const status = one.querySelector('[role=status]');
            status.dataset.name = {form!r};
            status.textContent = '';
            one.querySelector('button.main').click();
        }})()""")

    async def connect_with(self, token: str) -> None:
        """Wait until the page asks for a token, give it this one, and wait until it is connected."""
        await self.see("document.querySelector('form [name=token]')")
        await self.do(f"""(() => {{
            const form = document.querySelector('form');
            form.token.value = {token!r};
            form.querySelector('button').click();
        }})()""")
        await self.see("text('.phase').startsWith('live')")

    async def show(self, way: str, **fields: str) -> None:
        """Ask for records, with these fields of the form; the others stay as they are."""
        await self.do(f"""(async () => {{
            const form = document.querySelector('section form');
            form.way.value = {way!r};
            form.way.dispatchEvent(new Event('change'));
            await new Promise(requestAnimationFrame).then(() => new Promise(requestAnimationFrame));
            const fields = {json.dumps(fields)};
            for (const name in fields) form[name].value = fields[name];
            form.querySelector('button').click();
        }})()""")

    async def save(self, script: str, folder: Path) -> Path:
        """Return the file that the page saves when the script runs in it."""
        return await trio.to_thread.run_sync(self._page.save, script, folder)


@asynccontextmanager
async def reading(gateway: str) -> AsyncIterator[Reader]:
    """The console of a gateway, in a browser that takes any certificate."""
    assert CHROMIUM is not None
    opened = browser(CHROMIUM, "--ignore-certificate-errors")
    page = await trio.to_thread.run_sync(opened.__enter__)
    try:
        await trio.to_thread.run_sync(page.open, gateway.replace("ws", "http", 1) + "/console/")
        yield Reader(page)
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(opened.__exit__, None, None, None)
