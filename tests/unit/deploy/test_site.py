"""The documentation as a site: it is built strictly, so that a broken link or a page outside of the menu fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SETTINGS = ROOT / "deploy/site/mkdocs.yml"


def build(settings: Path, site: Path) -> subprocess.CompletedProcess[str]:
    """Build a site, and return what mkdocs printed and its exit status."""
    command = [sys.executable, "-m", "mkdocs", "build", "--config-file", str(settings), "--site-dir", str(site)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    built = build(SETTINGS, folder)
    assert built.returncode == 0, built.stderr
    return folder


def test_every_page_is_in_the_list_for_language_models(site: Path) -> None:
    listed = (site / "llms.txt").read_text()
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    assert {page for page in pages if f"/{page})" not in listed} == {"lab/README.md"}
    assert "/lab/index.md)" in listed


def test_the_api_page_has_signatures_and_docstrings_from_the_code(site: Path) -> None:
    page = (site / "api.html").read_text()
    for name in ("tidelog.Producer.send", "tidelog.sync.Log", "tidelog.client.admin.topics.TopicAdmin.create"):
        assert f'id="{name}"' in page, name
    assert "delivery_timeout_s" in page and ":::" not in page


def test_a_search_finds_settings_and_errors(site: Path) -> None:
    documents = json.loads((site / "search/search_index.json").read_text())["docs"]
    for word in ("min_insync_replicas", "LOG_TRUNCATED", "TIDELOG_GATEWAY"):
        assert any(word in document["text"] for document in documents), word


def test_a_link_out_of_the_folder_leads_to_the_repository(site: Path) -> None:
    page = (site / "architecture.html").read_text()
    assert "/blob/main/services/replica/tidelog_replica/storage/log.py" in page


@pytest.mark.parametrize(
    "text, complaint",
    [
        ("[gone](gone.md)", "'gone.md'"),
        ("[gone](../deploy/gone.py)", "'../deploy/gone.py'"),
        ("[gone](other.md#gone)", "'#gone'"),
    ],
)
def test_a_broken_link_fails_the_build(tmp_path: Path, text: str, complaint: str) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "index.md").write_text(f"# Page\n\n{text}\n")
    (docs / "other.md").write_text("# Other\n")
    settings = tmp_path / "mkdocs.yml"
    links = "{links: {anchors: warn}}"
    hooks = SETTINGS.parent / "hooks.py"
    settings.write_text(f"site_name: x\nstrict: true\nhooks: ['{hooks}']\nvalidation: {links}\nplugins: []\n")
    built = build(settings, tmp_path / "site")
    assert built.returncode == 1 and complaint in built.stderr
