"""How Sphinx builds the documentation: ``make docs``."""

from gpuspawner import __version__

project = "gpuspawner"
author = "gpuspawner contributors"
version = release = __version__
language = "en"

extensions = ["myst_parser"]
myst_heading_anchors = 3
root_doc = "index"
exclude_patterns = ["_build"]

html_theme = "alabaster"
html_theme_options = {"description": "Shared GPU notebooks for JupyterHub"}
html_show_sourcelink = False
