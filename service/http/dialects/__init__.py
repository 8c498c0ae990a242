"""The request and response shapes of each API: this service's own, and those of other servers' clients."""
