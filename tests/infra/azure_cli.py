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
        for file in [a.removeprefix("@") for a in arguments if a.endswith(".json")]:
            (self.folder / Path(file).name).write_bytes(Path(file).read_bytes())
        if name == "sleep":
            self.state["now"] += float(text)
            return ""
        if name == "az" and text.startswith(("login", "account", "ad ")):
            return self._account(text)
        loads = "local.prove" in text and "--plan" in text
        needed = (RESOURCE_MANAGER,) if name == "az" else SERVICES if loads else ()
        self._tokens(needed)
        self.state["now"] += next(
            (s for part, s in self.state["seconds"].items() if part in text), 5
        )
        self._fail_at(text)
        self._tokens(needed)  # it polls until a long operation has ended
        if self.state["refused"] and self.state["refused"] in text:
            self.end("refused")
        return self._resources(text) if name == "az" else ""

    def _tokens(self, audiences: tuple[str, ...]) -> None:
        for audience in audiences:
            self.token(audience)

    def _fail_at(self, text: str) -> None:
        """The user presses Ctrl-C, or the runner kills the step, during this command."""
        state = self.state
        if state["interrupted"] and state["interrupted"] in text:
            state["interrupted"] = ""
            self.save()
            os.kill(os.getppid(), signal.SIGTERM)
            sys.exit(130)
        if state["killed"] and state["killed"] in text:
            self.save()
            os.killpg(0, signal.SIGKILL)

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
        """What Resource Manager answers: one method for each command that changes or reads it."""
        command = " ".join(text.split()[:3]).partition(" -")[0]
        answer = getattr(self, f"_{command.replace(' ', '_')}", None)
        return str((answer(text) or "") if answer else self.state["answers"].get(command, "answer"))

    def _path(self, text: str) -> str:
        return f"/subscriptions/subscription-id/resourceGroups/{_option(text, '--resource-group')}"

    def _make(self, text: str, kind: str, tag: str) -> None:
        name = "workers" if kind.endswith("farms") else "new"
        self.state["resources"][f"{self._path(text)}/providers/{kind}/{name}"] = tag

    def _appservice_plan_create(self, text: str) -> None:
        self._make(text, "Microsoft.Web/serverfarms", _option(text, "--tags"))
        if self.state["extra"]:
            self.state["resources"][f"{self._path(text)}/untagged"] = ""

    def _deployment_group_create(self, text: str) -> None:
        given = json.loads((self.folder / "parameters.json").read_text())["parameters"]
        for kind in TYPES:
            self._make(text, kind, f"proof={given['tags']['value']['proof']}")
        self.state["roles"]["role-1"] = f"App Service Plan capacity ({given['name']['value']}-x, y)"
        plan = given["planIds"]["value"][0]
        self.state["assignments"]["assignment-of-the-app"] = [plan, "role-1"]

    def _deployment_group_show(self, text: str) -> str:
        settings = '{"IsEncrypted":false,"Values":{"Topic":"orders"}}'
        return settings if "commandSettings" in text else "new"

    def _functionapp_function_list(self, _text: str) -> str:
        return "4"

    def _resource_list(self, text: str) -> str:
        run = text.partition("'")[2].partition("'")[0]
        tag = f"proof={run}" if "tags.proof" in text else ""
        resources = self.state["resources"].items()
        inside = [(id_, own) for id_, own in resources if id_.startswith(self._path(text) + "/")]
        found = [id_ for id_, own in inside if tag in ("", own)]
        return str(len(found)) if "length(@)" in text else "\n".join(found)

    def _resource_delete(self, text: str) -> None:
        resource = _option(text, "--ids")
        if resource in self.state["busy"]:
            self.state["busy"].remove(resource)
            self.end("The resource is in use.")
        del self.state["resources"][resource]

    def _role_definition_list(self, text: str) -> str:
        roles = self.state["roles"]
        if "--output json" in text:
            return json.dumps([{"name": name} for name in roles])
        part = text.partition("'")[2].partition("'")[0]
        return "\n".join(name for name, shown in roles.items() if part in shown)

    def _role_definition_delete(self, text: str) -> None:
        name = _option(text, "--name")
        if any(role == name for _, role in self.state["assignments"].values()):
            self.end("The role has assignments.")
        del self.state["roles"][name]

    def _role_assignment_create(self, text: str) -> None:
        role = text.partition("--role ")[2].partition(" --")[0]
        assignments = self.state["assignments"]
        assignments[f"assignment-{len(assignments)}"] = [_option(text, "--scope"), role]

    def _role_assignment_delete(self, text: str) -> None:
        del self.state["assignments"][_option(text, "--ids")]

    def _role_assignment_list(self, text: str) -> str:
        given, scope = self.state["assignments"], _option(text, "--scope")
        found = [name for name, (at, _) in given.items() if at == scope]
        if "--output json" not in text:
            return "\n".join(found)
        rest = {"principalId": "app"}
        shown = [{"id": n, "roleDefinitionId": f"/x/{given[n][1]}", **rest} for n in found]
        return json.dumps(shown)

    def _group_exists(self, text: str) -> str:
        return str(_option(text, "--name") in self.state["groups"]).lower()

    def _group_create(self, text: str) -> None:
        tag = _option(text, "--tags").removeprefix("proof=")
        self.state["groups"][_option(text, "--name")] = tag

    def _group_show(self, text: str) -> str:
        return str(self.state["groups"][_option(text, "--name")])

    def _group_delete(self, text: str) -> None:
        name = _option(text, "--name")
        del self.state["groups"][name]
        for kind in ("resources", "assignments"):
            old = self.state[kind].items()
            self.state[kind] = {k: v for k, v in old if f"/resourceGroups/{name}/" not in f"{k}{v}"}

    def _group_wait(self, text: str) -> None:
        if _option(text, "--name") in self.state["groups"]:
            self.end("The group still exists.")


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
