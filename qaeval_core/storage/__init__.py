"""Storage: where files lie, a disk or an object store, behind one small set of operations."""
