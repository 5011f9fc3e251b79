"""Adapters: small additions to a frozen vision-language classifier, on top of its zero-shot logits."""
