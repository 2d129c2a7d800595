"""Names that the rewriter adds to a function; no user's variable begins like them."""

CONTROL = "__tilewright"
RESULT = "__tilewright_result"
RETURNED = "__tilewright_returned"
STOP = "__tilewright_stop"
SKIP = "__tilewright_skip"
ITEM = "__tilewright_item"
FACTORY = "__tilewright_factory"

# Functions that the rewriter makes of loops and branches are called WHAT__in__FUNCTION.
INNER = "__in__"
