"""The code branches for other platforms, run here under their names. Their kernels' own behaviour stays untested."""
