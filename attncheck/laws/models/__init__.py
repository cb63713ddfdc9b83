"""Relations that must hold of a whole model, derived from what is claimed of it: one family per file, one function per law."""
