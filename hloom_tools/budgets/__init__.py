"""`hloom budgets` shows the memory and the added time of a program under each budget."""
