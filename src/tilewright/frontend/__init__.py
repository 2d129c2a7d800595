"""What reads Python: a function's source, its syntax trees, and the calls that take the place of loops and branches."""
