"""What undoing a user's checkpoints gains under budgets that have room for it."""
