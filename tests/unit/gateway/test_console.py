"""The console as files: what the gateway shows, and that the page needs nothing from anywhere else."""

from __future__ import annotations

import re
from hashlib import sha256
from pathlib import Path
from urllib.parse import urljoin

import pytest
import tidelog_gateway.console as console
from tidelog.net.http_pages import answer

STATIC = Path(console.__file__).parent / "static"
OWN = sorted(STATIC.glob("*.*"))
PAGES = console.console_pages()
LINES = 400
VENDORED = {"fzstd.js": "1a901fc5a58c349bbdb4f2aa1e688637ef56891ec58243a9f0cd863166b0d2a4"}
"""What others published: the SHA-256 of each file."""


def get(path: str) -> str:
    reply = answer(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode(), PAGES)
    assert reply is not None
    return reply.decode()


def test_the_page_is_at_its_path_and_others_lead_there() -> None:
    assert get("/console/").startswith("HTTP/1.1 200") and "<!doctype html>" in get("/console/")
    for path in ("/", "/console"):
        assert get(path).startswith("HTTP/1.1 302") and "\r\nlocation: /console/\r\n" in get(path)
    assert get("/console/../config.py").startswith("HTTP/1.1 404")


def test_the_headers_of_the_page_forbid_browsers_to_load_anything_else() -> None:
    page = get("/console/")
    assert "content-security-policy: default-src 'none'; script-src 'self'; style-src 'self'" in page
    assert "x-content-type-options: nosniff" in page


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.name)
def test_files_name_only_what_is_served_here(path: Path) -> None:
    text = path.read_text()
    assert not re.search(r"""["'(]https?://(?!www\.w3\.org/)""", text)
    named = re.findall(r"""(?:from|import) ["']([^"']+)["']|(?:href|src)="([^"#]+)\"""", text)
    for target in (one or other for one, other in named):
        assert urljoin(f"/console/{path.name}", target) in PAGES, f"{path.name} needs {target}"


@pytest.mark.parametrize("path", [path for path in OWN if path.suffix == ".js"], ids=lambda path: path.name)
def test_nothing_is_ever_made_html_and_modules_are_short_enough_to_read(path: Path) -> None:
    text = path.read_text()
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(", text)
    assert len(text.splitlines()) <= LINES


def test_the_client_is_served_whole() -> None:
    shared = Path(__file__).resolve().parents[3] / "shared" / "js"
    served = {path.removeprefix("/console/client/") for path in PAGES if path.startswith("/console/client/")}
    assert served == {"tidelog.js", *(str(path.relative_to(shared)) for path in shared.glob("src/**/*.js"))}


def test_what_others_wrote_is_served_as_they_published_it() -> None:
    vendored = {path.name: sha256(path.read_bytes()).hexdigest() for path in (STATIC / "vendor").glob("*.js")}
    assert vendored == VENDORED
    assert set(VENDORED) == {path.rpartition("/")[2] for path in PAGES if path.startswith("/console/vendor/")}


def luminance(colour: str) -> float:
    """Return the relative luminance of ``#rrggbb`` (WCAG 2.2)."""
    parts = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_the_borders_of_fields_and_all_words_stand_out(scheme: int) -> None:
    root = (STATIC / "console.css").read_text().split(":root {")[1:][scheme].partition("}")[0]
    colours = dict(re.findall(r"--(\S+): (#[0-9a-f]{6})", root))
    for over in ("card", "ground"):
        for name, least in (("field", 3.0), ("ink", 4.5), ("quiet", 4.5), ("accent", 4.5)):
            darker, lighter = sorted((luminance(colours[name]), luminance(colours[over])))
            assert (lighter + 0.05) / (darker + 0.05) >= least, f"{name} over {over}"
