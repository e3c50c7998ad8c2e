"""Prepare pages for the site: a hook of mkdocs.yml.

In a checkout, pages link to tests, sources and schemas next to `docs`. The site has only `docs`. So
a link to any other file becomes plain text, or a link below `repo_url` if mkdocs.yml sets one. In
the code of a table, GitHub needs `|` escaped, but the site would show the backslash. Invariant: a
link to a missing file stays as it is, so that the strict build reports it."""

import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
ROW = re.compile(r"^\|.*$", re.MULTILINE)
CODE = re.compile(r"`[^`\n]+`")
LINK = re.compile(
    r"\[(?P<text>[^\[\]]*)\]\((?P<to>[^()\s#]+)(?P<anchor>#[^()\s]*)?(?: \"[^\"]*\")?\)"
)


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: object) -> str:
    """Return the page as the site needs it. mkdocs calls this hook for every page."""
    return for_site(markdown, page.file.src_uri, config.repo_url or "")


def for_site(markdown: str, page: str, repository: str = "") -> str:
    """Return the Markdown of `page`, a path below `docs`, with links and code as the site needs
    them."""

    def replaced(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), link["to"]))
        if "://" in link["to"] or path.startswith("docs/") or not (ROOT / path).exists():
            return link[0]
        if not repository:
            return link["text"]
        return f"[{link['text']}]({repository.rstrip('/')}/blob/main/{path}{link['anchor'] or ''})"

    rows = ROW.sub(lambda row: CODE.sub(lambda each: each[0].replace(r"\|", "|"), row[0]), markdown)
    return LINK.sub(replaced, rows)
