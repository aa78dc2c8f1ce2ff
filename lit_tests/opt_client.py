"""A tool as the lit suite calls it: asks opt_server.py.

Usage: opt_client.py SOCKET TOOL ARGUMENTS.
"""

import json
import os
import socket
import sys

with socket.socket(socket.AF_UNIX) as connection:
    connection.connect(sys.argv[1])
    request = {
        "tool": sys.argv[2],
        "arguments": sys.argv[3:],
        "folder": os.getcwd(),
        "environment": dict(os.environ),
    }
    socket.send_fds(connection, [json.dumps(request).encode()], [0, 1, 2])
    answer = connection.recv(1)
if not answer:
    # `not` takes every error for the expected one, but not a death.
    print(f"{sys.argv[2]} died", file=sys.stderr, flush=True)
    os.abort()
sys.exit(answer[0])
