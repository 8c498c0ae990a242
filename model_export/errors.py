"""The errors of an export."""


class ExportError(Exception):
    """The checkpoint cannot be exported. The message is for the user: what was found, what is expected, what to do."""


class PrecisionError(ExportError):
    """The written artifact does not compute the vectors or the attention of the checkpoint."""
