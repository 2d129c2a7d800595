"""The site of the documentation: `python -m sphinx -W -b html docs build/site`.

Pages are Markdown (MyST). The reference is written anew before each build, by `reference_pages.py`.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS))

import reference_pages  # noqa: E402  # beside this file

import tilewright  # noqa: E402

project = "Tilewright"
author = "The Tilewright authors"
copyright = "The Tilewright authors"
release = version = tilewright.__version__

extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["**/README.md"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
python_use_unqualified_type_names = True
add_module_names = False
smartquotes = False  # quotes in text are those of Python
highlight_language = "none"  # a block without a language is output or a listing

html_theme = "pydata_sphinx_theme"
html_title = "Tilewright"
html_theme_options: dict[str, Any] = {
    "navigation_with_keys": False,
    "show_nav_level": 1,
    "navbar_end": ["theme-switcher"],
    "footer_start": ["copyright"],
    "footer_end": [],
    # The comparison's table has a column for each library, and takes the place of the page's contents; names are wider
    # than that place.
    "secondary_sidebar_items": {"**": ["page-toc"], "comparison": [], "names_by_example": []},
    "header_links_before_dropdown": 7,
    "navbar_persistent": ["search-button"],  # a sign, not a field: the links take its place
}
html_context = {"default_mode": "auto"}  # light or dark, as the reader's system is
html_show_sourcelink = False
html_static_path = ["site"]
html_css_files = ["site.css"]

# Links of pages to files of the repository: what is not a page of the site is shown as a name.
# Code is left as it is, in a line, in a fence of any width, and at a prompt: `kernel[grid, block](x)` is not a link.
_FENCES = re.compile(r"^(?P<fence>`{3,}|~{3,})[^\n]*\n.*?^(?P=fence)[ \t]*$", re.S | re.M)
_OUTSIDE = re.compile(
    r"(?m:^ *(?:>>>|\.\.\.) .*$|^ {4,}.*$)|`(?:[^`\n]|\n(?!\n))+`"
    r"|(?<!!)\[(?P<text>[^\]\n]*(?:\n[^\]\n]*)?)\]\((?P<path>(?!https?:|#)[^)#\s]+)(?P<anchor>#[^)\s]*)?\)"
)


def _without_files(app: Any, docname: str, source: list[str]) -> None:  # Any: Sphinx's application
    folder = (DOCS / docname).parent

    def replaced(match: re.Match[str]) -> str:
        if match["path"] is None:
            return match[0]
        target = (folder / match["path"]).resolve()
        is_page = target.suffix == ".md" and target.is_relative_to(DOCS) and target.name != "README.md"
        return match[0] if is_page or target.suffix in (".svg", ".ipynb") else match["text"]

    text, parts, end = source[0], [], 0
    for fence in _FENCES.finditer(text):
        parts += [_OUTSIDE.sub(replaced, text[end : fence.start()]), fence[0]]
        end = fence.end()
    source[0] = "".join([*parts, _OUTSIDE.sub(replaced, text[end:])])


def setup(app: Any) -> None:  # Any: Sphinx's application
    """Write the reference, and let links to files outside of the site be names."""
    reference_pages.write(DOCS / "reference")
    app.connect("source-read", _without_files)
