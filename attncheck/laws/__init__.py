"""Relations that must hold of an attention operator, derived from its claims: one family per file, one function per law."""
