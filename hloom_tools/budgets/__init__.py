"""`hloom budgets`: what each budget gives a program: memory against added time."""
