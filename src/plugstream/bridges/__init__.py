"""Operators of other libraries as models of ours: SciPy, PyLops, SCICO and deepinv; and ours in deepinv's place."""
