"""The demo: a shift made by code, and who holds up under it."""
