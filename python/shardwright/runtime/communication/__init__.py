"""How ranks talk, and what is said when one of them does not come."""
