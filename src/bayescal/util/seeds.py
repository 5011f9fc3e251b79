"""Which numbers can be seeds: those that 64 bits hold, with room for the members of an ensemble, which count on."""

from bayescal.errors import BayescalError

LARGEST_SEED = 2**62


def check_seed(seed: int, where: str = "seed") -> int:
    """The seed, or an error for one that is no seed."""
    if not 0 <= seed <= LARGEST_SEED:
        found = str(seed) if seed.bit_length() < 100 else f"a number of {seed.bit_length()} bits"
        raise BayescalError(f"{where}: expected a number from 0 to 2^62 ({LARGEST_SEED}), found {found}")
    return seed
