"""How Sphinx makes the site; ``docs/site/make.py`` calls it."""

from __future__ import annotations

import zklock

project = "zklock"
author = "the authors of zklock"
release = version = zklock.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "api"]

root_doc = "index"
myst_enable_extensions = ["deflist"]
myst_heading_anchors = 4

autodoc_default_options = {"inherited-members": True, "undoc-members": True}
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
add_module_names = False
maximum_signature_line_length = 88
python_use_unqualified_type_names = True

html_theme = "furo"
html_title = "zklock"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_show_copyright = False
html_show_sphinx = False
html_copy_source = False
