"""The oven: a small service on a Unix socket, one request per connection."""

from __future__ import annotations

import json
import socket
from pathlib import Path

NEEDED, LIMIT = 60, 45
SOCKET, CAKE = Path("oven.sock"), Path("cake.json")


def bake(dish: str, minutes: int) -> dict[str, object]:
    """Bake for some minutes; time in the oven adds up."""
    if not Path(dish).is_file():
        return {"error": f"{dish} is not there"}
    before = json.loads(CAKE.read_text())["minutes"] if CAKE.is_file() else 0
    total = before + minutes
    state = "burnt" if minutes > LIMIT or total > NEEDED else "pale"
    if state == "pale" and total == NEEDED:
        state = "golden"
    return put({"dish": dish, "minutes": total, "state": state, "degrees": 180})


def cool() -> dict[str, object]:
    """Open the door."""
    if not CAKE.is_file():
        return {"error": "the oven is empty"}
    return put({**json.loads(CAKE.read_text()), "degrees": 20})


def put(cake: dict[str, object]) -> dict[str, object]:
    """Put the cake where it can be seen."""
    CAKE.write_text(json.dumps(cake))
    return cake


def answer(words: list[str]) -> dict[str, object]:
    """What the oven says to a command."""
    if words[:1] == ["bake"] and len(words) == 3 and words[2].isdecimal():
        return bake(words[1], int(words[2]))
    if words == ["cool"]:
        return cool()
    return {"state": "hot"} if words == ["ping"] else {"error": "bake, cool or ping?"}


def main() -> None:
    SOCKET.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as server, Path("oven.log").open("a") as log:
        server.bind(str(SOCKET))
        server.listen()
        while True:
            connection, _ = server.accept()
            with connection:
                words = connection.recv(1024).decode().split()
                said = answer(words)
                if words != ["ping"]:
                    print(*words, "->", json.dumps(said), file=log, flush=True)
                connection.sendall(json.dumps(said).encode())


if __name__ == "__main__":
    main()
