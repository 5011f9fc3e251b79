"""Errors written for the person who made the mistake.

Every message says what was expected, what was found, where, and what to do. The command line prints the
message without a traceback and exits with code 2. All of them are `ValueError`s, as scikit-learn users expect.
"""


class BayescalError(ValueError):
    """Something the user can put right."""


class DataError(BayescalError):
    """A folder, manifest, image or name that cannot be used."""


class BackboneError(BayescalError):
    """A vision-language model that cannot be found, read or used for prompt learning."""


class MethodError(BayescalError):
    """An unknown method, or an option that the method does not have."""


class ArtifactError(BayescalError):
    """A saved model that is missing, damaged, of another version or made with another backbone."""


class BayescalWarning(UserWarning):
    """Something was skipped or switched off; the work went on."""
