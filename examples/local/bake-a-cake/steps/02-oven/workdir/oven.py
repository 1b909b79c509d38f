"""The oven: a small service on a Unix socket, one request per connection."""

from __future__ import annotations

import json
import socket
from pathlib import Path

NEEDED, LIMIT = 60, 45
SOCKET = Path("oven.sock")


def bake(dish: str, minutes: int) -> dict[str, object]:
    """Bake for some minutes; time in the oven adds up."""
    if not Path(dish).is_file():
        return {"error": f"{dish} is not there"}
    cake = Path("cake.json")
    before = json.loads(cake.read_text())["minutes"] if cake.is_file() else 0
    total = before + minutes
    state = "burnt" if minutes > LIMIT or total > NEEDED else "pale"
    if state == "pale" and total == NEEDED:
        state = "golden"
    result = {"dish": dish, "minutes": total, "state": state}
    cake.write_text(json.dumps(result))
    return result


def main() -> None:
    SOCKET.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as server, Path("oven.log").open("a") as log:
        server.bind(str(SOCKET))
        server.listen()
        while True:
            connection, _ = server.accept()
            with connection:
                words = connection.recv(1024).decode().split()
                answer: dict[str, object] = {"state": "hot"}
                if words[:1] == ["bake"]:
                    answer = bake(words[1], int(words[2]))
                    print(*words, "->", json.dumps(answer), file=log, flush=True)
                connection.sendall(json.dumps(answer).encode())


if __name__ == "__main__":
    main()
