"""The text side of a vision-language model: the tower, and prompts packed into trees."""
