"""README, changelog and documentation as the tests read them: blocks, commands, links, headings."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
_FENCE = re.compile(r"(`{3,})(.*)")
_LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^()\s]+)\)")
# What a page shows for what differs from run to run.
_TIME = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")
_ANY = "…"


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{name_of(self.page)}:{self.line}"


@dataclass(frozen=True)
class Command:
    """A command that a page shows, and what it prints; by root, where the prompt is ``#``."""

    where: str
    text: str
    by_root: bool
    output: str


def all_pages() -> list[Path]:
    """Return every page for readers."""
    docs = sorted((ROOT / "docs").rglob("*.md"))
    return [README, ROOT / "CHANGELOG.md", *(page for page in docs if "_build" not in page.parts)]


def name_of(page: Path) -> str:
    """Name a page as the repository does."""
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path, *languages: str) -> Iterator[Block]:
    """Yield a page's fenced blocks, of these languages if any are named."""
    fence, language, start = "", "", 0
    body: list[str] = []
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1):
        match = _FENCE.match(line)
        if not fence and match:
            fence, language, start, body = match[1], match[2].strip(), number, []
        elif fence and line.strip() == fence:
            fence = ""
            if not languages or language in languages:
                yield Block(page, start, language, "\n".join(body))
        elif fence:
            body.append(line)
    assert not fence, f"{name_of(page)}:{start}: a block that does not end"


def commands(page: Path) -> list[Command]:
    """Return the commands of a page in its order."""
    return [
        command for block in blocks(page, "console", "bash", "sh") for command in _commands(block)
    ]


def _commands(block: Block) -> Iterator[Command]:
    text, by_root, output = "", False, [""]
    for line in block.text.splitlines():
        if text.endswith("\\"):
            text = text[:-1] + line.strip()
        elif line.startswith(("$ ", "# ")):
            if text:
                yield Command(str(block), text, by_root, "\n".join(output).strip())
            text, by_root, output = line[2:], line[0] == "#", []
        else:
            assert text, f"{block}: begins with no command; commands begin with '$ ' or '# '"
            output.append(line)
    yield Command(str(block), text, by_root, "\n".join(output).strip())


def prose(page: Path) -> str:
    """Return a page without its fenced blocks and literals."""
    text = page.read_text(encoding="utf-8")
    text = re.sub(r"^(`{3,}).*?^\1$", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`\n]*`", "", text)


def links(page: Path) -> list[str]:
    """Return where a page's links and pictures lead."""
    return _LINK.findall(prose(page))


def anchors(page: Path) -> set[str]:
    """Return what links can name within a page."""
    text = re.sub(
        r"^(`{3,}).*?^\1$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
    )
    titles = re.findall(r"^#{1,6} (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def says(expected: str, got: str) -> bool:
    """Whether an output is what a page shows: spaces, times and what it leaves out aside."""
    return bool(re.fullmatch(_pattern(expected), _plain(got)))


def _plain(text: str) -> str:
    return " ".join(_TIME.sub("<time>", text).split())


def _pattern(expected: str) -> str:
    return re.escape(_plain(expected)).replace(re.escape(_ANY), r"\S+")
