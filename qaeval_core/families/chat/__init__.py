"""Chat families: what asks a language model, each with its prompt and the reader of its replies."""
