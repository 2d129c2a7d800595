"""Philox 4x32: four random words of a counter of 128 bits under a key of 64. Pure, and of one thread.

One op for the whole generator, so that its text is one call and the simulator computes it at once.

Source: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", 2011.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from tilewright.backends.cpp.arithmetic import exact
from tilewright.backends.cpp.prelude import FUNCTION
from tilewright.backends.cpp.printer import bind_results, declare_results, print_call
from tilewright.backends.sim.values import Frame
from tilewright.dtypes import uint32
from tilewright.ir.core import Value
from tilewright.ir.effects import attribute, operands
from tilewright.ir.instruction import Instruction
from tilewright.trace.scalar import Scalar
from tilewright.trace.tracer import current

if TYPE_CHECKING:
    from tilewright.backends.cpp.printer import Printer
    from tilewright.backends.sim.compiler import Compiler, Step

# Of the first and the third word; and what is added to the words of the key: the golden ratio, and sqrt(3) - 1.
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)

Words = tuple[Scalar, Scalar, Scalar, Scalar]


def philox_words(key: tuple[Scalar, Scalar], counter: Words, rounds: int) -> Words:
    """Return the four words of a counter under a key, all of them uint32 with the lowest first."""
    values = tuple(x.value for x in (*key, *counter))
    a, b, c, d = current("tw.philox").emit(Philox(rounds, values), uint32, uint32, uint32, uint32)
    return Scalar(a), Scalar(b), Scalar(c), Scalar(d)


@dataclass(eq=False)
class Philox(Instruction):
    """results = the four words that so many rounds make of a counter; `words` are the key's two and the counter's."""

    rounds: int = attribute()
    words: tuple[Value, ...] = operands()

    RESULTS: ClassVar[int | None] = 4
    COUNTED: ClassVar[str | None] = "philox"
    RESERVED: ClassVar[str] = "philox"

    def verify(self, expect: Callable[[bool, str], None]) -> None:
        expect(len(self.words) == 6 and self.rounds >= 1, "a key of two words and a counter of four")
        expect(all(v.type is uint32 for v in (*self.words, *self.results)), "words are uint32")

    def simulate(self, compiler: Compiler) -> Step:
        slots, results = compiler.slots(self.words), compiler.slots(self.results)
        rounds, low, half = self.rounds, np.uint64(0xFFFFFFFF), np.uint64(32)
        first, second = (np.uint64(m) for m in MULTIPLIERS)
        steps = tuple(np.uint64(step) for step in KEY_STEPS)

        def run(frame: Frame) -> None:
            k, l, a, b, c, d = (frame.values[slot].astype(np.uint64) for slot in slots)  # noqa: E741
            for _ in range(rounds):
                p, q = a * first, c * second
                a, b, c, d = q >> half ^ b ^ k, q & low, p >> half ^ d ^ l, p & low
                k, l = k + steps[0] & low, l + steps[1] & low  # noqa: E741
            for slot, word in zip(results, (a, b, c, d), strict=True):
                frame.values[slot] = word.astype(np.uint32)

        return run

    def cuda(self, printer: Printer) -> None:
        printer.prelude.need(_PHILOX)
        results = declare_results(printer, self, "random")
        words = [exact(printer, word).text for word in self.words]
        print_call(printer, self, f"philox<{self.rounds}>", [results, words[:2], words[2:]])
        bind_results(printer, self, results)

    def hip(self, printer: Printer) -> None:
        self.cuda(printer)


# Both halves of a product of 64 bits are one instruction (IMAD.WIDE); a product and its high half are two.
_PHILOX = f"""\
// Philox 4x32: makes random words a, b, c, d of the counter m, n, o, p under the key k, l.
template <int rounds>
{FUNCTION} void philox(
    unsigned int& a, unsigned int& b, unsigned int& c, unsigned int& d, unsigned int k, unsigned int l,
    unsigned int m, unsigned int n, unsigned int o, unsigned int p) {{
    a = m, b = n, c = o, d = p;
    #pragma unroll
    for (int i = 0; i < rounds; i++) {{
        const unsigned long long first = a * 0x{MULTIPLIERS[0]:X}ULL, second = c * 0x{MULTIPLIERS[1]:X}ULL;
        a = (unsigned int)(second >> 32) ^ b ^ k, b = (unsigned int)second;
        c = (unsigned int)(first >> 32) ^ d ^ l, d = (unsigned int)first;
        k += 0x{KEY_STEPS[0]:X}, l += 0x{KEY_STEPS[1]:X};
    }}
}}"""
