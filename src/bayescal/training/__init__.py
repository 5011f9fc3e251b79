"""From runs to trained stacks."""
