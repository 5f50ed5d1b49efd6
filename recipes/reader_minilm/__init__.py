"""Recipe of the shipped adapter reader-minilm: SQuAD 2.0 without the passages that judge it."""
