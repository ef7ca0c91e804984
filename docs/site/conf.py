"""`make site`: the pages of docs/, and the public names from their docstrings, as a site with search (Sphinx)."""

project = "gqallreduce"
author = "the authors of gqallreduce"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
include_patterns = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs/*.md", "docs/site/*.rst"]
root_doc = "docs/site/index"
myst_heading_anchors = 4  # as the pages' own links name them
default_role = "code"  # `name` in a docstring
autodoc_member_order = "bysource"
autodoc_typehints = "none"
toc_object_entries_show_parents = "hide"
suppress_warnings = ["myst.header"]  # a page may begin at any level of heading

html_theme = "furo"
html_title = "gqallreduce"
html_extra_path = ["extra"]
html_show_sourcelink = False


def as_rest(app, what, name, obj, options, lines):
    """Docstrings are written to be read as they are; what reStructuredText wants besides: an indented block after an
    empty line is code, a text that follows an indented one begins after an empty line, and a star is a star.
    """
    found, before, code = [], "", False
    for line in lines:
        depth = len(line) - len(line.lstrip())
        if line and not before and depth and not code:
            found += ["::", ""]
            code = True
        elif line and depth == 0:
            code = False
            if before.startswith(" "):
                found.append("")
        found.append(line if code else line.replace("*", "\\*"))
        before = line
    lines[:] = found


def setup(app):
    app.connect("autodoc-process-docstring", as_rest)
