"""The console as files: what the gateway shows, and that the page needs nothing from anywhere else."""

from __future__ import annotations

import re
import shutil
from hashlib import sha256
from pathlib import Path
from urllib.parse import urljoin

import pytest
import tidelog_gateway.console as console
from tidelog.net.http_pages import NO_ORIGINS, answer
from tidelog.net.origins import Origins

STATIC = Path(console.__file__).parent / "static"
OTHERS = {"client", "vendor"}
OWN = sorted(
    path for folder in ("*.*", "*/*.*") for path in STATIC.glob(folder) if not OTHERS & {path.parent.name, path.name}
)
PAGES = console.console_pages()
FOLDER = next(path for path in PAGES if path.endswith("/app.js")).removesuffix("app.js")
"""The path of all files but ``index.html``."""
CLIENT = Path(__file__).resolve().parents[3] / "shared" / "js"
FOR_NODE = "client/src/net/node-websocket.js"
LINES = 400
VENDORED = {"fzstd.js": "1a901fc5a58c349bbdb4f2aa1e688637ef56891ec58243a9f0cd863166b0d2a4"}
"""What others published: the SHA-256 of each file."""


def get(path: str, headers: str = "", origins: Origins = NO_ORIGINS) -> str:
    reply = answer(f"GET {path} HTTP/1.1\r\nHost: x\r\n{headers}\r\n".encode(), PAGES, origins)
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
def test_no_file_names_another_host(path: Path) -> None:
    assert not re.search(r"""["'(]https?://(?!www\.w3\.org/)""", path.read_text())


def test_the_page_names_all_files_that_are_served() -> None:
    linked = [urljoin("/console/", path) for path in re.findall(r'(?:href|src)="([^"#]+)"', get("/console/"))]
    assert set(linked) == {path for path in PAGES if path.startswith(FOLDER)} and len(linked) == 3


def test_the_client_is_in_the_script_as_a_whole() -> None:
    modules = {f"client/{path.relative_to(CLIENT)}" for path in CLIENT.glob("src/**/*.js")} - {FOR_NODE}
    found = re.findall(r"^// (client/\S+)$", PAGES[f"{FOLDER}app.js"]("").body.decode(), re.MULTILINE)
    assert sorted(found) == sorted(modules | {"client/tidelog.js"})


def test_the_client_alone_is_one_module_for_pages_whose_origin_may_connect() -> None:
    admitted = Origins(allowed=("https://app.example",))
    script = get(console.CLIENT, "Origin: https://app.example\r\n", admitted)
    assert "\r\naccess-control-allow-origin: https://app.example\r\n" in script and "\r\nvary: origin\r\n" in script
    assert re.search(r"^export const \{.*\bconnect\b.*\} = module\d+;$", script, re.MULTILINE)
    for other in ("", "Origin: https://evil.example\r\n"):
        assert "access-control" not in get(console.CLIENT, other, admitted)
    assert "access-control" not in get("/console/", "Origin: https://app.example\r\n", admitted)


def test_files_are_kept_by_browsers_and_the_page_is_not() -> None:
    assert "\r\ncache-control: no-cache\r\n" in get("/console/")
    kept = "\r\ncache-control: public, max-age=31536000, immutable\r\n"
    assert all(kept in get(path) for path in (f"{FOLDER}app.js", f"{FOLDER}console.css", f"{FOLDER}icon.svg"))


def test_a_change_of_any_file_changes_the_paths_of_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(STATIC, tmp_path / "static", symlinks=False)
    monkeypatch.setattr(console, "_FILES", tmp_path / "static")
    assert set(console.console_pages.__wrapped__()) == set(PAGES)
    with (tmp_path / "static" / "page" / "dom.js").open("a") as file:
        file.write("// more\n")
    assert f"{FOLDER}app.js" not in console.console_pages.__wrapped__()


@pytest.mark.parametrize("path", [path for path in OWN if path.suffix == ".js"], ids=lambda path: path.name)
def test_nothing_is_ever_made_html_and_modules_are_short_enough_to_read(path: Path) -> None:
    text = path.read_text()
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(", text)
    assert len(text.splitlines()) <= LINES


def test_the_work_of_others_is_as_they_published_it() -> None:
    vendored = {path.name: sha256(path.read_bytes()).hexdigest() for path in (STATIC / "vendor").glob("*.js")}
    assert vendored == VENDORED


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
