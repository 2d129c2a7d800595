"""Write the pages of the reference: every public name with its signature and its docstring, as Markdown for Sphinx.

`docs/conf.py` calls `write` before a build. The docstrings are Markdown already, but for their examples and listings,
which are indented; here they get fences.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from reference_rules import rule

import tilewright


@dataclass(frozen=True)
class Page:
    """A page of the reference: a title, what it holds in a sentence, and the names, each with what is imported."""

    file: str
    title: str
    text: str
    module: str
    names: tuple[str, ...]


# Groups of the names of `tilewright`, by the module each comes from; in this order, and in theirs.
_GROUPS = {
    "kernels": (
        "Kernels and launches",
        ("launch", "ahead", "runtime.specs", "runtime.pointers", "profile", "analysis"),
    ),
    "language": ("Inside a kernel", ("language",)),
    "tensors": ("Tensors, tiled copies and products", ("tensors", "tiled")),
    "layouts": ("Layouts", ("layout",)),
    "matmul": ("Matrix products", ("products", "kernels.quantized", "kernels.grouped")),
    "operators": (
        "Operators",
        (
            "kernels.rows",
            "kernels.permute",
            "kernels.row_gradients",
            "kernels.losses",
            "kernels.rotary",
            "kernels.attention",
        ),
    ),
    "tuning": ("Tuning", ("tune",)),
    "types": ("Element types", ("dtypes",)),
    "errors": ("Errors", ("errors",)),
}
_SUBMODULES = ("schedule", "schedulers", "layout", "draw", "bench", "atoms", "profile", "distributed")

# Programs for names whose docstrings have none: what a kernel calls is shown in a kernel.
_EXAMPLES = Path(__file__).parent / "names_by_example.md"

# Modules that need a library which may be missing here: what they hold is read from their source.
READ_FROM_SOURCE = ("tilewright.torch", "tilewright.torch.nn", "tilewright.jax")

# What a docstring says where it names what a function raises.
_NAMES_ERRORS = re.compile(r"\b(?:Raises?|raises?|[Rr]efused?|[Ee]rrors as)\b")


def pages() -> Iterator[Page]:
    """Yield the pages; each public name of `tilewright` and of its public modules is on one of them."""
    rest = dict(tilewright._EXPORTS)
    for file, (title, modules) in _GROUPS.items():
        names = tuple(dict.fromkeys(name for module in modules for name in rest.pop(module)))
        yield Page(file, title, "Names of `tilewright`, imported as `tw`.", "tilewright", names)
    others = {name for names in rest.values() for name in names}
    for name in _SUBMODULES:
        module = importlib.import_module(f"tilewright.{name}")
        listed = getattr(module, "__all__", [n for n in vars(module) if not n.startswith("_")])
        # Names that are on a page above are not repeated.
        names = tuple(n for n in listed if n in others or getattr(tilewright, n, None) is not getattr(module, n))
        others -= {*names}
        told = (inspect.getdoc(module) or "").partition("\n\n")[0].replace("\n", " ")
        yield Page(f"module_{name}", f"tilewright.{name}", told, f"tilewright.{name}", names)
    if others:
        yield Page("others", "Others", "Names of `tilewright`, imported as `tw`.", "tilewright", tuple(sorted(others)))


def write(folder: Path) -> list[Path]:
    """Write the pages and their index to a folder; files that already say the same stay untouched."""
    folder.mkdir(parents=True, exist_ok=True)
    made = [*pages()]
    texts = {f"{page.file}.md": _page(page) for page in made}
    for module in READ_FROM_SOURCE:
        texts[f"module_{module.partition('.')[2].replace('.', '_')}.md"] = _page_of_source(module)
    listed = "\n".join(name.removesuffix(".md") for name in texts)
    texts["index.md"] = (
        "# Reference\n\nEvery public name, with its signature and what it does. `import tilewright as tw` gives the\n"
        "first pages; the modules below them are reached as `tw.schedule` and so on.\n\n"
        f"```{{toctree}}\n{listed}\n```\n"
    )
    for name, text in texts.items():
        path = folder / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
    for path in set(folder.glob("*.md")) - {folder / name for name in texts}:
        path.unlink()
    return [folder / name for name in texts]


def _page(page: Page) -> str:
    module = importlib.import_module(page.module)
    entries = [_entry(page, name, getattr(module, name)) for name in page.names]
    return "\n".join([f"# {page.title}\n", f"{_fenced(page.text)}\n", *(entry for entry in entries if entry)])


def _entry(page: Page, name: str, value: Any) -> str:  # Any: what the package exports
    if inspect.ismodule(value):
        return ""
    short = "tw" if page.module == "tilewright" else page.module.replace("tilewright", "tw")
    lines = [f"## {name}\n"]
    signature = _signature(value)
    kind = "class" if inspect.isclass(value) else "function" if callable(value) and signature else "data"
    lines.append(f"````{{py:{kind}}} {short}.{name}{signature if kind != 'data' else ''}\n")
    doc = inspect.getdoc(value) if callable(value) or type(value).__module__.startswith("tilewright") else ""
    example = "" if ">>>" in (doc or "") else examples().get(f"{short}.{name}", "")
    told = "" if inspect.isclass(value) or not callable(value) or names_errors(doc) else _rule_of(value, name)
    lines += [_fenced(doc or ""), *([f"\n{told}"] if told else []), *([f"\n{example}"] if example else []), "````\n"]
    if inspect.isclass(value):
        lines += [_member(f"{short}.{name}", member, found) for member, found in _members(value)]
    return "\n".join(lines)


def names_errors(doc: str | None) -> bool:
    """Say whether a docstring says what is refused."""
    return _NAMES_ERRORS.search(doc or "") is not None


def _rule_of(value: Any, name: str) -> str:
    """Return what is accepted and raised by all functions that are defined where this one is."""
    return rule(getattr(value, "__module__", None) or type(value).__module__, name)


@cache
def examples() -> dict[str, str]:
    """Return the program of each name that `names_by_example.md` has one for, with what it prints, as Markdown."""
    found: dict[str, str] = {}
    for part in re.split(r"^## ", _EXAMPLES.read_text(encoding="utf-8"), flags=re.M)[1:]:
        heading, _, program = part.partition("\n")
        found |= {name: program.strip("\n") for name in re.findall(r"`([\w.]+)`", heading)}
    return found


def _members(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield the public methods and properties that a class defines and describes."""
    for name, found in vars(kind).items():
        target = found.fget if isinstance(found, property) else getattr(found, "__func__", found)
        if not name.startswith("_") and inspect.isfunction(target) and target.__doc__:
            yield name, found


