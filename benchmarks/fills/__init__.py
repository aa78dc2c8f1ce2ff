"""What a step fills: stacks that its scans overwrite, masks, zeros to scatter into."""
