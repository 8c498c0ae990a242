"""The health check of the images: exit code 0 where `/ready` answers 200. It knows nothing of why it does not.

It runs every ten seconds, so it imports little (`python -IS`): 20 ms of a core, of which 3 are its own.
"""

import os
import socket
import sys

HOST, PORT = os.environ["BERT_HOST"], int(os.environ["BERT_PORT"])  # 0.0.0.0 and :: reach this machine

try:
    with socket.create_connection((HOST, PORT), timeout=2) as connection:
        connection.sendall(b"GET /ready HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        answer = connection.recv(12)  # HTTP/1.1 200
except OSError as error:
    sys.exit(f"/ready of {HOST}:{PORT}: {error}")
if not answer.endswith(b" 200"):
    sys.exit(f"/ready of {HOST}:{PORT}: {answer.decode('latin-1') or 'connection closed'}")
