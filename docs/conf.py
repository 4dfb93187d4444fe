"""The site: Sphinx reads Markdown (MyST), and `_ext/reference.py` writes the reference from the code first."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))

from pygments.lexers.data import JsonLexer  # noqa: E402 - the extension's folder comes first
from sphinx.highlighting import lexers  # noqa: E402

from ramify import __version__  # noqa: E402

lexers["jsonl"] = JsonLexer()

project = "ramify"
author = "The ramify developers"
copyright = author
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "reference", "llms"]
exclude_patterns = ["_build", "_ext", "plan.md"]

myst_enable_extensions = ["deflist", "fieldlist"]
myst_heading_anchors = 4
myst_links_external_new_tab = False

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True, "undoc-members": False, "show-inheritance": False}
default_role = "code"

html_theme = "furo"
html_title = "ramify"
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {"sidebar_hide_name": False, "navigation_with_keys": True}
pygments_style = "friendly"
