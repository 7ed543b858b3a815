#!/usr/bin/env python3
"""Sees that links lead somewhere, without a network: usage: ci/links.py BOOK SOURCE.md ...

BOOK is a directory of rendered pages: their links to each other, anchors included, and to files of this repository on the
web (as docs/book.toml names it) must be there. Relative links of the sources are files beside them, and anchors of pages.
Other sites are not asked. Exits with 1, and a line for each link that leads nowhere.
"""

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parent.parent
REPOSITORY = re.search(r'git-repository-url = "(.*)"', (ROOT / "docs/book.toml").read_text())[1]
# What the web shows of a repository: a file, a directory, the form in which a page is edited.
IN_REPOSITORY = re.compile(re.escape(REPOSITORY) + r"/(?:blob|tree|edit)/[^/]+/(.*)")


class Page(HTMLParser):
    """The links and anchors of a page."""

    def __init__(self, path: Path):
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text())

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.anchors.update(filter(None, [attributes.get("id"), attributes.get("name")]))
        self.links += filter(None, [attributes.get("href"), attributes.get("src")])


def problem(link: str, page: Path, pages: dict[Path, Page]) -> str | None:
    """What is wrong with a link of this page."""
    if match := IN_REPOSITORY.fullmatch(urlsplit(link)._replace(query="", fragment="").geturl()):
        return None if (ROOT / unquote(match[1])).exists() else "is not in this repository"
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return None
    target = (page.parent / unquote(parts.path)).resolve() if parts.path else page.resolve()
    if target.is_dir() and target / "index.html" in pages:
        target /= "index.html"
    if not target.exists():
        return "is not there"
    # "#/" and the like are for scripts.
    if target in pages and parts.fragment and unquote(parts.fragment) not in pages[target].anchors:
        return "has no such anchor"
    return None


def main(book: Path, sources: list[Path]) -> int:
    pages = {path.resolve(): Page(path) for path in book.rglob("*.html")}
    assert pages, f"{book}: no pages"
    # 404.html is shown at any address: its links are from the site's root.
    found = [(path, link) for path, page in pages.items() if path.name != "404.html" for link in page.links]
    for source in sources:
        text = re.sub(r"^(```.*?^```|(?: {4}|\t).*?)$", "", source.read_text(), flags=re.M | re.S)
        links = re.findall(r"\]\(([^)\s]+)\)|\bsrc=\"([^\"]+)\"", re.sub(r"`[^`\n]*`", "", text))
        # Anchors of sources are those of rendered pages, which are looked at above.
        found += [(source, (one or other).partition("#")[0]) for one, other in links if (one or other)[0] != "#"]
    wrong = [f"{path}: {link} {why}" for path, link in found if (why := problem(link, path, pages))]
    print("\n".join([*sorted(set(wrong)), f"{len(found)} links, {len(wrong)} of them lead nowhere"]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), [Path(name) for name in sys.argv[2:]]))
