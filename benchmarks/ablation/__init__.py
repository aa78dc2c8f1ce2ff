"""What each tuned number of the product is worth, and how many there are."""
