"""Hooks of mkdocs: links of pages to files outside of ``docs/`` become links to the repository."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
LINK = re.compile(r"(\]\(|^\[[^]]+\]: )([^)\s#:]+)(#[^)\s]*)?", re.MULTILINE)
"""A relative link of Markdown, in the text or at the end of a page: the path, and the fragment if there is one."""


def repository() -> str:
    """Return the address of the project's files: the URL ``Source`` of pyproject.toml, and the branch."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return f"{project['urls']['Source']}/blob/main"


def on_page_markdown(markdown: str, *, page: Any, **_: object) -> str:
    """Replace each link of a page whose target is a file of the project that is no page of the site. A link to
    nothing stays, and mkdocs reports it."""
    here = (DOCS / page.file.src_uri).parent

    def outside(link: re.Match[str]) -> str:
        target = (here / link[2]).resolve()
        is_page = target.is_relative_to(DOCS) and (target.suffix in (".md", ".svg", ".png"))
        if is_page or not target.exists():
            return link[0]
        return f"{link[1]}{repository()}/{target.relative_to(ROOT)}{link[3] or ''}"

    return LINK.sub(outside, markdown)
