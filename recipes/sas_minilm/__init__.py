"""Recipe of the shipped adapter sas-minilm: public datasets and a teacher -> pairs to train on."""
