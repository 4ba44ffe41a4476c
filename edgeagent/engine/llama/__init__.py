"""All code that calls llama.cpp: models, contexts, embeddings and quantization. No other package imports llama_cpp."""
