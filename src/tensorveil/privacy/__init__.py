"""What is promised, to whom, and why it is true."""
