"""Tables to tables: the whole job on one machine, without Ray."""
