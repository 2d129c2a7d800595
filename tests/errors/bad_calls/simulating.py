"""Bad calls: simulating. A row is the call, its error, and what the message has to name."""

ROWS = [
    ("tw.check(None)", "ArgumentError", "None"),
    ("tw.check('a')", "ArgumentError", "str"),
    ("tw.check(1)", "ArgumentError", "int"),
    ("tw.check(())", "ArgumentError", "tuple"),
    ("tw.check({})", "ArgumentError", "dict"),
    ("tw.check(kernel, None)", "ArgumentError", "None"),
    ("tw.check(kernel, 1)", "ArgumentError", "1"),
    ("tw.check(kernel, 1.5)", "ArgumentError", "1.5"),
    ("tw.check(kernel, [tw.spec('float32', 1)], block='a')", "ArgumentError", "block", "'a'"),
    ("tw.check(kernel, [tw.spec('float32', 1)], block=0)", "ArgumentError", "block", "0"),
    ("tw.check(kernel, [tw.spec('float32', 1)], block=1.5)", "ArgumentError", "block", "1.5"),
    ("tw.check(kernel, [tw.spec('float32', 1)], block=(1, 2, 3, 4))", "ArgumentError", "block", "(1, 2, 3, 4)"),
    ("tw.check(kernel, [tw.spec('float32', 1)], block=2048)", "ArgumentError", "block", "2048"),
]
