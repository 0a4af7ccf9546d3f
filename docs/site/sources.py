"""A hook of mkdocs: what the site has beside docs/, and links that lead there.

Pages of other folders are on the site under `project/`, the reference under `reference/`. A link to a file that the
site does not have becomes the file's path: the repository's address is nowhere written.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path
from posixpath import dirname, join, normpath, relpath
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
ELSEWHERE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "CHANGELOG.md": "project/changelog.md",
    "android_demo/README.md": "project/android.md",
    "benchmarks/README.md": "project/benchmarks.md",
    "benchmarks/NOTES.md": "project/notes.md",
}
"""Pages of the repository, and where the site has them; the README's place is that of the site's own first page."""
_ORIGIN = {site: repository for repository, site in ELSEWHERE.items() if site.startswith("project/")}
_BOOST = {"troubleshooting.md": 4, "project/changelog.md": 0.3, "project/notes.md": 0.3}
"""What a search shows first: most often it is for a message."""
_BLOCK = re.compile(r"(^```.*?^```)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|#)([^)#\s]+)(#[^)\s]*)?\)")
_made: list[tempfile.TemporaryDirectory[str]] = []


def on_files(files: Files, config: Any) -> Files:
    for site, repository in _ORIGIN.items():
        files.append(File.generated(config, site, content=(ROOT / repository).read_text("utf-8")))
    icon = (ROOT / "server" / "dashboard" / "icon.svg").read_bytes()
    files.append(File.generated(config, "site/icon.svg", content=icon))
    folder = _reference()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        uri = f"reference/{path.relative_to(folder).as_posix()}"
        if path.parent == folder:  # with the site's own navigation and search
            files.append(File.generated(config, uri.replace(".html", ".md"), content=_as_markdown(path)))
        else:
            files.append(File.generated(config, uri, abs_src_path=str(path)))
    return files


def _as_markdown(page: Path) -> str:
    """The body of a page as HTML, which Markdown leaves as it is."""
    title, body = re.findall(r"<h1>(.*?)</h1>(.*)</main>", page.read_text("utf-8"), re.DOTALL)[0]
    return f"# {title}\n\n<div>\n{body.strip()}\n</div>\n"


def _reference() -> Path:
    """Written once: it is of the sources, not of the pages that `mkdocs serve` looks at."""
    if not _made:
        _made.append(tempfile.TemporaryDirectory())
        command = [sys.executable, str(ROOT / "docs" / "reference.py"), "--out", _made[0].name]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            raise PluginError(f"docs/reference.py: {done.stderr.strip() or done.stdout.strip()}")
    return Path(_made[0].name)


def on_page_markdown(markdown: str, page: Any, files: Files, **_: Any) -> str:
    page.meta.setdefault("search", {"boost": _BOOST.get(page.file.src_uri, 1)})
    parts = _BLOCK.split(markdown)  # the odd ones are code
    parts[::2] = [_LINK.sub(lambda found: _led(found, page.file.src_uri, files), part) for part in parts[::2]]
    return "".join(parts)


def _led(found: re.Match[str], here: str, files: Files) -> str:
    picture, text, target, anchor = found[1], found[2], found[3], found[4] or ""
    origin = _ORIGIN.get(here, f"docs/{here}")
    there = normpath(join(dirname(origin), target))
    site = ELSEWHERE.get(there, there.removeprefix("docs/") if there.startswith("docs/") else "")
    if site and files.get_file_from_path(site):
        return f"{picture}[{text}]({relpath(site, dirname(here) or '.')}{anchor})"
    if there.startswith("docs/") or not (ROOT / there).exists():
        return found[0]  # as it is, or dead, which mkdocs refuses
    return f"`{there}`" if there.endswith(text.strip("`")) else f"{text} (`{there}`)"
