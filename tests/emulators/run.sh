#!/bin/sh
# Starts Microsoft's emulators (compose.yaml), runs the tests that can use them, and stops them.
# Arguments go to pytest. KEEP=1 leaves the emulators running.
set -eu
cd "$(dirname "$0")/../.."

command -v docker >/dev/null 2>&1 || {
    printf '%s\n' 'Docker was not found. Install it: https://docs.docker.com/get-docker/' >&2
    exit 1
}

stop() {
    status=$?
    [ "$status" -eq 0 ] || docker compose logs --tail 100
    [ -n "${KEEP:-}" ] || docker compose down --volumes
    exit "$status"
}
trap stop EXIT
trap 'exit 130' INT TERM

docker compose up --detach
for health in http://localhost:5300/health http://localhost:5301/health; do
    # Compose waited for SQL Server. The emulators themselves take up to a minute.
    curl --silent --show-error --fail --retry 90 --retry-delay 2 --retry-all-errors \
        --output /dev/null "$health"
done

local_key='SharedAccessKeyName=RootManageSharedAccessKey;SharedAccessKey=SAS_KEY_VALUE'
SERVICE_BUS_EMULATOR="Endpoint=sb://localhost:5672;$local_key;UseDevelopmentEmulator=true;"
EVENT_HUBS_EMULATOR="Endpoint=sb://localhost:5673;$local_key;UseDevelopmentEmulator=true;"
export SERVICE_BUS_EMULATOR EVENT_HUBS_EMULATOR

# -rs prints the reason for each test that cannot run against an emulator.
# shellcheck disable=SC2046 # one path a word
"${PYTHON:-.venv/bin/python}" -m pytest -rs -p no:xdist $(cat tests/emulators/suites.txt) "$@"
