"""Sends one command to the oven and prints its answer."""

from __future__ import annotations

import socket
import sys

with socket.socket(socket.AF_UNIX) as oven:
    oven.settimeout(5)
    oven.connect("oven.sock")
    oven.sendall(" ".join(sys.argv[1:]).encode())
    print(oven.recv(1024).decode())
