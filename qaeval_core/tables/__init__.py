"""Tables: what a verb reads after scoring: scores beside their input, and who reads them."""
