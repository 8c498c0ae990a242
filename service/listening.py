"""Whether the service can listen on its address: asked before the model is loaded, which may take minutes."""

import socket


class ListenError(Exception):
    """The address cannot be listened on; the message names it and the settings."""


def check_address(host: str, port: int) -> None:
    """Binds `host`:`port` and lets go of it; 0 is any free port.

    Raises ListenError where the port is taken, or the address is none of this machine's.
    """
    try:
        for family, kind, protocol, _, address in socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        ):
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server: closed ones do not count
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind(address)
    except OSError as error:
        raise ListenError(f"cannot listen on {host}:{port} (BERT_HOST, BERT_PORT): {error}") from None
