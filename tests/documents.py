"""The pages that people read: their code blocks, the commands in them, links and inline commands."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from commands import ROOT

SHELLS = ("bash", "sh", "console")
# What says, where it stands, that a block cannot run on any machine: in the page's first paragraph, in the heading
# above, in the paragraph before, in the block's own first comment, or in the comment behind a command.
MARK = re.compile(r"needs? (?:a |an |the |several )?(?:GPU|network|Qdrant|Docker|service)|24 GiB", re.IGNORECASE)
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^#{1,6} +(.+)$", re.MULTILINE)
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.DOTALL)


def pages() -> list[Path]:
    return sorted([*ROOT.glob("README*.md"), *ROOT.glob("docs/*.md")])


@dataclass(frozen=True)
class Command:
    """One command of a block: `variables` set before it, its words without comments and a last `&`."""

    page: str
    variables: tuple[tuple[str, str], ...]
    words: tuple[str, ...]
    marked: bool

    @property
    def text(self) -> str:
        return shlex.join(self.words)

    @property
    def script(self) -> str | None:
        """The Python script it starts, as scripts/eval/report.py."""
        if len(self.words) > 1 and Path(self.words[0]).name.startswith("python") and self.words[1].endswith(".py"):
            return self.words[1]
        return None

    @property
    def launcher(self) -> str | None:
        """The shell script it starts."""
        return self.words[1] if self.words[0] == "bash" and len(self.words) > 1 else None


@dataclass(frozen=True)
class Block:
    page: str
    language: str
    text: str
    marked: bool


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page in order."""
    text = page.read_text(encoding="utf-8")
    name = str(page.relative_to(ROOT))
    starts = [match.start() for match in _FENCE.finditer(text)]
    intro = text[: min([*starts, *(m.start() for m in re.finditer(r"^## ", text, re.MULTILINE)), len(text)])]
    found = []
    for match in _FENCE.finditer(text):
        before = text[: match.start()]
        headings = _HEADING.findall(_FENCE.sub("", before))
        around = [intro, *headings[-1:], *before.rstrip().rsplit("\n\n", 1)[-1:]]
        first = match.group(2).lstrip().split("\n", 1)[0]
        around += [first] if first.startswith("#") else []
        found.append(Block(name, match.group(1), match.group(2), any(MARK.search(part) for part in around)))
    return found


def commands(block: Block) -> Iterator[Command]:
    """The commands of a shell block; a line goes on after a backslash and inside quotes."""
    pending = ""
    for line in block.text.split("\n"):
        said = pending + line
        pending = _without_comment(said)
        marked = block.marked or bool(MARK.search(said[len(pending) :]))
        if pending.endswith("\\"):
            pending = pending[:-1] + " "
            continue
        try:
            lexer = shlex.shlex(pending, posix=True, punctuation_chars="&|;")
            lexer.whitespace_split, lexer.commenters = True, ""
            words = list(lexer)
        except ValueError:  # an open quote
            pending += "\n"
            continue
        pending = ""
        for part in _split(words):
            names = 0
            while names < len(part) and _ASSIGNMENT.fullmatch(part[names]):
                names += 1
            variables = tuple(tuple(word.split("=", 1)) for word in part[:names])
            if part[names:]:
                yield Command(block.page, variables, tuple(part[names:]), marked)  # type: ignore[arg-type]
    assert not pending.strip(), f"{block.page}: a command does not end: {pending!r}"


def _without_comment(text: str) -> str:
    """The text up to a # that begins a word outside quotes; inside a word (URL#MODEL) it is a letter like any other."""
    quote = ""
    for place, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter == "#" and (place == 0 or text[place - 1].isspace()):
            return text[:place]
    return text


def _split(words: list[str]) -> Iterator[list[str]]:
    """Words between `&&`, `||`, `;`, `|` and `&`."""
    part: list[str] = []
    for word in [*words, ";"]:
        if word and set(word) <= set("&|;"):
            if part:
                yield part
            part = []
        else:
            part.append(word)


def all_commands() -> list[Command]:
    return [one for page in pages() for block in blocks(page) if block.language in SHELLS for one in commands(block)]


def inline_code(page: Path) -> list[str]:
    """The code spans of a page outside its blocks."""
    return re.findall(r"`([^`\n]+)`", _FENCE.sub("", page.read_text(encoding="utf-8")))


@lru_cache
def options_of(script: str) -> frozenset[str]:
    """The options that a script, or a module beside it, declares."""
    files = [ROOT / script, *(ROOT / script).parent.glob("*.py")]
    return frozenset(
        option for file in files for option in re.findall(r"[\"'](--?[a-zA-Z][\w-]*)[\"']", file.read_text("utf-8"))
    )


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = _HEADING.findall(_FENCE.sub("", page.read_text(encoding="utf-8")))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
