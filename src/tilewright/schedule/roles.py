"""What arrays, numbers and sizes are for, and where arrays that live only within a kernel are kept."""

import enum


class Role(enum.Enum):
    """What an array is for."""

    INPUT = "input"  # read
    INPUT_OUTPUT = "input_output"  # read and written
    OUTPUT = "output"  # written; what was in it does not matter
    CONST = "const"  # data that belongs to the kernel
    TEMP = "temp"  # lives only while the kernel runs


class AllocateFlags(enum.Enum):
    """The memory of a TEMP array that no cache keeps."""

    NONE = "none"  # in registers where their number is known and small, else in memory of the launch
    STACK = "stack"  # in the registers of each thread
    THREAD_LOCAL = "thread_local"  # as STACK
    HEAP = "heap"  # in memory that the launch allocates
    GLOBAL = "global"  # as HEAP


IN_REGISTERS = frozenset({AllocateFlags.STACK, AllocateFlags.THREAD_LOCAL})
IN_MEMORY = frozenset({AllocateFlags.HEAP, AllocateFlags.GLOBAL})
WRITTEN = frozenset({Role.INPUT_OUTPUT, Role.OUTPUT, Role.TEMP})  # the roles of what a nest may write
