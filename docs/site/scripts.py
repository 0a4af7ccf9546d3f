"""A hook of mkdocs: scripts within pages become files, so that a server can forbid all others."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from posixpath import relpath
from typing import Any

FOLDER = "assets/inline"
_SCRIPT = re.compile(r"<script((?:\s[^>]*)?)>(.*?)</script>", re.DOTALL)
_UNUSED = ("404.html", "sitemap.xml*", "assets/**/*.map", "assets/javascripts/lunr/**/*.js")
"""What would need the address at which the site is served, what is for the theme's makers, and other languages."""


def on_post_build(config: Any) -> None:
    site = Path(config["site_dir"])
    (site / FOLDER).mkdir(parents=True, exist_ok=True)
    for path in sorted(site.rglob("*.html")):
        page = path.relative_to(site).as_posix()
        text = path.read_text("utf-8")
        path.write_text(_SCRIPT.sub(lambda found, page=page: _outside(found, site, page), text), "utf-8")
    for path in [path for pattern in _UNUSED for path in site.glob(pattern)]:
        path.unlink()


def _outside(found: re.Match[str], site: Path, page: str) -> str:
    attributes, source = found[1], found[2]
    if "src=" in attributes or "json" in attributes or not source.strip():
        return found[0]
    name = f"{FOLDER}/{hashlib.sha256(source.encode()).hexdigest()[:16]}.js"
    (site / name).write_text(source, "utf-8")
    return f'<script{attributes} src="{relpath(name, page.rpartition("/")[0] or ".")}"></script>'
