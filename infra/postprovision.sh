#!/bin/sh
# azd runs this after each deployment, with the outputs of azd.bicep as variables.
set -eu
cd "$(dirname "$0")/.."
settings=".azure/$AZURE_ENV_NAME/command.settings.json"
printf '%s\n' "$AUTOSCALER_SETTINGS" >"$settings"
printf '%s\n' "Dashboard, once azd has published the code: $AUTOSCALER_DASHBOARD_URL?code=KEY" \
    "State, from this computer: .venv/bin/python -m shared status --settings $settings"
