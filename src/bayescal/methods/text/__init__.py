"""Methods that learn on the text side."""
