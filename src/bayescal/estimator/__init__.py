"""The classifier as a user meets it: fit, predict, save, load."""
