"""`hloom-opt` as the lit suite calls it: asks opt_server.py.

Usage: opt_client.py SOCKET ARGUMENTS.
"""

import json
import os
import socket
import sys

with socket.socket(socket.AF_UNIX) as connection:
    connection.connect(sys.argv[1])
    request = {
        "arguments": sys.argv[2:],
        "folder": os.getcwd(),
        "environment": dict(os.environ),
    }
    socket.send_fds(connection, [json.dumps(request).encode()], [0, 1, 2])
    answer = connection.recv(1)
if not answer:
    # `not` takes every error for the expected one, but not a death.
    print("hloom-opt died", file=sys.stderr, flush=True)
    os.abort()
sys.exit(answer[0])
