"""`tw.torch.patch`: a model whose modules do their work by kernels, and a report of which do."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from io import StringIO
from typing import Any  # Any: plain data, and classes of modules

import torch
from rich.console import Console
from rich.table import Table

from tilewright import notebook
from tilewright.errors import ArgumentError
from tilewright.notebook import Column, Row
from tilewright.torch import gated, nn

# What becomes of modules of exactly these classes.
MODULES: dict[Any, Any] = {
    torch.nn.Linear: nn.Linear,
    torch.nn.RMSNorm: nn.RMSNorm,
    torch.nn.LayerNorm: nn.LayerNorm,
    torch.nn.MultiheadAttention: nn.Attention,
}
_TYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@dataclass(frozen=True)
class PatchRow:
    """The result for one module: its name in the model, its class before, and what it is now or why it stayed.

    >>> import torch, tilewright as tw
    >>> tw.torch.patch(torch.nn.Sequential(torch.nn.ReLU())).rows[0].reason
    'there is no module of Tilewright for it'
    """

    name: str
    before: str
    after: str | None
    reason: str | None


@dataclass(frozen=True)
class PatchReport:
    """What `tw.torch.patch` did: a row for each module that has parameters of its own or no modules inside.

    It prints as a table, a notebook shows it, and `as_json` and `to_json` give it to programs.

    >>> import torch, tilewright as tw
    >>> report = tw.torch.patch(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()))
    >>> [row.name for row in report.swapped], [row.name for row in report.kept]
    (['0'], ['1'])
    """

    rows: tuple[PatchRow, ...]
    _changed: tuple[tuple[torch.nn.Module, Any, Any], ...] = field(default=(), repr=False, compare=False)

    @property
    def swapped(self) -> tuple[PatchRow, ...]:
        """The modules whose class changed."""
        return tuple(row for row in self.rows if row.after is not None)

    @property
    def kept(self) -> tuple[PatchRow, ...]:
        """The modules that stayed as they were, each with the reason."""
        return tuple(row for row in self.rows if row.after is None)

    def undo(self) -> None:
        """Give the modules their classes back; those that changed since, and copies, keep theirs.

        >>> import torch, tilewright as tw
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 4))
        >>> report = tw.torch.patch(model)
        >>> report.undo()
        >>> type(model[0])
        <class 'torch.nn.modules.linear.Linear'>
        """
        for module, before, after in self._changed:
            if type(module) is after:
                module.__class__ = before

    def as_json(self) -> dict[str, Any]:
        """Return everything as plain data."""
        return {
            "swapped": len(self.swapped),
            "kept": len(self.kept),
            "modules": [
                {"name": row.name, "before": row.before, "after": row.after, "reason": row.reason} for row in self.rows
            ],
        }

    def to_json(self) -> str:
        """Return everything as JSON."""
        return json.dumps(self.as_json(), indent=2)

    def __str__(self) -> str:
        table = Table("module", "class", "", title=self._title(), title_justify="left")
        for row in self.rows:
            table.add_row(*self._cells(row))
        text = StringIO()
        Console(file=text, width=120).print(table)
        return text.getvalue().rstrip("\n")

    def _repr_html_(self) -> str:
        columns = (Column("module", is_text=True), Column("class", is_text=True), Column("", is_text=True))
        rows = [Row(self._cells(row), kind="chosen" if row.after else "") for row in self.rows]
        return notebook.box(self._title(), notebook.table(columns, rows))

    def _title(self) -> str:
        return f"{len(self.swapped)} of {len(self.rows)} modules swapped"

    @staticmethod
    def _cells(row: PatchRow) -> tuple[str, str, str]:
        return row.name or "(the model itself)", row.before, f"now {row.after}" if row.after else str(row.reason)


def patch(model: torch.nn.Module, *, skip: str | Iterable[str] = ()) -> PatchReport:
    """Switch the modules of a model to kernels where a matching module exists, and report which were switched.

    >>> import torch, tilewright as tw
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    >>> report = tw.torch.patch(model, skip="2")
    >>> for row in report.rows:
    ...     print(row.name, row.before, "->", row.after or row.reason)
    0 torch.nn.Linear -> tw.torch.nn.Linear
    1 torch.nn.Tanh -> there is no module of Tilewright for it
    2 torch.nn.Linear -> skip names it
    >>> print(str(report).splitlines()[0].strip())
    1 of 3 modules swapped

    The modules stay the same objects and get another class, so that parameters, hooks, names, optimizer state and
    `state_dict` are unchanged. A module of a subclass is not switched, nor is one whose `forward` was replaced. `skip`
    has names of modules, or patterns such as "layers.*.head".

    A module that computes down(silu(gate(x)) * up(x)) with three linear layers of its own, as the models of Llama's
    kind have it, gets a class with another `forward`: silu and the multiplication follow in the product of `up`, or are
    one kernel where a gradient is required, and so are their gradients. It stays if its code names anything else.

    CPU tensors then run in the simulator, which is for tests and slow.

    Raises `ArgumentError` for anything but a module.
    """
    if not isinstance(model, torch.nn.Module):
        raise ArgumentError(f"model is a {type(model).__name__}, and tw.torch.patch takes a torch.nn.Module")
    patterns = (skip,) if isinstance(skip, str) else tuple(skip)
    rows: list[PatchRow] = []
    changed: list[tuple[torch.nn.Module, Any, Any]] = []
    for name, module in model.named_modules():
        before: Any = type(module)
        is_skipped = any(fnmatchcase(name, p) for p in patterns)
        layers = None if is_skipped else gated.gated_layers(module)
        if layers is not None:
            try:
                _change(module, gated.gated_class(before, layers), changed)
            except Exception as error:  # of its own __init_subclass__, or of its metaclass
                rows.append(PatchRow(name, _shown(before), None, f"its class takes no subclass here: {error}"))
            else:
                rows.append(PatchRow(name, _shown(before), "a gated layer", None))
            continue
        has_own = next(module.parameters(recurse=False), None) is not None
        if not has_own and next(module.children(), None) is not None:
            continue
        reason = "skip names it" if is_skipped else _reason(module)
        if reason is None:
            _change(module, MODULES[before], changed)
        rows.append(PatchRow(name, _shown(before), None if reason else _shown(MODULES[before]), reason))
    return PatchReport(tuple(rows), tuple(changed))


def _change(module: torch.nn.Module, after: Any, changed: list[tuple[torch.nn.Module, Any, Any]]) -> None:
    changed.append((module, type(module), after))
    module.__class__ = after


def _reason(module: torch.nn.Module) -> str | None:
    """Return why a module stays as it is, or None if there is another class for it."""
    kind = type(module)
    if kind.__module__ == nn.__name__:
        return "it is one already"
    if kind not in MODULES:
        of = next((known for known in MODULES if isinstance(module, known)), None)
        if of is None:
            return "there is no module of Tilewright for it"
        return f"its class is not {_shown(of)} itself, and may do something else"
    if "forward" in vars(module):
        return "its forward was replaced"
    if isinstance(module, torch.nn.MultiheadAttention) and (module.bias_k is not None or module.add_zero_attn):
        return "it adds keys of its own"
    for name, parameter in module.named_parameters(recurse=False):
        if parameter.dtype not in _TYPES:
            return f"its {name} is {parameter.dtype}"
        if torch.overrides.has_torch_function((parameter,)):
            return f"its {name} is a {type(parameter).__name__}, and may do something else"
    return None


def _shown(kind: Any) -> str:
    """Return a class as users write it."""
    if kind.__module__ == nn.__name__:
        return f"tw.torch.nn.{kind.__name__}"
    module: str = kind.__module__
    return f"torch.nn.{kind.__name__}" if module.startswith("torch.nn.modules.") else f"{module}.{kind.__qualname__}"
