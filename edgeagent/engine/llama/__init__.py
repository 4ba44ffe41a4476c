"""The only importer of llama_cpp: the model, its context and what they are computed on."""
