#!/bin/sh
# Deploys the app to a new resource group of the subscription that `az` is logged in to, sends 1,000
# messages, watches the plan scale out and in again, and removes the resource group, whatever happens.
# Usage: infra/try.sh REGION. It is expected to take half an hour and to cost less than a dollar.
# KEEP=1 keeps the resource group. POLL_SECONDS is the pause between two looks.
set -eu
cd "$(dirname "$0")/.."

MESSAGES=1000
TOPIC=orders
SUBSCRIPTION=billing
POLL_SECONDS=${POLL_SECONDS:-15}
LOOKS_MAX=${LOOKS_MAX:-100} # 25 minutes
PYTHON=${PYTHON:-.venv/bin/python}

fail() {
    printf '%s\n' "$@" >&2
    exit 1
}

say() {
    printf '%s  %s\n' "$(date -u +%H:%M:%S)" "$*"
}

[ $# -eq 1 ] || fail 'Usage: infra/try.sh REGION, for example westeurope.'
command -v az >/dev/null 2>&1 ||
    fail 'The Azure CLI was not found. Install it: https://learn.microsoft.com/cli/azure/install-azure-cli'
command -v "$PYTHON" >/dev/null 2>&1 || fail "$PYTHON was not found. Run: make setup"
az account show --output none || fail 'Log in first: az login'

region=$1
group=autoscaler-try-$(od -An -N4 -tx1 /dev/urandom | tr -d ' \n')
work=$(mktemp -d)
plan='' # not created yet

remove() {
    status=$?
    trap - EXIT
    trap '' INT TERM
    rm -rf "$work"
    if [ -n "${KEEP:-}" ]; then
        say "The resource group $group was kept. Remove it: az group delete --name $group"
    else
        say "Removing the resource group $group"
        # A custom role is not removed with the resource group that it was made for.
        for role in $(az role definition list --custom-role-only true --resource-group "$group" \
            --query '[].name' --output tsv); do
            az role assignment delete --role "$role" --scope "$plan" --output none || true
            az role definition delete --name "$role" --resource-group "$group" --output none || true
        done
        az group delete --name "$group" --yes --output none ||
            fail "The resource group $group could not be removed. It costs money: az group delete --name $group"
    fi
    exit "$status"
}

# Waits until the command in the arguments after the first prints the first argument.
wait_for() {
    expected=$1
    shift
    looks=0
    while found=$("$@" || echo 'an error') && [ "$found" != "$expected" ]; do
        looks=$((looks + 1))
        [ "$looks" -lt "$LOOKS_MAX" ] || fail "Expected '$expected', but after $looks looks it is '$found'."
        sleep "$POLL_SECONDS"
    done
}

# Repeats the command in the arguments until it succeeds: a new role takes minutes to work.
retry() {
    looks=0
    until "$@"; do
        looks=$((looks + 1))
        [ "$looks" -lt "$LOOKS_MAX" ] || fail "It failed $looks times: $*"
        sleep "$POLL_SECONDS"
    done
}

capacity() {
    az appservice plan show --resource-group "$group" --name workers --query sku.capacity --output tsv
}

functions_count() {
    az functionapp function list --resource-group "$group" --name "$app" \
        --query "length([?ends_with(name, '/metric_collector') || ends_with(name, '/scaling_logic') || ends_with(name, '/scaler') || ends_with(name, '/reconciler')])" \
        --output tsv
}

trap remove EXIT
trap 'exit 130' INT TERM
say "Creating the resource group $group in $region"
az group create --name "$group" --location "$region" --tags purpose=autoscaler-try --output none
plan=$(az appservice plan create --resource-group "$group" --name workers --is-linux --sku S1 \
    --number-of-workers 1 --query id --output tsv)

cat >"$work/parameters.json" <<END
{
  "\$schema": "https://schema.management.azure.com/schemas/2019-04-01/deploymentParameters.json#",
  "contentVersion": "1.0.0.0",
  "parameters": {
    "planIds": { "value": ["$plan"] },
    "topic": { "value": "$TOPIC" },
    "subscription": { "value": "$SUBSCRIPTION" },
    "storageSku": { "value": "Standard_LRS" },
    "settings": {
      "value": {
        "DryRun": "false",
        "InstanceRatePerMinute": "60",
        "DeadTimeMinutes": "1",
        "MinimumCapacity": "1",
        "MaximumCapacity": "2",
        "MinimumSamples": "2",
        "WindowSeconds": "60",
        "ScaleOutCooldownSeconds": "60",
        "ScaleInCooldownSeconds": "60"
      }
    }
  }
}
END

say 'Deploying infra/main.bicep'
az deployment group create --resource-group "$group" --name try --template-file infra/main.bicep \
    --parameters "@$work/parameters.json" --output none
app=$(az deployment group show --resource-group "$group" --name try \
    --query properties.outputs.functionAppName.value --output tsv)
namespace=$(az servicebus namespace list --resource-group "$group" --query '[0].name' --output tsv)

say "Publishing the package to $app"
"$PYTHON" -m local.package "$work/app.zip"
retry az functionapp deployment source config-zip --resource-group "$group" --name "$app" \
    --src "$work/app.zip" --build-remote true --output none
say 'Waiting until the functions are indexed'
wait_for 4 functions_count

say "Sending $MESSAGES messages"
who=$(az ad signed-in-user show --query id --output tsv 2>/dev/null ||
    az ad sp show --id "$(az account show --query user.name --output tsv)" --query id --output tsv)
az role assignment create --assignee-object-id "$who" --role 'Azure Service Bus Data Sender' \
    --scope "$(az servicebus namespace show --resource-group "$group" --name "$namespace" --query id --output tsv)" \
    --output none
i=0
while [ "$i" -lt "$MESSAGES" ]; do
    i=$((i + 1))
    printf '{"body": "order %s"}\n' "$i"
done >"$work/messages.jsonl"
cat >"$work/settings.json" <<END
{ "Values": { "ServiceBusConnection__fullyQualifiedNamespace": "$namespace.servicebus.windows.net" } }
END
retry "$PYTHON" -m shared --settings "$work/settings.json" send-messages "$work/messages.jsonl" --topic "$TOPIC"

say 'Waiting for the scale-out to 2 instances'
wait_for 2 capacity
say 'It scaled out. Emptying the subscription, and waiting for the scale-in to 1 instance'
az servicebus topic subscription delete --resource-group "$group" --namespace-name "$namespace" \
    --topic-name "$TOPIC" --name "$SUBSCRIPTION" --output none
az servicebus topic subscription create --resource-group "$group" --namespace-name "$namespace" \
    --topic-name "$TOPIC" --name "$SUBSCRIPTION" --output none
wait_for 1 capacity
say 'It scaled in. The deployment works.'
