"""Files of text, such as JSON Lines and CSV, and the Parquet copies read in their place."""
