"""Blocks in files: their format, index, folder, writer and retention."""
