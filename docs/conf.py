"""Sphinx settings of the documentation site (`make docs`). The build is offline: no page is fetched, none loads one."""

import re

import tensorveil

project = "tensorveil"
author = "The tensorveil maintainers"
copyright = author
version = release = tensorveil.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
]
templates_path = ["_templates"]
exclude_patterns = ["_build", "_templates"]
default_role = "code"  # `name` in docstrings
myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence", "deflist"]

autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints = "none"  # signatures stay short; the sections of parameters say what is expected
autosummary_generate = True
autosummary_ignore_module_all = False
napoleon_google_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False
copybutton_prompt_text = r">>> |\.\.\. "
copybutton_prompt_is_regexp = True


class GalleryOrder:
    """The way through the gallery; an example that is not named comes last."""

    names = ("ratings", "taxi", "parking", "health_counts", "choosing_epsilon", "fold_in", "local_collection")

    def __init__(self, folder):
        self.folder = folder

    def __call__(self, file):
        name = file.removesuffix(".py")
        return (self.names.index(name) if name in self.names else len(self.names), name)


sphinx_gallery_conf = {
    "within_subsection_order": GalleryOrder,
    "examples_dirs": "../examples",
    "gallery_dirs": "gallery",
    "filename_pattern": r"\.py$",
    "download_all_examples": False,
    "remove_config_comments": True,
    "show_memory": False,
    "min_reported_time": 1,
    "image_scrapers": ("matplotlib",),
    "abort_on_example_error": True,
    "backreferences_dir": None,
    "write_computation_times": False,  # that page would load scripts from elsewhere
    "show_signature": False,
}
suppress_warnings = ["config.cache"]  # the settings of the gallery hold a class

html_theme = "pydata_sphinx_theme"
html_title = "tensorveil"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
html_sidebars = {"index": []}
html_theme_options = {
    "navbar_align": "left",
    "show_prev_next": True,
    "show_toc_level": 2,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "back_to_top_button": True,
}

# Links of pages that are also read where the repository is hosted -> the page of this site that shows the same.
ELSEWHERE = {
    "](../experiments/README.md": "](experiments.md",
    "](../benchmarks/results/accuracy.md": "](measured_accuracy.md",
    "](proofs)": "](theorems.md)",
}


def _links_within_the_site(app, page, source):
    for link, here in ELSEWHERE.items():
        source[0] = source[0].replace(link, here)


def _descriptions_not_types(app, what, name, subject, options, lines):
    """Docstrings say "name : what it is". Napoleon would set that as a type: put it below the name instead."""
    section, result = False, []
    for place, line in enumerate(lines):
        following = lines[place + 1] if place + 1 < len(lines) else ""
        if line and following and set(following) == {"-"}:
            section = line in ("Parameters", "Attributes", "Raises")
        found = re.fullmatch(r"([\w*, ]+?) : (.+)", line) if section else None
        result += [found[1], f"    {found[2]}"] if found else [line]
    lines[:] = result


def _bars_are_bars(app, what, name, subject, options, lines):
    """In docstrings |k| is a length, not a substitution."""
    for place, line in enumerate(lines):
        if "|" in line and "`" not in line and not line.lstrip().startswith((">>>", "...")):
            lines[place] = line.replace("|", r"\|")


def setup(app):
    """Called by Sphinx."""
    app.connect("autodoc-process-docstring", _descriptions_not_types, priority=100)  # before Napoleon
    app.connect("autodoc-process-docstring", _bars_are_bars)
    app.connect("source-read", _links_within_the_site)
