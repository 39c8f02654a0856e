"""A stand-in for `az`, for the Python that sends messages, and for `sleep`, in pretended time.

A service principal that logged in with an assertion of GitHub gets tokens for ten minutes. A token
works for an hour, and the Azure CLI uses it until five minutes before its end, also after a new
login. A user gets tokens at any time. Nobody may ask Microsoft Graph.

state.json in the folder of the program holds the time, the tokens and the resources. Each call is
appended to `calls`. It knows only the commands that infra/try.sh needs.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

ASSERTION_SECONDS, TOKEN_SECONDS, SPARE_SECONDS = 600, 3600, 300
RESOURCE_MANAGER, SERVICE_BUS = "https://management.azure.com/", "https://servicebus.azure.net/"
OBJECT_ID = "00000000-0000-0000-0000-00000000a0a0"
NEW = {
    "now": 0,
    "user": False,
    "assertion_until": 0,
    "tokens": {},
    "groups": [],
    "roles": [],
    "looks": 0,
    "seconds": {},  # by a part of a command: how long it takes
    "refused": "",  # a part of a command that Azure refuses
    "killed": "",  # a part of a command during which the runner kills the whole step
}


class Cloud:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        path = folder / "state.json"
        self.state: dict[str, Any] = json.loads(path.read_text()) if path.exists() else dict(NEW)

    def save(self) -> None:
        (self.folder / "state.json").write_text(json.dumps(self.state))

    def token(self, resource: str) -> str:
        state = self.state
        if state["tokens"].get(resource, 0) - state["now"] < SPARE_SECONDS:
            if not state["user"] and state["now"] >= state["assertion_until"]:
                self.end("AADSTS700024: Client assertion is not within its valid time range.")
            state["tokens"][resource] = state["now"] + TOKEN_SECONDS
        claims = json.dumps({"aud": resource, "oid": OBJECT_ID}).encode()
        return f"head.{base64.urlsafe_b64encode(claims).decode().rstrip('=')}.signature"

    def end(self, error: str) -> None:
        self.save()
        sys.exit(error)

    def call(self, name: str, arguments: list[str]) -> str:
        text = " ".join(arguments)
        with (self.folder / "calls").open("a") as calls:
            calls.write(json.dumps([name, *arguments]) + "\n")
        state = self.state
        for file in [a.removeprefix("@") for a in arguments if a.endswith((".json", ".jsonl"))]:
            (self.folder / Path(file).name).write_bytes(Path(file).read_bytes())
        if name == "sleep":
            state["now"] += float(text)
            return ""
        if name == "az" and text.startswith(("login", "account", "ad ")):
            return self._account(text)
        audience = SERVICE_BUS if name == "python" else RESOURCE_MANAGER
        if name == "az" or "send-messages" in text:
            self.token(audience)
        state["now"] += next((s for part, s in state["seconds"].items() if part in text), 5)
        if state["killed"] and state["killed"] in text:
            self.save()
            os.killpg(0, signal.SIGKILL)
        if name == "az":
            self.token(audience)  # it polls until a long operation has ended
        if state["refused"] and state["refused"] in text:
            self.end("refused")
        return self._resources(text) if name == "az" else ""

    def _account(self, text: str) -> str:
        state = self.state
        if text.startswith("ad "):
            self.end("Insufficient privileges to complete the operation.")
        if text.startswith("login"):
            state["assertion_until"] = state["now"] + ASSERTION_SECONDS
            self.token(RESOURCE_MANAGER)
        if text.startswith("account clear"):
            state["assertion_until"], state["tokens"] = 0, {}
        if text.startswith("account get-access-token"):
            return self.token(_option(text, "--resource"))
        kind = "user" if state["user"] else "servicePrincipal"
        return kind if "--query user.type" in text else "subscription-id"

    def _resources(self, text: str) -> str:
        state = self.state
        match " ".join(text.split()[:3]).partition(" -")[0]:
            case "deployment group create":
                state["roles"] = ["role-1"]
            case "role definition list":
                return "\n".join(state["roles"])
            case "role definition delete":
                state["roles"] = []
            case "appservice plan show":
                state["looks"] += 1
                return "2" if 3 <= state["looks"] < 5 else "1"
            case "functionapp function list":
                return "4"
            case command if command.startswith("group "):
                return self._group(command, _option(text, "--name"))
        return "answer"

    def _group(self, command: str, name: str) -> str:
        groups = self.state["groups"]
        match command:
            case "group create":
                groups.append(name)
            case "group delete":
                groups.remove(name)
            case "group wait" if name in groups:
                self.end("The group still exists.")
        return str(name in groups).lower()


def _option(text: str, name: str) -> str:
    words = text.split()
    return words[words.index(name) + 1]


def main() -> None:
    program, *arguments = sys.argv
    if arguments[:1] == ["-c"]:
        os.execv(sys.executable, [sys.executable, *arguments])
    cloud = Cloud(Path(program).parent)
    sys.stdout.write(cloud.call(Path(program).name, arguments) + "\n")
    cloud.save()


if __name__ == "__main__":
    main()
