"""The recipe of the bundled model pair: corpus, tokenizer, training, export and evaluation.

Nothing here is imported by the daemon; `README.md` beside this file gives the commands.
"""
