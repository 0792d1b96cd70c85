"""What is public: one list in `resnotes`, one page in the book, links to that page."""

import ast
import importlib
import inspect
import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from docutils import nodes
from docutils.frontend import get_default_settings
from docutils.utils import new_document

import resnotes
from resnotes.book import LinkToApi

ROOT = Path(__file__).parent.parent
NUMERICS = """gradients blocks jacobians paths lesions training recipes transformers"""


def public(module):
    """Return the names of a module's own functions and classes."""
    return {
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (inspect.isfunction(value) or inspect.isclass(value))
        and value.__module__ == module.__name__
    }


@pytest.mark.parametrize("name", NUMERICS.split())
def test_every_public_name_is_exported(name):
    module = importlib.import_module(f"resnotes.{name}")
    assert public(module) - {*resnotes.__all__} == set()
    for each in public(module):
        assert getattr(resnotes, each) is getattr(module, each)


def test_the_list_is_what_can_be_imported():
    assert len(resnotes.__all__) == len({*resnotes.__all__})
    assert all(hasattr(resnotes, name) for name in resnotes.__all__)


def test_the_page_has_every_exported_name():
    page = (ROOT / "chapters" / "api.md").read_text(encoding="utf-8")
    whole_modules = set(re.findall(r"automodule:: (\S+)\n +:members:\n", page))
    chosen = set(re.findall(r"autofunction:: \S+\.(\w+)", page))
    for names in re.findall(r":members: (.+)", page):
        chosen |= set(names.split(", "))
    for name in resnotes.__all__:
        value = getattr(resnotes, name)
        assert value.__module__ in whole_modules or name in chosen, name
        assert ">>>" in inspect.getdoc(value), f"{name} has no example"


def test_the_page_says_what_is_not_imported_from_the_package():
    page = (ROOT / "chapters" / "api.md").read_text(encoding="utf-8")
    sentence = next(line for line in page.splitlines() if line.startswith("Every f"))
    elsewhere = {*re.findall(r"`(\w+\.\w+)`", sentence)}
    documented = re.findall(r"autofunction:: resnotes\.(\w+\.\w+)", page)
    for module, names in re.findall(
        r"automodule:: resnotes\.(\w+)\n +:members: (.+)", page
    ):
        documented += [f"{module}.{name}" for name in names.split(", ")]
    for name in documented:
        assert (name.split(".")[1] in resnotes.__all__) == (name not in elsewhere), name
    assert elsewhere <= {*documented}


def test_what_the_chapters_use_is_on_the_page():
    page = (ROOT / "chapters" / "api.md").read_text(encoding="utf-8")
    used = set()
    for path in (ROOT / "chapters").glob("*.ipynb"):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        for cell in cells:
            if cell["cell_type"] == "code":
                used |= {*re.findall(r"\bstyle\.(\w+)", "".join(cell["source"]))}
                for node in ast.walk(ast.parse("".join(cell["source"]))):
                    module = getattr(node, "module", None) or ""
                    if isinstance(node, ast.ImportFrom) and "resnotes" in module:
                        used |= {alias.name for alias in node.names}
    used -= {*resnotes.__all__, "style"}  # the test above has those
    assert used >= {"COLORS", "load", "record"}
    assert [name for name in sorted(used) if not re.search(rf"\b{name}\b", page)] == []


def test_every_module_is_named_in_the_package():
    modules = {path.stem for path in Path(resnotes.__file__).parent.glob("*.py")}
    assert {*re.findall(r"`(\w+)`", resnotes.__doc__)} == modules - {"__init__"}


def linked(*paragraphs, title="A title", page="chapters/a"):
    """Run the transform on a page; return its links as (text, address)."""
    document = new_document("page", get_default_settings())
    section = nodes.section("", nodes.title("", "", nodes.literal("", title)))
    for text in paragraphs:
        section += nodes.paragraph("", "", nodes.literal("", text))
    document += section
    objects = [
        (f"resnotes.{name}", name, "function", "chapters/api", f"resnotes.{name}", 1)
        for name in ("paths.path_gradients", "training.seed", "training.train")
    ]
    transform = LinkToApi(document)
    transform.document = document
    document.settings.env = SimpleNamespace(
        docname=page, domains={"py": SimpleNamespace(get_objects=lambda: objects)}
    )
    builder = SimpleNamespace(get_relative_uri=lambda here, there: "api.html")
    document.settings.env.app = SimpleNamespace(builder=builder)
    transform.run()
    return [(n.astext(), n["refuri"]) for n in document.findall(nodes.reference)]


def test_the_first_mention_on_a_page_is_a_link():
    assert linked("path_gradients", "path_gradients(branches, x, g)") == [
        ("path_gradients", "api.html#resnotes.paths.path_gradients")
    ]
    assert [text for text, _ in linked("resnotes.seed", "train(m, d)", "seed(0)")] == [
        "resnotes.seed",
        "train(m, d)",
    ]


@pytest.mark.parametrize("text", ["seed", "train", "torch.seed(1)", "x", "unknown()"])
def test_what_is_no_mention_is_no_link(text):
    assert linked(text) == []


def test_headings_and_the_api_itself_have_no_links():
    assert linked(title="path_gradients") == []
    assert linked("path_gradients", page="chapters/api") == []


@pytest.mark.browser  # these need the built book
def test_the_built_chapters_link_to_the_api():
    built = ROOT / "_build" / "html" / "chapters"
    api = (built / "api.html").read_text(encoding="utf-8")
    assert "PosixPath" not in api  # a default that only the building machine has
    links = 0
    for page in sorted(built.glob("*.html")):
        text = page.read_text(encoding="utf-8")
        targets = re.findall(r'href="api\.html#([\w.]+)"', text)
        assert len(targets) == len({*targets}), f"{page.name} links a name twice"
        for target in targets:
            assert f'id="{target}"' in api
        links += len(targets)
    assert links >= 10
