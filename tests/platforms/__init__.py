"""The branches of other platforms, run here under their names. What only their kernels do stays untested."""
