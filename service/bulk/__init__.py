"""Files of texts answered in parts, by a server (`service.client`) or in this process (`service.library`)."""
