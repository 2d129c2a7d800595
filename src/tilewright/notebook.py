"""What notebooks show of an object: HTML with its own style, without scripts and without anything from a network.

An object's `_repr_html_` puts tables, facts and listings into a `box`. Text and background are the notebook's own, so
that it reads on light and on dark pages; only the accents have two colours, which follow what JupyterLab, VS Code,
Colab and Sphinx say of their theme, and else the system. Wide tables and listings scroll in their own frame. All
functions escape the text that they are given.

Rules for tables name two classes, because JupyterLab's own name two and would win over one: they align all cells right
and shade every second row.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any  # Any: objects of modules above this one, whose attributes the parts below read

_DARK = "--hot: #ff7b72; --good: #56d364; --soft: #a3adb8; --line: #3d444d; --fill: rgba(140, 150, 165, .16);"
_LIGHT = "--hot: #c1121f; --good: #1a7f37; --soft: #59636e; --line: #d1d9e0; --fill: rgba(120, 130, 145, .12);"
_IN_DARK = ("body[data-jp-theme-light=false]", "body.vscode-dark", "html[theme=dark]", "html[data-theme=dark]")
_IN_LIGHT = ("body[data-jp-theme-light=true]", "body.vscode-light", "html[data-theme=light]")

STYLE = f"""
.tilewright {{ {_LIGHT} font: 13px/1.5 system-ui, sans-serif; max-width: 100%; margin: 4px 0; }}
@media (prefers-color-scheme: dark) {{ .tilewright {{ {_DARK} }} }}
{", ".join(f"{place} .tilewright" for place in _IN_LIGHT)} {{ {_LIGHT} }}
{", ".join(f"{place} .tilewright" for place in _IN_DARK)} {{ {_DARK} }}
.tilewright .title {{ font-weight: 600; font-size: 14px; overflow-wrap: anywhere; }}
.tilewright .note {{ color: var(--soft); overflow-wrap: anywhere; }}
.tilewright .scroll {{ overflow-x: auto; border: 1px solid var(--line); border-radius: 6px; margin: 6px 0; }}
.tilewright .scroll table {{ border-collapse: collapse; width: auto; margin: 0;
  font: 12px/1.45 ui-monospace, monospace; }}
.tilewright .scroll tbody tr, .tilewright .scroll thead tr {{ background: none; border: 0; color: inherit; }}
.tilewright .scroll th {{ border: 0; color: var(--soft); font-weight: 600; text-align: right; padding: 4px 8px;
  white-space: nowrap; }}
.tilewright .scroll td {{ border: 0; color: inherit; text-align: right; padding: 1px 8px; white-space: pre;
  font-variant-numeric: tabular-nums; line-height: inherit; vertical-align: top; }}
.tilewright .scroll .left.left {{ text-align: left; }}
.tilewright .scroll td.hot {{ color: var(--hot); font-weight: 600; }}
.tilewright .scroll td.good {{ color: var(--good); font-weight: 600; }}
.tilewright .scroll td.soft {{ color: var(--soft); }}
.tilewright .scroll tr.strong td {{ border-top: 1px solid var(--line); font-weight: 600; }}
.tilewright .scroll tr.chosen td {{ background: var(--fill); font-weight: 600; }}
.tilewright dl {{ display: grid; grid-template-columns: max-content 1fr; gap: 2px 14px; margin: 6px 0; }}
.tilewright dt {{ color: var(--soft); font-weight: 400; }} .tilewright dd {{ margin: 0; overflow-wrap: anywhere; }}
.tilewright .scroll pre {{ margin: 0; padding: 6px 10px; font: 12px/1.45 ui-monospace, monospace; white-space: pre;
  background: none; color: inherit; overflow: visible; }}
.tilewright .help {{ white-space: pre-wrap; overflow-wrap: anywhere; margin: 2px 0 6px; }}
.tilewright details {{ margin: 4px 0; }} .tilewright summary {{ cursor: pointer; overflow-wrap: anywhere; }}
@media (max-width: 600px) {{ .tilewright .scroll .wide {{ display: none; }}
  .tilewright .scroll td.left:not(:first-child) {{ white-space: pre-wrap; overflow-wrap: anywhere; }}
  .tilewright .scroll th, .tilewright .scroll td {{ padding-left: 5px; padding-right: 5px; }}
  .tilewright dl {{ grid-template-columns: 1fr; gap: 0; }} .tilewright dd {{ margin-bottom: 4px; }} }}
