"""Classifiers that learn on the image side: the visual MLP and the domain-generalisation algorithms that train it.

An algorithm sees a `Network` (features, then classes) and nothing inside it, so the same classes train the stacked
MLP on frozen features and, with one run, a whole image model.
"""
