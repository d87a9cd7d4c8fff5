"""What a good plan is: pure functions over typed values, no I/O (the contract is DESIGN sections 3 to 6)."""
