"""The recipe of the bundled model pair: corpus, tokenizer, training, export and evaluation.

The daemon imports nothing from here. `README.md` in this folder gives the commands.
"""
