"""Data sets that are made and not downloaded: the photos or digits are yours, or everything is drawn by code.

`folder.py` holds what all of them share: nothing half-written, nothing overwritten, a mark that says what was made.
"""
