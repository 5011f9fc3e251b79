"""Small tools that every room uses."""
