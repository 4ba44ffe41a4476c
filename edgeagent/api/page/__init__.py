"""The page for browsers: its files, the way in, Markdown, and the list of conversations."""
