"""The store: what lies below OUT, who may write there, and what is committed."""
