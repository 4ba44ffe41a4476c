"""Predicts how long a step takes. The prediction is learnt from measured steps."""