"""


@dataclass(frozen=True)
class Column:
    """A column of a table: its title, whether it is text, and whether narrow screens leave it out."""

    title: str
    is_text: bool = False
    is_wide: bool = False

    @property
    def kinds(self) -> list[str]:
        """The classes of all its cells."""
        return ["left"] * self.is_text + ["wide"] * self.is_wide


@dataclass(frozen=True)
class Cell:
    """A cell of a table; `kind` is "hot" for what costs, "good" for what is well, "soft" for what matters less."""

    text: str
    kind: str = ""


@dataclass(frozen=True)
class Row:
    """A row of a table; `kind` is "strong" for sums, "chosen" for the one of several that was taken."""

    cells: Sequence[Cell | str]
    kind: str = ""


def box(title: str, *parts: str, note: str = "") -> str:
    """Return what a notebook shows: a title, a note under it, and parts that the other functions made."""
    below = f'<div class="note">{escape(note)}</div>' if note else ""
    head = heading(title) if title else ""
    return f'<div class="tilewright"><style>{STYLE}</style>{head}{below}{"".join(parts)}</div>'


def heading(text: str) -> str:
    """Return a line in bold."""
    return f'<div class="title">{escape(text)}</div>'


def paragraph(text: str) -> str:
    """Return text of less weight."""
    return f'<div class="note">{escape(text)}</div>'


def table(columns: Sequence[Column], rows: Iterable[Row]) -> str:
    """Return a table in a frame that scrolls."""
    head = "".join(f"<th{_class(column.kinds)}>{escape(column.title)}</th>" for column in columns)
    body = "".join(f"<tr{_class([row.kind])}>{_cells(columns, row)}</tr>" for row in rows)
    return framed(f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>")


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    """Return labels with what they stand for."""
    return "<dl>{}</dl>".format("".join(f"<dt>{escape(a)}</dt><dd>{escape(b)}</dd>" for a, b in pairs))


def listing(text: str) -> str:
    """Return text as it is, lines and blanks, in a frame that scrolls."""
    return framed(f"<pre>{escape(text)}</pre>")


def details(summary: str, *parts: str, is_open: bool = False) -> str:
    """Return parts that are folded under a line."""
    opened = " open" if is_open else ""
    return f"<details{opened}><summary>{escape(summary)}</summary>{''.join(parts)}</details>"


class MessageShown:
    """Something with a `message` of several lines, which lists of it show as it is. It is a part of its class."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        this: Any = self
        return box("", message(this.message))

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:  # Any: IPython's printer
        this: Any = self
        for number, line in enumerate(this.message.splitlines()):
            if number:
                printer.break_()
            printer.text(line)

    def __str__(self) -> str:
        this: Any = self
        return str(this.message)


class KernelShown:
    """A kernel, which shows its signature and its source. It is a part of `tilewright.launch.Kernel`."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        this: Any = self
        note = f"launched as {this.__name__}[grid, block]{_signature(this)}"
        return box(f"kernel {_call(this)}", *_source(this), note=note)


class LauncherShown:
    """A kernel with a grid and a block, which shows these. It is a part of `tilewright.launch.Launcher`."""

    __slots__ = ()

    def __repr__(self) -> str:
        this: Any = self
        return f"<kernel {_called(this)}>"

    def _repr_html_(self) -> str:
        this: Any = self
        return box(
            f"kernel {_call(this.kernel)}",
            facts([("grid", _extent(this.grid)), ("block", _extent(this.block))]),
            *_source(this.kernel),
            details("what it can be asked", facts((f".{name}(...)", what) for name, what in _USES.items())),
            note=f"launched as {_called(this)}{_signature(this.kernel)}",
        )


_USES = {
    "source": "the CUDA C++ for these arguments; .ptx and .sass go on from there",
    "resources": "registers, spills and shared memory, as the compiler reports them",
    "analyze": "run it on the simulator, and say what each line costs",
    "prepare": "a launch with these arguments packed, to be repeated",
    "export": "files that launch the kernel from C, Python and PyTorch, without this library",
}


def _called(launcher: Any) -> str:
    return f"{launcher.kernel.__name__}[{_extent(launcher.grid)}, {_extent(launcher.block)}]"


def _call(kernel: Any) -> str:
    return f"{kernel.__name__}{_signature(kernel)}"


def _signature(kernel: Any) -> str:
    """Return the names of the parameters, as in a call."""
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    parameters = list(kernel.__signature__.parameters.values())[kernel.bound :]
    return f"({', '.join(stars.get(p.kind, '') + p.name for p in parameters)})"


def _extent(value: Any) -> str:
    """Return a grid or block as it was written; a function of the arguments by its name."""
    return f"{getattr(value, '__name__', 'a function')}(...)" if callable(value) else str(value)


def _source(kernel: Any) -> list[str]:
    """Return the part with a kernel's source; none where it cannot be read."""
    try:
        text = inspect.cleandoc("\n" + inspect.getsource(kernel.__wrapped__))
    except (OSError, TypeError):
        return []
    return [details("source", listing(text), is_open=True)]


def message(text: str, *, is_open: bool = True) -> str:
    """Return a message of the library: its first line, and the others folded under it, the help in lines that fold."""
    first, _, below = text.partition("\n")
    if not below:
        return heading(first)
    shown, _, advice = ("\n" + inspect.cleandoc("\n" + below)).partition("\nhelp: ")
    parts = [listing(shown[1:])] if shown else []
    return details(first, *parts, f'<div class="help">help: {escape(advice)}</div>' if advice else "", is_open=is_open)


def _cells(columns: Sequence[Column], row: Row) -> str:
    cells = [Cell(cell) if isinstance(cell, str) else cell for cell in row.cells]
    return "".join(
        f"<td{_class([*column.kinds, cell.kind])}>{escape(cell.text)}</td>"
        for column, cell in zip(columns, cells, strict=True)
    )


def _class(kinds: Iterable[str]) -> str:
    found = " ".join(kind for kind in kinds if kind)
    return f' class="{found}"' if found else ""


def framed(picture: str) -> str:
    """Return a picture in a frame that scrolls, by keys too."""
    return f'<div class="scroll" tabindex="0">{picture}</div>'
