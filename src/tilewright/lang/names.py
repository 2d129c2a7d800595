"""Names that the rewriter adds to a function; no user's variable begins like them."""

CONTROL = "__tilewright"
RESULT = "__tilewright_result"
STOP = "__tilewright_stop"
ITEM = "__tilewright_item"
FACTORY = "__tilewright_factory"
