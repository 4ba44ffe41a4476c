"""How much memory a model takes, by its file's header, and how it is made to fit.

Pure: what the machine has is an argument.
"""