def _member(owner: str, name: str, found: Any) -> str:
    target = found.fget if isinstance(found, property) else getattr(found, "__func__", found)
    signature = "" if isinstance(found, property) else _signature(target)
    told = _fenced(inspect.getdoc(target) or "")
    kind = "attribute" if isinstance(found, property) else "method"
    return f"````{{py:{kind}}} {owner}.{name}{signature}\n\n{told}\n````\n"


def names_in_source(module: str) -> list[str]:
    """Return the public names of a module that is not imported."""
    for node in _tree(module).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return [*ast.literal_eval(node.value)]
    raise AssertionError(f"{module} has no __all__")


def _page_of_source(module: str) -> str:
    tree, short = _tree(module), module.replace("tilewright", "tw")
    told = (ast.get_docstring(tree) or "").partition("\n\n")[0].replace("\n", " ")
    entries = []
    for name in names_in_source(module):
        node = _definition(module, name)
        if node is not None:
            entries.append(_entry_of_source(short, node))
            if isinstance(node, ast.ClassDef):
                entries += [_entry_of_source(f"{short}.{name}", inner) for inner in node.body if _is_public(inner)]
    return "\n".join([f"# {module}\n", f"{_fenced(told)}\n", *entries])


def _tree(module: str) -> ast.Module:
    path = Path(tilewright.__file__).parents[1].joinpath(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(file.read_text(encoding="utf-8"))


_Definition = ast.FunctionDef | ast.ClassDef


def _definition(module: str, name: str) -> _Definition | None:
    """Return where a name is defined, here or in the module that it is imported from; None for a module."""
    for node in _tree(module).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
            return node
        if isinstance(node, ast.ImportFrom) and any(alias.name == name for alias in node.names):
            return None if f"{node.module}.{name}" in READ_FROM_SOURCE else _definition(str(node.module), name)
    raise AssertionError(f"{module} does not define {name}")


def _is_public(node: ast.stmt) -> bool:
    return isinstance(node, ast.FunctionDef) and not node.name.startswith("_") and bool(ast.get_docstring(node))


def _entry_of_source(owner: str, node: Any) -> str:  # Any: a definition
    decorators = [ast.unparse(x) for x in node.decorator_list]
    is_inside = f"tilewright{owner.removeprefix('tw')}" not in READ_FROM_SOURCE
    kind = "class" if isinstance(node, ast.ClassDef) else "method" if is_inside else "function"
    signature = ""
    if "property" in decorators:
        kind = "attribute"
    elif isinstance(node, ast.FunctionDef):
        arguments = re.sub(r"^(self|cls)(, |$)", "", ast.unparse(node.args))
        signature = f"({arguments})" + (f" -> {ast.unparse(node.returns)}" if node.returns else "")
        if "tilewright" + owner.removeprefix("tw") in READ_FROM_SOURCE:
            # Two modules may have a class of one name; Sphinx shows the last part of it.
            signature = re.sub(r"(?<![\w.])Operator\b", f"{owner}.Operator", signature)
    title = "" if is_inside else f"## {node.name}\n\n"
    told = _fenced(ast.get_docstring(node) or "")
    return f"{title}````{{py:{kind}}} {owner}.{node.name}{signature}\n\n{told}\n````\n"


def _signature(value: Any) -> str:
    try:
        found = inspect.signature(value)
    except (TypeError, ValueError):
        return ""
    parameters = [p for n, p in enumerate(found.parameters.values()) if not (n == 0 and p.name in ("self", "cls"))]
    text = str(found.replace(parameters=parameters))
    # Annotations name the modules in which types live; users know them by their own names.
    return re.sub(r"\b(?:tilewright|collections|typing|numpy|types)(?:\.\w+)*\.(\w+)", r"\1", text).replace("'", "")


def _fenced(text: str) -> str:
    """Return a docstring as Markdown: indented listings and examples at a prompt in fences."""
    lines, made, block = text.splitlines(), [], []  # type: ignore[var-annotated]  # lists of lines

    def close() -> None:
        if block:
            body = textwrap.dedent("\n".join(block)).strip("\n")
            made.extend([f"```{'pycon' if '>>>' in body else 'text'}", body, "```"])
            block.clear()

    for line in lines:
        is_prompt = line.startswith(">>>")
        in_example = bool(block) and block[0].lstrip().startswith(">>>") and line.strip() != ""
        is_listing = line.startswith("    ") and (not made or made[-1].strip() == "" or bool(block))
        if is_prompt or in_example or is_listing:
            if is_prompt and block and not block[0].lstrip().startswith(">>>"):
                close()
            block.append(line)
        elif block and line.strip() == "":
            block.append(line)
            if block[0].lstrip().startswith(">>>"):
                close()
        else:
            close()
            made.append(re.sub(r"::$", ":", line))
            if line.endswith("::"):
                made.append("")
    close()
    return "\n".join(made)
