"""Planning: what a request means: files, columns, families and instances; reads no row."""
