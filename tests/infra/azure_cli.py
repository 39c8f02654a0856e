"""A stand-in for `az`, for the Python of the proof, and for `sleep`, in pretended time.

A service principal that logged in with an assertion of GitHub gets tokens for ten minutes. A token
works for an hour, and the Azure CLI uses it until five minutes before its end, also after a new
login. A user gets tokens at any time. Nobody may ask Microsoft Graph.

state.json in the folder of the program holds the time, the tokens and the resources. Each call is
appended to `calls`. It knows only the commands that infra/prove.sh and local/prove need.
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
RESOURCE_MANAGER = "https://management.azure.com/"
SERVICES = tuple(f"https://{n}/" for n in (
    "servicebus.azure.net", "eventhubs.azure.net", "storage.azure.com"
))  # fmt: skip
TYPES = ("Microsoft.ServiceBus/namespaces", "Microsoft.EventHub/namespaces",
         "Microsoft.Storage/storageAccounts", "Microsoft.Web/sites")  # fmt: skip
OBJECT_ID = "00000000-0000-0000-0000-00000000a0a0"
NEW = {
    "now": 0,
    "user": False,
    "assertion_until": 0,
    "tokens": {},
    "groups": {},  # by name: the tag `proof`
    "resources": {},  # by ID: the tag `proof`
    "assignments": {},  # by ID: the scope and the role
    "roles": {},  # by name: the name for people
    "extra": False,  # whether Azure makes a resource of its own beside a new one
    "answers": {},  # by command: what it answers
    "busy": [],  # IDs that are refused once when they are deleted, because another uses them
    "seconds": {},  # by a part of a command: how long it takes
    "refused": "",  # a part of a command that Azure refuses
    "interrupted": "",  # a part of a command during which the user presses Ctrl-C
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
        loads = "local.prove" in text and "--plan" in text
        for audience in (RESOURCE_MANAGER,) if name == "az" else SERVICES if loads else ():
            self.token(audience)
        state["now"] += next((s for part, s in state["seconds"].items() if part in text), 5)
        if state["interrupted"] and state["interrupted"] in text:
            state["interrupted"] = ""
            self.save()
            os.kill(os.getppid(), signal.SIGTERM)
            sys.exit(130)
        if state["killed"] and state["killed"] in text:
            self.save()
            os.killpg(0, signal.SIGKILL)
        for audience in (RESOURCE_MANAGER,) if name == "az" else SERVICES if loads else ():
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
        state, command = self.state, " ".join(text.split()[:3]).partition(" -")[0]
        if command.startswith("group "):
            return self._group(command, _option(text, "--name"), text)
        if command.startswith("role "):
            return self._roles(command, text)
        match command:
            case "appservice plan create":
                self._make(text, "Microsoft.Web/serverfarms", _option(text, "--tags"))
                state["resources"] |= {f"{self._path(text)}/untagged": ""} if state["extra"] else {}
            case "deployment group create":
                self._deploy(text)
            case "deployment group show" if "commandSettings" in text:
                return '{"IsEncrypted":false,"Values":{"Topic":"orders"}}'
            case "resource list":
                return self._listed(text)
            case "resource delete":
                self._delete(_option(text, "--ids"))
            case "functionapp function list":
                return "4"
        return state["answers"].get(command, "answer")

    def _path(self, text: str) -> str:
        return f"/subscriptions/subscription-id/resourceGroups/{_option(text, '--resource-group')}"

    def _make(self, text: str, kind: str, tag: str) -> str:
        name = f"{self._path(text)}/providers/{kind}/{'workers' if 'farms' in kind else 'new'}"
        self.state["resources"][name] = tag
        return name

    def _deploy(self, text: str) -> None:
        given = json.loads((self.folder / "parameters.json").read_text())["parameters"]
        for kind in TYPES:
            self._make(text, kind, f"proof={given['tags']['value']['proof']}")
        self.state["roles"]["role-1"] = f"App Service Plan capacity ({given['name']['value']}-x, y)"
        plan = given["planIds"]["value"][0]
        self.state["assignments"]["assignment-of-the-app"] = [plan, "role-1"]

    def _listed(self, text: str) -> str:
        run = text.partition("'")[2].partition("'")[0]
        tag = f"proof={run}" if "tags.proof" in text else ""
        found = [
            each
            for each, own in self.state["resources"].items()
            if each.startswith(self._path(text) + "/") and tag in ("", own)
        ]
        return str(len(found)) if "length(@)" in text else "\n".join(found)

    def _delete(self, resource: str) -> None:
        if resource in self.state["busy"]:
            self.state["busy"].remove(resource)
            self.end("The resource is in use.")
        del self.state["resources"][resource]

    def _roles(self, command: str, text: str) -> str:
        assignments, roles = self.state["assignments"], self.state["roles"]
        match command:
            case "role definition list" if "--output json" in text:
                return json.dumps([{"name": name} for name in roles])
            case "role definition list":
                part = text.partition("'")[2].partition("'")[0]
                return "\n".join(name for name, shown in roles.items() if part in shown)
            case "role definition delete":
                if any(role == _option(text, "--name") for _, role in assignments.values()):
                    self.end("The role has assignments.")
                del roles[_option(text, "--name")]
            case "role assignment create":
                role = text.partition("--role ")[2].partition(" --")[0]
                assignments[f"assignment-{len(assignments)}"] = [_option(text, "--scope"), role]
            case "role assignment delete":
                del assignments[_option(text, "--ids")]
            case "role assignment list":
                found = [n for n, (at, _) in assignments.items() if at == _option(text, "--scope")]
                if "--output json" not in text:
                    return "\n".join(found)
                shown = [
                    {"id": n, "principalId": "app", "roleDefinitionId": f"/x/{assignments[n][1]}"}
                    for n in found
                ]
                return json.dumps(shown)
        return ""

    def _group(self, command: str, name: str, text: str) -> str:
        state = self.state
        match command:
            case "group create":
                state["groups"][name] = _option(text, "--tags").removeprefix("proof=")
            case "group show":
                return str(state["groups"][name])
            case "group delete":
                del state["groups"][name]
                inside = f"/resourceGroups/{name}/"
                for kind in ("resources", "assignments"):
                    kept = {k: v for k, v in state[kind].items() if inside not in f"{k}{v}/"}
                    state[kind] = kept
            case "group wait" if name in state["groups"]:
                self.end("The group still exists.")
        return str(name in state["groups"]).lower()


def _option(text: str, name: str) -> str:
    words = text.split()
    return words[words.index(name) + 1]


def main() -> None:
    program, *arguments = sys.argv
    if arguments[:1] == ["-c"] or "--print-settings" in arguments:
        os.execv(sys.executable, [sys.executable, *arguments])
    cloud = Cloud(Path(program).parent)
    sys.stdout.write(cloud.call(Path(program).name, arguments) + "\n")
    cloud.save()


if __name__ == "__main__":
    main()
