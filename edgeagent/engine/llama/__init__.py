"""The only importer of llama_cpp: the model, its context, and their placement on devices."""
