"""Instructions of the hardware, a file each: layouts, targets, checks, the op with its effects, meaning and text."""
