"""The intermediate representation: structured, typed, small. `ops` is the whole instruction list."""
