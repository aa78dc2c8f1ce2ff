"""Rules: the signature of an operation, by what its row in `ir/ops` names."""
