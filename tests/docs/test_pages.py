"""Links resolve, blocks can be read, and the words are a reader's."""

import json
import re
import tomllib
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, all_pages, anchors, blocks, links, name_of

# Every language that a block may have: each is run, read or compared by a test, but
# `text` and `http`.
LANGUAGES = {
    *("http", "console", "dockerfile", "python", "pycon", "ini", "json", "toml", "text"),
    "{toctree}",
}
# What belongs to a machine, a registry or a way of working, and to no reader.
FOREIGN = re.compile(
    rf"{re.escape(str(ROOT.parent))}/|/root\b|/tmp/|\b[a-z]+\.(?:docker|ghcr|nvcr|pypi|quay)\.|"
    r"\b(?:docker|ghcr|nvcr|quay)\.io|DESIGN\.md|hub facts|gpu mechanics",
)
PAGES = [pytest.param(page, id=name_of(page)) for page in all_pages()]


@pytest.mark.parametrize(
    "page", [*PAGES, pytest.param(ROOT / "CONTRIBUTING.md", id="contributing")]
)
def test_links_resolve(page: Path) -> None:
    broken = []
    for link in links(page):
        where, _, anchor = link.partition("#")
        if where.startswith(("http://", "https://")):
            continue
        target = (page.parent / where).resolve() if where else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize("page", PAGES)
def test_every_block_is_of_a_language_that_a_test_looks_at(page: Path) -> None:
    for block in blocks(page):
        assert block.language in LANGUAGES, str(block)
        if block.language == "json":
            json.loads(block.text)
        if block.language == "toml":
            tomllib.loads(block.text)


@pytest.mark.parametrize("page", PAGES)
def test_nothing_of_our_own_workplace_is_in_it(page: Path) -> None:
    assert FOREIGN.findall(page.read_text(encoding="utf-8")) == []


def test_pictures_have_words_for_those_who_do_not_see_them() -> None:
    for page in all_pages():
        for words in re.findall(r"!\[([^\]]*)\]", page.read_text(encoding="utf-8")):
            assert len(words) > 20, f"{name_of(page)}: {words!r}"


def test_every_page_is_reached_from_the_readme_or_the_index() -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    for page in (ROOT / "docs").rglob("*.md"):
        if "_build" in page.parts or page.name == "index.md":
            continue
        name = page.relative_to(ROOT / "docs").with_suffix("").as_posix()
        assert name in index or name.startswith("reference/"), name
