"""What rewritten code calls: the rewriter puts this module under a name of its own among the user's globals."""

from builtins import locals  # noqa: A004  # the user may have another

from tilewright.lang.branches import and_, compare_chain, contains, if_expression, if_statement, not_, or_
from tilewright.lang.loops import for_loop, while_loop
from tilewright.lang.replacements import annotated, assertion, builtin, named, named_all
from tilewright.lang.undefined import value_of

__all__ = [
    "and_",
    "annotated",
    "assertion",
    "builtin",
    "compare_chain",
    "contains",
    "for_loop",
    "if_expression",
    "if_statement",
    "locals",
    "named",
    "named_all",
    "not_",
    "or_",
    "value_of",
    "while_loop",
]
