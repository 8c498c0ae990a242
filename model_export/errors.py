"""The errors of an export."""


class ExportError(Exception):
    """The checkpoint cannot be exported. The message is for the user: what was found, what is expected, what to do."""


class HubUnavailable(ExportError):
    """The hub cannot be reached, or has a failure of its own: it may have the checkpoint later."""


class PrecisionError(ExportError):
    """The written artifact does not compute the vectors or the attention of the checkpoint."""
