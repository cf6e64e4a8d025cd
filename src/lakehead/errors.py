"""Every error of ours, told apart by what the caller should do next."""


class LakeheadError(Exception):
    """The root of all errors that Lakehead raises on purpose. Its message is a sentence for a person."""


class Misconfigured(LakeheadError):
    """Fix the input: a URL, a setting, a bucket or credentials. The same call will fail again."""


class Unavailable(LakeheadError):
    """Try again later. Nothing was changed."""


class OutcomeUnknown(LakeheadError):
    """The change may have happened, may not, or may happen yet. Look before doing it again."""
