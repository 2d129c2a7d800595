"""What texts of layouts may hold, so that reading one from anywhere ends soon and takes little memory."""

from __future__ import annotations

from tilewright.errors import LayoutError

CHARACTERS = 10_000  # of a text
DEPTH = 64  # of brackets in brackets; Python's own stack ends a little below 1,000 calls
LARGEST = 2**63 - 1  # of a number: what an index of a GPU holds
MODES = 64  # of a coordinate that a basis stride such as 1@63 steps through
PATH = 8  # modes in modes that a basis stride names, as 1@0@1 names two
_DIGITS = len(str(LARGEST))
_SHOWN = 60  # characters of a text that a message shows


def whole(token: str) -> int:
    """Return the number of a token, which may have a sign. Raises `LayoutError` for one that is too large."""
    digits = token.lstrip("-").lstrip("0") or "0"
    if len(digits) > _DIGITS or int(digits) > LARGEST:
        raise LayoutError(
            f"the number {excerpt(token)} is too large",
            help=f"numbers of layouts are at most {LARGEST}, what an index of a GPU holds",
        )
    return -int(digits) if token.startswith("-") else int(digits)


def path_of(tokens: list[str]) -> tuple[int, ...]:
    """Return the modes that a basis stride names, outermost first, of what follows each @ in its text.

    Raises `LayoutError` for modes past the 64th, whose coordinates would be that long, and for more than 8 of them.
    """
    if len(tokens) > PATH:
        raise LayoutError(f"a basis stride names {len(tokens)} modes in modes", help=f"at most {PATH} are read")
    modes = tuple(whole(token) for token in reversed(tokens))
    for mode in modes:
        if mode >= MODES:
            raise LayoutError(f"a basis stride steps through mode {mode}", help=f"modes 0 to {MODES - 1} are read")
    return modes


def check_length(text: str) -> None:
    """Raise `LayoutError` for a text that is too long to be read."""
    if len(text) > CHARACTERS:
        raise LayoutError(
            f"the text of a layout has {len(text)} characters: {excerpt(text)}", help=f"at most {CHARACTERS} are read"
        )


def check_depth(depth: int) -> None:
    """Raise `LayoutError` for brackets that are nested too deep."""
    if depth > DEPTH:
        raise LayoutError(f"brackets are nested more than {DEPTH} deep", help=f"at most {DEPTH} are read")


def excerpt(text: str) -> str:
    """Return a text as a message shows it: the beginning of what is long."""
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
